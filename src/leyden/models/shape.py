"""What a model can be built for: the shape of one sample, without the batch."""

from collections.abc import Sequence

from leyden import UserError


def picture(in_shape: Sequence[int]) -> tuple[int, int, int]:
    """C, H, W; UserError if the samples are no pictures."""
    if len(in_shape) != 3:
        raise UserError(
            f"model: this one takes pictures C x H x W, but a sample has shape {list(in_shape)}; type model=mlp."
        )
    planes, height, width = in_shape
    return planes, height, width


def features(in_shape: Sequence[int]) -> int:
    """F of sequences of T x F; UserError if the samples are no sequences."""
    if len(in_shape) != 1:
        raise UserError(
            f"model: this one takes sequences of shape [F], but a sample has {list(in_shape)}; type model=cnn."
        )
    return in_shape[0]
