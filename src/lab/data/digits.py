"""1,797 handwritten digits of 8 x 8 (UCI ML, Alpaydin and Kaynak 1998), bundled with scikit-learn."""

import numpy as np
import torch
from torch import Tensor

from leyden.data.datamodule import DataModule
from leyden.data.folders import installed


def bundled() -> tuple[Tensor, Tensor]:
    """The pictures, N x 8 x 8 of 0..16, and their labels."""
    values = torch.from_numpy(np.loadtxt(installed("sklearn", "datasets/data/digits.csv.gz"), delimiter=","))
    return values[:, :64].view(-1, 8, 8), values[:, 64].long()


class Digits(DataModule):
    """Pictures of 1 x 8 x 8; the 17 grey levels are spread over 0..255."""

    classes = [str(digit) for digit in range(10)]

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        pictures, labels = bundled()
        return (pictures * (255 / 16)).round().to(torch.uint8).unsqueeze(1), labels


class Ink(Digits):
    """The same as sequences of T x 3: row and column in 0..7 and ink in 0..1 of each pixel that has any, by rows."""

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split != "train":
            return None
        pictures, labels = bundled()
        return [torch.cat([ink.nonzero(), ink[ink > 0][:, None]], 1).float() for ink in pictures / 16], labels
