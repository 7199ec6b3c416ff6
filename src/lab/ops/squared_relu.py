"""Squared ReLU, max(x, 0)^2 (So et al. 2021, arXiv:2109.08668), as an operator with kernels of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leyden.ops import kernels

torch.library.define("leyden::squared_relu", "(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
torch.library.define(
    "leyden::squared_relu_backward", "(Tensor grad, Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag
)
squared_relu, squared_relu_backward = torch.ops.leyden.squared_relu, torch.ops.leyden.squared_relu_backward


class SquaredReLU(nn.Module):
    """max(x, 0)^2 of each element; floating point of any shape and strides.

    What is exported or scripted holds the reference implementation, so that whoever loads it needs nothing of ours.
    """

    def __init__(self):
        super().__init__()
        kernels.load("squared_relu", Path(__file__).parent)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return reference(x)
        return reference(x) if torch.compiler.is_exporting() or torch.jit.is_tracing() else squared_relu(x)


def reference(x: Tensor) -> Tensor:
    """The same in plain PyTorch, with PyTorch's derivatives: the same bits, NaN and infinities included."""
    return torch.relu(x).square()


# What runs where no kernel is loaded for the device: the reference, and its derivative.
@torch.library.impl("leyden::squared_relu", "default")
def _(x: Tensor) -> Tensor:
    return torch.square(torch.relu(x), out=torch.empty_like(x))


@torch.library.impl("leyden::squared_relu_backward", "default")
def _(grad: Tensor, x: Tensor) -> Tensor:
    return torch.mul(grad, x + x, out=torch.empty_like(x)).masked_fill_(x <= 0, 0)


# Shapes, types and strides of the results, for torch.compile and torch.export.
@torch.library.register_fake("leyden::squared_relu")
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("leyden::squared_relu_backward")
def _(grad: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


# Derivatives. The backward operator has one of its own, for gradients of gradients.
def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def first(ctx: Any, grad: Tensor) -> Tensor:
    return squared_relu_backward(grad, *ctx.saved_tensors)


def second(ctx: Any, change: Tensor) -> tuple[Tensor, Tensor]:
    grad, x = ctx.saved_tensors
    return squared_relu_backward(change, x), (2 * change * grad).masked_fill(x <= 0, 0)


torch.library.register_autograd("leyden::squared_relu", first, setup_context=keep)
torch.library.register_autograd("leyden::squared_relu_backward", second, setup_context=keep)

# Under autocast in float32, as torch's own powers on a GPU: a square leaves the range of fp16 at 256.
for device in ("cpu", "cuda"):
    torch.library.register_autocast("leyden::squared_relu", device, torch.float32)


def onnx_table() -> dict[Callable, Callable]:
    """`custom_translation_table` for torch.onnx.export, where a graph holds the operator itself; needs onnxscript."""
    from onnxscript import opset18 as op

    def translated(x):
        kept = op.Relu(x)
        return op.Mul(kept, kept)

    return {squared_relu.default: translated}
