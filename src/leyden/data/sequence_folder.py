"""Your own sequences: one file each, in a folder for each class."""

import re
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import read_array
from torch import Tensor

from leyden import UserError
from leyden.data.datamodule import SPLITS, DataModule

NUMBER = re.compile(r'(^|,)[\s"]*([-+.\d]|(nan|inf|infinity)\b)', re.IGNORECASE)  # a cell that begins like one


class SequenceFolder(DataModule):
    """Sequences of T x F from <root>/<class>/*.npy and *.csv, or from <root>/train, val, test with classes in each."""

    def __init__(self, root: str | Path, **loader):
        super().__init__(**loader)
        self.root = Path(root).expanduser()

    @cached_property
    def roots(self) -> dict[str, Path]:
        """The folder of each split that has one; a `train` without folders in it is a class."""
        own = {split: self.root / split for split in SPLITS if (self.root / split).is_dir()}
        return own if "train" in own and folders(own["train"]) else {"train": self.root}

    @cached_property
    def classes(self) -> list[str]:
        if not self.root.is_dir():
            raise UserError(f"The folder {self.root} does not exist; set data.root=<folder>.")
        names = folders(self.roots["train"])
        if len(names) < 2:
            raise UserError(f"{self.roots['train']} needs two or more classes, not {names}; set data.root=<folder>.")
        return names

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split not in self.roots:
            return None
        paths, first = self.files(split), self.files("train")[0]
        x, columns = [load(path) for path in paths], load(first).shape[1]
        for path, sequence in zip(paths, x, strict=True):
            if sequence.shape[1] != columns:
                raise UserError(f"{path} has {sequence.shape[1]} columns, but {first} has {columns}.")
        return x, torch.tensor([self.classes.index(path.parent.name) for path in paths])

    def files(self, split: str) -> list[Path]:
        """Raises UserError for a class that train does not have, or that has no file to train on."""
        root = self.roots[split]
        files = [path for path in natural(root, "[!.]*/[!.]*") if path.suffix.lower() in (".npy", ".csv")]
        found = {path.parent.name for path in files}
        if strange := sorted(found - set(self.classes)):
            raise UserError(f"{root} has the classes {strange} that train does not have; train has {self.classes}.")
        if (empty := sorted(set(self.classes) - found)) and (split == "train" or not found):
            raise UserError(f"{root} has no .npy or .csv file of the classes {empty}; add some, or delete the folder.")
        return files


def natural(root: Path, pattern: str) -> list[Path]:
    """The paths in root that match, '2' before '10'."""
    return sorted(sorted(root.glob(pattern)), key=lambda path: re.sub(r"\d+", lambda n: n[0].zfill(20), str(path)))


def folders(root: Path) -> list[str]:
    return [path.name for path in natural(root, "[!.]*") if path.is_dir()]


def load(path: Path) -> Tensor:
    """A sequence as float of T x F. Raises UserError for another shape, no steps, or a value that is not finite."""
    try:
        raw = path.read_bytes()
        values = table(raw) if path.suffix.lower() == ".csv" else read_array(BytesIO(raw), allow_pickle=False)
    except Exception as error:  # a damaged head of a .npy file has errors of many kinds
        raise UserError(f"{path} cannot be read as a sequence ({' '.join(str(error).split())}).") from error
    if values.dtype.kind not in "buif" or values.ndim != 2 or values.size == 0:
        raise UserError(f"{path} holds {values.dtype} of shape {list(values.shape)}, not numbers of T x F, T > 0.")
    sequence = torch.from_numpy(values.astype(np.float64)).float()
    if not (finite := sequence.isfinite().all(1)).all():
        raise UserError(f"{path} holds NaN or infinity at step {int(finite.int().argmin())}, counted from 0.")
    return sequence


def table(raw: bytes) -> np.ndarray:
    """Comma-separated numbers; a first line without any number is a header."""
    lines = [line for line in raw.decode("utf-8-sig").splitlines() if line.strip()]
    if lines and not NUMBER.search(lines[0]):
        lines = lines[1:]
    return np.loadtxt(lines, delimiter=",", quotechar='"', comments=None, ndmin=2) if lines else np.empty((0, 1))
