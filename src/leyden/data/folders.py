"""Data in folders: one for each class, and above them, where the data is split already, one for each split."""

import logging
import os
import re
import unicodedata
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
    with a dot is no data. Links are followed, but none back to a folder that has been entered.
    """

    what: str  # the files in a word
    endings: tuple[str, ...]  # of their names, in any case

    def __init__(self, root: str | Path, classes: Sequence[str] | None = None, **loader):
        super().__init__(**loader)
        self.root = Path(root).expanduser()
        if classes:
            self.classes = list(classes)
        self.ignored: Counter[str] = Counter()  # by their ending, files of other kinds

    @cached_property
    def roots(self) -> dict[str, Path]:
        """The folder of each split that has one; a `train` without folders in it is a class."""
        if not self.root.is_dir():
            raise UserError(f"The folder {shown(self.root)} does not exist; set data.root=<folder>.")
        own = {split: self.root / split for split in SPLITS if (self.root / split).is_dir()}
        if "train" not in own or not folders(own["train"]):
            return {"train": self.root}
        if beside := [name for name in folders(self.root) if name not in SPLITS]:
            tell("the folders %s beside train are none of train, val and test; they are left out", beside)
        return own

    @cached_property
    def classes(self) -> list[str]:
        names = list(dict.fromkeys(map(title, folders(self.roots["train"]))))
        if len(names) < 2:
            raise UserError(
                f"{shown(self.roots['train'])} needs two or more classes, not {names}; set data.root=<folder>."
            )
        return names

    def files(self, split: str) -> list[str]:
        """The split's files, '2' before '10', relative to the root. A class is `label` of one.

        Raises:
            UserError: a class that train does not have, or one that has no file to train on.
        """
        root, known, found = self.roots[split], set(self.classes), self.all_files(split)
        names = [name for name in found if name.lower().endswith(self.endings)]
        self.ignored += others(found, self.endings)
        there = {self.label(name, split) for name in names}
        if strange := sorted(there - known):
            raise UserError(f"{shown(root)} has the classes {strange} that train does not have: {self.classes}.")
        if (empty := sorted(known - there)) and (split == "train" or not there):
            also = ", ".join(f"{count} of {ending}" for ending, count in self.ignored.most_common(5))
            raise UserError(
                f"{shown(root)} has no {self.what} of the classes {empty}; add some, or delete the folder"
                f"{also and f' (files of other kinds: {also})'}."
            )
        return names

    def all_files(self, split: str) -> list[str]:
        root, above, start = self.roots[split], lineage(self.roots[split]), len(os.path.join(self.root, ""))
        try:
            found = [name[start:] for folder in folders(root) for name in walk(os.path.join(root, folder), set(above))]
        except OSError as error:
            raise UserError(f"{shown(error.filename)} cannot be read ({error.strerror}).") from error
        return sorted(found, key=natural)

    def label(self, name: str, split: str) -> str:
        """The class of a file, by its name relative to the root."""
        return title(name.split(os.sep)[0 if self.roots[split] == self.root else 1])


def walk(folder: str, entered: set[tuple[int, int]]) -> Iterator[str]:
    """The files in a folder and in the folders in it."""
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in entered:
        return
    entered.add((status.st_dev, status.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
                yield from walk(entry.path, entered)
            else:
                yield entry.path


def lineage(folder: Path) -> set[tuple[int, int]]:
    """A folder and those that it lies in, by device and number."""
    return {(s.st_dev, s.st_ino) for s in (path.stat() for path in (folder, *folder.resolve().parents))}


def others(names: list[str], endings: tuple[str, ...]) -> Counter[str]:
    """How many files have which other endings."""
    strange = [name for name in names if not name.lower().endswith(endings)]
    return Counter(shown(os.path.splitext(name)[1].lower()) or "no ending" for name in strange)


def folders(root: str | Path) -> list[str]:
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if os.path.isdir(entry.path) and not entry.name.startswith(".")]
    return sorted(names, key=natural)


def tell(*line: Any) -> None:
    """Say it once, not in each process of a run."""
    if int(os.environ.get("RANK", 0)) == 0:
        log.info(*line)


def natural(name: str) -> tuple[str, str]:
    """What names are sorted by: '2' before '10'."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), name), name


def title(folder: str) -> str:
    """The class of a folder: its name, in the one spelling of letters that several systems write in two ways."""
    return unicodedata.normalize("NFC", shown(folder))
