"""Data in folders: one for each class, and above them, where the data is split already, one for each split."""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from leyden import UserError
from leyden.data.datamodule import SPLITS, DataModule
from leyden.data.decode import shown

log = logging.getLogger(__name__)


class Folders(DataModule):
    """Files from <root>/<class>/**, or from <root>/train, val, test with classes in each; a child reads them.

    The classes are the folders of train, '2' before '10'; a run is given those that it was trained with. What begins
    with a dot is no data.
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

    def files(self, split: str) -> tuple[list[str], list[int]]:
        """The split's files, relative to the root, '2' before '10', and the index of each one's class.

        Raises:
            UserError: a class that train does not have, or one that has no file to train on.
        """
        root, found, ignored = self.roots[split], dict[str, str](), Counter[str]()
        for folder in folders(root):
            for path in walk(root / folder):
                if path.lower().endswith(self.endings):
                    found[os.path.relpath(path, self.root)] = shown(folder)
                else:
                    ignored[shown(os.path.splitext(path)[1].lower()) or "no ending"] += 1
        if ignored:
            others = ", ".join(f"{count} of {name}" for name, count in ignored.most_common())
            log_once("files of other kinds in %s are left out: %s", shown(root), others)
        there = set(found.values())
        if strange := sorted(there.difference(self.classes)):
            raise UserError(f"{shown(root)} has the classes {strange} that train does not have: {self.classes}.")
        if (empty := sorted(set(self.classes) - there)) and (split == "train" or not there):
            raise UserError(f"{shown(root)} has no {self.what} of the classes {empty}; add some, or delete the folder.")
        names, index = sorted(found, key=natural), {name: number for number, name in enumerate(self.classes)}
        return names, [index[found[name]] for name in names]


def walk(root: Path) -> Iterator[str]:
    """The files in a folder and in those in it. Links are followed, but none to a folder that was entered before."""
    entered = set(map(str, [root.parent.resolve(), *root.parent.resolve().parents]))

    def stop(error: OSError) -> None:
        raise UserError(f"{shown(error.filename)} cannot be read ({error.strerror}).") from error

    for folder, inner, names in os.walk(root, followlinks=True, onerror=stop):
        new = os.path.realpath(folder) not in entered
        inner[:] = [name for name in inner if new and not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in names if new and not name.startswith("."))
        entered.add(os.path.realpath(folder))


def folders(root: str | Path) -> list[str]:
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if os.path.isdir(entry.path) and not entry.name.startswith(".")]
    return sorted(names, key=natural)


def natural(name: str) -> tuple[str, str]:
    """What names are sorted by: '2' before '10'."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), name), name


def log_once(*line: Any) -> None:
    """Log a line in one process of a run only."""
    if int(os.environ.get("RANK", 0)) == 0:
        log.info(*line)
