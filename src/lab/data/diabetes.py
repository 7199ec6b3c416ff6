"""The progress of diabetes in 442 patients (Efron et al. 2004), bundled with scikit-learn."""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

from leyden.data.datamodule import DataModule


class Diabetes(DataModule):
    """Age, sex, body mass index, blood pressure and six blood values, in their units; y is a score from 25 to 346."""

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        x, y = load_diabetes(return_X_y=True, scaled=False)
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
