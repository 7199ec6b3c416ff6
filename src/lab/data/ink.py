"""The digits of scikit-learn as sequences of their inked pixels, which differ in length."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from leyden.data.datamodule import DataModule


class Ink(DataModule):
    """Sequences of T x 3: row and column in 0..7 and ink in 0..1 of each pixel that has any, in scan order.

    The labels are those of `digits`, and so are the splits.
    """

    classes = [str(digit) for digit in range(10)]

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split != "train":
            return None
        source = load_digits()
        pictures = torch.tensor(source.images / 16)
        x = [torch.cat([ink.nonzero(), ink[ink > 0][:, None]], 1).float() for ink in pictures]
        return x, torch.tensor(source.target)
