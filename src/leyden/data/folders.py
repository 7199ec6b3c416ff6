"""Data in folders, one for each class, and above them, where it is split already, one for each split; sequences."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden import UserError, listed, said
from leyden.data.datamodule import SPLITS, DataModule
from leyden.data.decode import shown
from leyden.files import lock, read_json, replacing

log = logging.getLogger(__name__)
NUMBER = re.compile(r'(^|,)[\s"]*([-+.\d]|(nan|inf|infinity)\b)', re.IGNORECASE)  # a cell that begins like one


class Folders(DataModule):
    """Files from <root>/<class>/**, or from <root>/train, val, test with classes in each; a child reads them.

    The classes are the folders of train; a run is given those of its training. What begins with a dot is no data.
    """

    what: str  # the files in a word
    endings: tuple[str, ...]  # of their names, in any case

    def __init__(self, root: str | Path, classes: Sequence[str] | None = None, **loader: Any):
        super().__init__(**loader)
        self.root = Path(root).expanduser()
        if classes:
            self.classes = list(classes)

    @cached_property
    def roots(self) -> dict[str, Path]:
        """The folder of each split that has one; a `train` without folders in it is a class."""
        if not self.root.is_dir():
            raise UserError(f"The folder {shown(self.root)} does not exist; set data.root=<folder>.")
        own = {split: self.root / split for split in SPLITS if (self.root / split).is_dir()}
        if "train" not in own or not folders(own["train"]):
            return {"train": self.root}
        if beside := [name for name in folders(self.root) if name not in SPLITS]:
            log_once("the folders %s beside train are none of train, val and test; they are left out", beside)
        return own

    @cached_property
    def classes(self) -> list[str]:
        root = self.roots["train"]
        names = [shown(name) for name in folders(root)]
        if len(names) < 2:
            raise UserError(f"{shown(root)} needs two or more classes, not {names}; set data.root=<folder>.")
        return names

    @cached_property
    def listing(self) -> dict[str, tuple[list[str], list[int]]]:
        """The files of each split, relative to the root, '2' before '10', and the index of the class of each."""
        return {split: self.files(split) for split in self.roots}

    def files(self, split: str) -> tuple[list[str], list[int]]:
        """Raises UserError for a class that train does not have, or one that has no file to train on."""
        root = self.roots[split]
        every = {os.path.relpath(path, self.root): shown(name) for name in folders(root) for path in walk(root / name)}
        found = {path: name for path, name in every.items() if path.lower().endswith(self.endings)}
        if others := [shown(path) for path in every if path not in found]:
            log_once("%d files of other kinds in %s are left out: %s", len(others), shown(root), listed(others))
        there = set(found.values())
        if strange := sorted(there.difference(self.classes)):
            raise UserError(f"{shown(root)} has the classes {listed(strange)} that train does not have.")
        if (empty := sorted(set(self.classes) - there)) and (split == "train" or not there):
            names = listed(empty)
            raise UserError(f"{shown(root)} has no {self.what} of the classes {names}; add some, or delete the folder.")
        paths, index = sorted(found, key=natural), {name: number for number, name in enumerate(self.classes)}
        return paths, [index[found[path]] for path in paths]


def walk(root: Path) -> Iterator[str]:
    """The files below a folder. Links are followed, but none to a folder that was entered before."""
    entered = set(map(str, [root.parent.resolve(), *root.parent.resolve().parents]))

    def stop(error: OSError) -> None:
        raise UserError(f"{shown(error.filename)} cannot be read ({error.strerror}).") from error

    for folder, inner, names in os.walk(root, followlinks=True, onerror=stop):
        if (real := os.path.realpath(folder)) in entered:
            inner.clear()
            continue
        entered.add(real)
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


def folders(root: str | Path) -> list[str]:
    return sorted((path.name for path in Path(root).iterdir() if path.is_dir() and path.name[0] != "."), key=natural)


def natural(name: str) -> tuple[str, str]:
    """What names are sorted by: '2' before '10'."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), name), name


def installed(package: str, name: str) -> Path:
    """A data file of an installed package, which is not imported. Raises UserError where it is not installed."""
    if not (spec := find_spec(package)) or not spec.origin:
        raise UserError(f"The package {package} must be installed, as its file {name} is the data.")
    return Path(spec.origin).parent / name


def log_once(*line: Any) -> None:
    """Log a line in one process of a run only."""
    if int(os.environ.get("RANK", 0)) == 0:
        log.info(*line)


def state(path: Path) -> list[int]:
    """Size and time of change in ns; nothing of a file that is gone, or of a link that leads nowhere."""
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else []


@contextmanager
def remembered(data_dir: Path, kind: str, *key: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The file in <data_dir>/<kind> of a key, which is locked, and its content, which is written if it is changed."""
    digest = hashlib.blake2b(repr(key).encode("utf-8", "backslashreplace"), digest_size=8)
    memory = data_dir / kind / f"{digest.hexdigest()}.json"
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with lock(memory.with_suffix(".lock")):
            known = read_json(memory)
            before = dict(known)
            yield memory, known
            if known != before:
                with replacing(memory) as part:
                    part.write_text(json.dumps(known))
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{memory.parent} cannot be written ({why}); set data_dir=<folder>.") from error


class SequenceFolder(Folders):
    """Your own sequences of T x F, from .npy and .csv files."""

    what, endings = ".npy or .csv file", (".npy", ".csv")

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split not in self.roots:
            return None
        names, labels = self.listing[split]
        first = self.root / self.listing["train"][0][0]
        x, columns = [load(self.root / name) for name in names], load(first).shape[1]
        for name, sequence in zip(names, x, strict=True):
            if sequence.shape[1] != columns:
                raise UserError(f"{self.root / name} has {sequence.shape[1]} columns, but {first} has {columns}.")
        return x, torch.tensor(labels)


def load(path: Path) -> Tensor:
    """A sequence as float of T x F; a first line of a .csv file without any number is a header.

    Raises:
        UserError: it cannot be read, or is of another shape, without steps, or with a value that is not finite.
    """
    try:
        if path.suffix.lower() == ".csv":
            lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            lines = lines if not lines or NUMBER.search(lines[0]) else lines[1:]
            values = np.empty((0, 1))
            if lines:
                values = np.loadtxt(lines, delimiter=",", quotechar='"', comments=None, ndmin=2)
        else:
            values = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged head of a .npy file has errors of many kinds
        raise UserError(f"{path} cannot be read as a sequence ({said(error)}).") from error
    if values.dtype.kind not in "buif" or values.ndim != 2 or values.size == 0:
        raise UserError(f"{path} holds {values.dtype} of shape {list(values.shape)}, not numbers of T x F, T > 0.")
    sequence = torch.from_numpy(values.astype(np.float64)).float()
    if not (finite := sequence.isfinite().all(1)).all():
        raise UserError(f"{path} holds NaN or infinity at step {int(finite.int().argmin())}, counted from 0.")
    return sequence
