"""The tensors in nested containers, their sizes, and those that are divided among devices."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def tensors(node: Any) -> Iterator[Tensor]:
    """Those of nested containers, in order."""
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, dict | list | tuple):
        for child in node.values() if isinstance(node, dict) else node:
            yield from tensors(child)


def sizes(node: Any) -> str:
    """The sizes of the tensors of nested containers: `64 x 10, 64`."""
    return ", ".join(" x ".join(map(str, tensor.shape)) or "1" for tensor in tensors(node)) or "-"


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts that FSDP keeps on other ranks, which all must ask for at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
