"""Your own sequences: one file each, in a folder for each class."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import read_array
from torch import Tensor

from leyden import UserError, in_a_line
from leyden.data.folders import Folders

NUMBER = re.compile(r'(^|,)[\s"]*([-+.\d]|(nan|inf|infinity)\b)', re.IGNORECASE)  # a cell that begins like one


class SequenceFolder(Folders):
    """Sequences of T x F from .npy and .csv files."""

    what, endings = ".npy or .csv file", (".npy", ".csv")

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split not in self.roots:
            return None
        names, labels = self.files(split)
        first = self.root / (names if split == "train" else self.files("train")[0])[0]
        x, columns = [load(self.root / name) for name in names], load(first).shape[1]
        for name, sequence in zip(names, x, strict=True):
            if sequence.shape[1] != columns:
                raise UserError(f"{self.root / name} has {sequence.shape[1]} columns, but {first} has {columns}.")
        return x, torch.tensor(labels)


def load(path: Path) -> Tensor:
    """A sequence as float of T x F. Raises UserError for another shape, no steps, or a value that is not finite."""
    try:
        raw = path.read_bytes()
        values = table(raw) if path.suffix.lower() == ".csv" else read_array(BytesIO(raw), allow_pickle=False)
    except Exception as error:  # a damaged head of a .npy file has errors of many kinds
        raise UserError(f"{path} cannot be read as a sequence ({in_a_line(error)}).") from error
    if values.dtype.kind not in "buif" or values.ndim != 2 or values.size == 0:
        raise UserError(f"{path} holds {values.dtype} of shape {list(values.shape)}, not numbers of T x F, T > 0.")
    sequence = torch.from_numpy(values.astype(np.float64)).float()
    if not (finite := sequence.isfinite().all(1)).all():
        raise UserError(f"{path} holds NaN or infinity at step {int(finite.int().argmin())}, counted from 0.")
    return sequence


def table(raw: bytes) -> np.ndarray:
    """Comma-separated numbers; a first line without any number is a header."""
    lines = [line for line in raw.decode("utf-8-sig").splitlines() if line.strip()]
    lines = lines if not lines or NUMBER.search(lines[0]) else lines[1:]
    return np.loadtxt(lines, delimiter=",", quotechar='"', comments=None, ndmin=2) if lines else np.empty((0, 1))
