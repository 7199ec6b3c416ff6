"""Squared ReLU, max(x, 0)^2 (So et al. 2021, arXiv:2109.08668), as an operator with kernels of its own."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leyden.ops import kernels


class SquaredReLU(nn.Module):
    """max(x, 0)^2 of floating point of any shape; exports hold `reference`, to need nothing of ours."""

    def __init__(self):
        super().__init__()
        kernels.load("squared_relu", Path(__file__).parent)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return reference(x)
        return reference(x) if torch.compiler.is_exporting() or torch.jit.is_tracing() else squared_relu(x)


def reference(x: Tensor) -> Tensor:
    """The same in plain PyTorch: the same bits, NaN and infinities included."""
    return torch.relu(x).square()


# The operator and its derivative, without a kernel
@torch.library.custom_op("leyden::squared_relu", mutates_args=())
def operator(x: Tensor) -> Tensor:
    return torch.square(torch.relu(x), out=torch.empty_like(x))


@torch.library.custom_op("leyden::squared_relu_backward", mutates_args=())
def derivative(grad: Tensor, x: Tensor) -> Tensor:
    return torch.mul(grad, x + x, out=torch.empty_like(x)).masked_fill_(x <= 0, 0)


squared_relu, squared_relu_backward = torch.ops.leyden.squared_relu, torch.ops.leyden.squared_relu_backward


# Derivatives; the second is for gradients of gradients.
def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def first(ctx: Any, grad: Tensor) -> Tensor:
    return squared_relu_backward(grad, *ctx.saved_tensors)


def second(ctx: Any, change: Tensor) -> tuple[Tensor, Tensor]:
    grad, x = ctx.saved_tensors
    return squared_relu_backward(change, x), (2 * change * grad).masked_fill(x <= 0, 0)


operator.register_autograd(first, setup_context=keep)
derivative.register_autograd(second, setup_context=keep)

# Shapes, types and strides, for torch.compile and torch.export
operator.register_fake(torch.empty_like)
derivative.register_fake(lambda grad, x: torch.empty_like(x))

# Under autocast in float32: a square leaves the range of fp16 at 256.
for device in ("cpu", "cuda"):
    operator.register_autocast(device, torch.float32)
