"""The progress of diabetes in 442 patients (Efron et al. 2004), bundled with scikit-learn."""

import numpy as np
import torch
from torch import Tensor

from leyden.data.datamodule import DataModule
from leyden.data.folders import installed


class Diabetes(DataModule):
    """Age, sex, body mass index, blood pressure and six blood values; y is a score from 25 to 346."""

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        names = "diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"
        x, y = (np.loadtxt(installed("sklearn", f"datasets/data/{name}")) for name in names)
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
