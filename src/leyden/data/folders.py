"""Data in folders, one for each class, in one for each split where it is split already; sequences."""

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

from leyden import UserError, listed, require, said
from leyden.data.datamodule import SPLITS, DataModule
from leyden.files import lock, read_json, replacing, shown

log = logging.getLogger(__name__)
NUMBER = re.compile(r'(^|,)[\s"]*([-+.\d]|(nan|inf|infinity)\b)', re.IGNORECASE)


class Folders(DataModule):
    """Files of <root>/<class>/**, or of <root>/train, val, test with the classes of train in each; no dot files.

    The classes are the folders of train; a run is given those of its training. A child reads the files.
    """

    what: str
    endings: tuple[str, ...]

    def __init__(self, root: str | Path, classes: Sequence[str] | None = None, **loader: Any):
        super().__init__(**loader)
        self.root = Path(root).expanduser()
        if classes:
            self.classes = list(classes)

    @cached_property
    def roots(self) -> dict[str, Path]:
        """The folder of each split that has one; a `train` without folders in it is a class."""
        if not self.root.is_dir():
            raise UserError(f"The folder {self.root} does not exist; set data.root=<folder>.")
        own = {split: self.root / split for split in SPLITS if (self.root / split).is_dir()}
        if "train" not in own or not folders(own["train"]):
            return {"train": self.root}
        if beside := set(folders(self.root)) - set(SPLITS):
            log_once("%s: what lies beside train, val and test is left out: %s", self.root, listed(beside))
        return own

    @cached_property
    def classes(self) -> list[str]:
        names = folders(self.roots["train"])
        require(names == list(map(shown, names)), "data.root", "of class folders whose names are text", str(self.root))
        return names

    @cached_property
    def listing(self) -> dict[str, tuple[list[str], list[int]]]:
        """The files of each split, relative to the root, '2' before '10', and the index of the class of each.

        Links to classes and files are followed, those to folders inside a class are not.

        Raises:
            UserError: a class that train does not have, or one that has no file to train on.
        """
        listing, index = {}, {name: number for number, name in enumerate(self.classes)}

        for split, root in self.roots.items():
            every = dict[str, str]()
            for name in folders(root):
                for folder, inner, files in os.walk(root / name):
                    inner[:] = [part for part in inner if part[0] != "."]
                    place = os.path.relpath(folder, self.root)
                    every |= {os.path.join(place, file): name for file in files if file[0] != "."}

            found = {path: name for path, name in every.items() if path.lower().endswith(self.endings)}
            if others := [path for path in every if path not in found]:
                log_once("%d files of other kinds in %s are left out: %s", len(others), root, listed(others))

            there = set(found.values())
            if strange := sorted(there - index.keys()):
                raise UserError(f"{root} has the classes {listed(strange)} that train does not have.")
            if (empty := sorted(index.keys() - there)) and (split == "train" or not there):
                raise UserError(f"{root} has no {self.what} of the classes {listed(empty)}; add some, or delete it.")

            paths = sorted(found, key=natural)
            listing[split] = paths, [index[found[path]] for path in paths]
        return listing


def folders(root: Path) -> list[str]:
    """Names in it, sorted; no dot folders."""
    return sorted((path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."), key=natural)


def natural(name: str) -> tuple[str, str]:
    """What names are sorted by: '2' before '10'."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), name), name


def installed(package: str, name: str) -> Path:
    """A data file of an installed package, which is not imported."""
    spec: Any = find_spec(package)
    return Path(spec.origin).parent / name


def log_once(*line: Any) -> None:
    """Log a line in one process of a run only."""
    if int(os.environ.get("RANK", 0)) == 0:
        log.info(*line)


def state(path: Path) -> list[int]:
    """Size and time of change in ns, if it is there."""
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else []


@contextmanager
def remembered(data_dir: Path, kind: str, *key: Any) -> Iterator[tuple[Path, dict]]:
    """The file in <data_dir>/<kind> of a key, locked, and its content, which is written back."""
    memory = data_dir / kind / f"{hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()}.json"
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
        raise UserError(f"{memory.parent} cannot be written ({said(error)}); set data_dir=<folder>.") from error


class SequenceFolder(Folders):
    """Your own sequences of T x F, from .npy and .csv files."""

    what, endings = ".npy or .csv file", (".npy", ".csv")

    def read(self, split: str) -> tuple[list[Tensor], Tensor] | None:
        if split not in self.roots:
            return None
        columns = load(self.root / self.listing["train"][0][0]).shape[1]
        names, labels = self.listing[split]
        return [load(self.root / name, columns) for name in names], torch.tensor(labels)


def load(path: Path, columns: int | None = None) -> Tensor:
    """A finite sequence as float of T x columns; a first line of a .csv file without any number is a header.

    Raises:
        UserError: it cannot be read, or is of another shape, without steps, or with a value that is not finite.
    """
    try:
        if path.suffix.lower() == ".csv":
            lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            lines = lines[lines != [] and not NUMBER.search(lines[0]) :]
            values = np.loadtxt(lines, delimiter=",", quotechar='"', comments=None, ndmin=2) if lines else np.empty(0)
        else:
            values = np.load(path)
    except Exception as error:  # of many kinds
        raise UserError(f"{path} cannot be read as a sequence ({said(error)}).") from error

    if values.dtype.kind not in "buif" or values.ndim != 2 or not values.size or columns not in (None, values.shape[1]):
        what = f"numbers of T x {columns or 'F'}, T > 0"
        raise UserError(f"{path} holds {values.dtype} of shape {[*values.shape]}, not {what}.")

    sequence = torch.from_numpy(values.astype(np.float64)).float()
    if len(bad := (~sequence.isfinite().all(1)).nonzero()):
        raise UserError(f"{path} holds NaN or infinity at step {int(bad[0])} from 0.")
    return sequence
