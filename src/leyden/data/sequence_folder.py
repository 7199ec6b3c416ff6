"""Your own sequences: one file each, in a folder for each class."""

import csv
import re
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leyden import UserError
from leyden.data.datamodule import SPLITS, DataModule

SUFFIXES = (".npy", ".csv")


class SequenceFolder(DataModule):
    """Sequences of T x F from <root>/<class>/*.npy and *.csv, or from <root>/train, val and test with classes in each.

    Args:
        root: the folder, relative to where one stands; val and test are cut from train where they have no folder
    """

    def __init__(self, root: str | Path, **loader):
        super().__init__(**loader)
        self.root = Path(root).expanduser()

    @cached_property
    def roots(self) -> dict[str, Path]:
        """The folder of each split that has one."""
        names = set(folders(self.root))
        if (names and names <= set(SPLITS)) or ("train" in names and folders(self.root / "train")):
            return {split: self.root / split for split in SPLITS if split == "train" or split in names}
        return {"train": self.root}

    @cached_property
    def classes(self) -> list[str]:
        """Names in natural order. Raises UserError for fewer than two."""
        root = self.roots["train"]
        if len(names := list(folders(root))) < 2:
            raise UserError(f"{root} must hold a folder for each of two or more classes, but has {names or 'none'}.")
        return names

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split not in self.roots:
            return None
        paths, labels = zip(*self.labelled(split), strict=True)
        sequences = [load(path) for path in paths]
        first = self.labelled("train")[0][0]
        columns = load(first).shape[1]
        for path, sequence in zip(paths, sequences, strict=True):
            if sequence.shape[1] != columns:
                raise UserError(f"{path} has {sequence.shape[1]} columns, but {first} has {columns}.")
        return sequences, torch.tensor(labels)

    def labelled(self, split: str) -> list[tuple[Path, int]]:
        """The files of a split and their labels.

        Raises:
            UserError: a class has no file, or train does not have it.
        """
        found, classes = [], self.classes
        for name, folder in folders(self.roots[split]).items():
            if name not in classes:
                raise UserError(f"{folder} is a class that train does not have; train has {', '.join(classes)}.")
            files = [path for path in natural(folder) if path.suffix.lower() in SUFFIXES]
            if not files:
                raise UserError(f"{folder} has no .npy or .csv file; add some, or delete the folder.")
            found += [(path, classes.index(name)) for path in files]
        if not found:
            raise UserError(f"{self.roots[split]} has no folders of classes; add them, or delete it.")
        return found


def folders(root: Path) -> dict[str, Path]:
    """The folders of the classes by name.

    Raises:
        UserError: root cannot be read.
    """
    try:
        return {path.name: path for path in natural(root) if path.is_dir()}
    except OSError as error:
        raise UserError(f"The folder {root} cannot be read ({error.strerror}); set data.root=<folder>.") from error


def natural(folder: Path) -> list[Path]:
    """What is in a folder, '2' before '10'; hidden files are left out."""

    def key(path: Path) -> tuple[list[str | int], str]:
        return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", path.name))], path.name

    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=key)


# one file


def load(path: Path) -> Tensor:
    """A sequence as float of T x F.

    Raises:
        UserError: the file cannot be read, has another shape, no steps, or a value that is not finite.
    """
    try:
        values = table(path) if path.suffix.lower() == ".csv" else array(path)
    except (OSError, ValueError, EOFError, MemoryError) as error:  # a pickle is one of the ValueErrors
        raise UserError(f"{path} cannot be read as a sequence ({' '.join(str(error).split())}).") from error
    if values.dtype.kind not in "buif" or values.ndim != 2:
        raise UserError(f"{path} holds {values.dtype} of shape {list(values.shape)}, not numbers of shape T x F.")
    if 0 in values.shape:
        raise UserError(f"{path} is empty (shape {list(values.shape)}); a sequence has at least one step.")
    with np.errstate(over="ignore"):  # to infinity, which is found below
        values = values.astype(np.float32)
    if not (finite := np.isfinite(values).all(1)).all():
        raise UserError(f"{path} holds NaN or infinity at step {int(finite.argmin())}, counted from 0.")
    return torch.from_numpy(values)


def array(path: Path) -> np.ndarray:
    """A .npy file; one that holds pickled objects is refused."""
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def table(path: Path) -> np.ndarray:
    """A file of comma-separated numbers; a first line without any number is a header."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    header = not any(number(cell) for cell in cells(lines[0]))
    rows = [(count, line) for count, line in enumerate(lines, 1) if line.strip() and count > header]
    if not rows:
        return np.empty((0, 1))
    try:
        return np.loadtxt([line for _, line in rows], delimiter=",", quotechar='"', comments=None, ndmin=2)
    except ValueError:  # numpy counts rows, and counts them in two ways
        width = len(cells(rows[0][1]))
        for count, line in rows:
            if len(cells(line)) != width or not all(map(number, cells(line))):
                raise ValueError(f"line {count}, {line!r}, is not {width} numbers") from None
        raise


def cells(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
