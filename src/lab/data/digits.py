"""1,797 handwritten digits of 8 x 8 (UCI ML, Alpaydin and Kaynak 1998), bundled with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from leyden.data.datamodule import DataModule


class Digits(DataModule):
    """Pictures of 1 x 8 x 8; the 17 grey levels of the source are spread over 0..255."""

    classes = [str(digit) for digit in range(10)]

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        source = load_digits()
        pictures = torch.tensor(source.images * (255 / 16)).round().to(torch.uint8)
        return pictures.unsqueeze(1), torch.tensor(source.target)
