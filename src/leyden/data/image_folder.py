"""Your own photographs, in a folder for each class."""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from PIL import ImageColor
from torch import Tensor

from leyden import UserError
from leyden.data.cache import Cache, fill
from leyden.data.datamodule import SPLITS, cores
from leyden.data.decode import ENDINGS, MODES, VERSION, shown
from leyden.data.folders import Folders, tell
from leyden.data.pictures import Files, Names, Pictures
from leyden.data.samples import Sequences, Tensors
from leyden.data.scan import Scan

log = logging.getLogger(__name__)


class ImageFolder(Folders):
    """Pictures of C x H x W in uint8; conf/data/image_folder.yaml explains the arguments.

    What is found out about the files is kept in <data_dir>/image_folder, and the cache, too.
    """

    what, endings = "picture", ENDINGS

    def __init__(
        self,
        root: str | Path,
        size: int | Sequence[int] | None = 224,
        channels: int = 3,
        background: str = "white",
        on_bad_file: str = "error",
        cache: bool = False,
        data_dir: str | Path = "data",
        **loader: Any,
    ):
        super().__init__(root, **loader)
        self.size, self.channels, self.background = sides(size), channels, background
        self.on_bad_file, self.cache, self.data_dir = on_bad_file, cache, Path(data_dir)
        self.check()

    def check(self) -> None:
        """Raises UserError for a setting that is none."""
        if self.on_bad_file not in ("error", "skip"):
            raise UserError(f"data.on_bad_file={self.on_bad_file} is none; choose error or skip.")
        if self.channels not in MODES:
            raise UserError(f"data.channels={self.channels} is none; choose 1 for grey or 3 for colour.")
        try:
            ImageColor.getrgb(self.background)
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"data.background={self.background} is no colour; type a name such as white, or '#rrggbb'."
            ) from error
        if self.size is None and (self.cache or not (self.transforms["train"] and self.transforms["val"])):
            raise UserError(
                "data.size=null needs train_transforms and eval_transforms that resize, and data.cache=false; "
                "set data.size=224."
            )

    # what is there

    @cached_property
    def listing(self) -> tuple[Names, Tensor, dict[str, np.ndarray]]:
        """The names of all files, the class of each, and the rows of each split."""
        number = {name: index for index, name in enumerate(self.classes)}
        names: list[str] = []
        labels: list[int] = []
        rows = {}
        for split in self.roots:
            found = self.files(split)
            rows[split] = np.arange(len(names), len(names) + len(found))
            names += found
            labels += [number[self.label(name, split)] for name in found]
        if self.ignored:
            others = ", ".join(f"{count} of {ending}" for ending, count in self.ignored.most_common())
            tell("files in %s that are no pictures by their ending are left out: %s", shown(self.root), others)
        if any(name.isdecimal() for name in self.classes):
            tell("classes and their indices: %s", ", ".join(f"{name}: {index}" for name, index in number.items()))
        return Names(names), torch.tensor(labels), rows

    @cached_property
    def scan(self) -> Scan:
        """What is known of the files, after a look at those that are new; the cache is filled by the same look."""
        scan = Scan(Files(self.root, self.listing[0], self.size, self.channels, self.background))
        self.source: Files | Cache = scan.files
        setting = (os.path.realpath(self.root), self.size, self.channels, self.background, VERSION)
        stem = hashlib.blake2b(repr(setting).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        folder = self.data_dir / "image_folder"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with alone(folder / f"{stem}.lock"):
                self.look(scan, folder / f"{stem}.npz")
        except OSError as error:
            cause = f"{folder} cannot be written ({error.strerror or error}); set data_dir=<folder>"
            if self.cache:
                raise UserError(f"{cause}, or data.cache=false.") from error
            log.warning("%s, or the pictures are looked at again at each start.", cause)
            scan.look(scan.unknown)
        self.judge(scan)
        return scan

    def look(self, scan: Scan, memory: Path) -> None:
        """Learn what is not remembered, and fill the cache if it is wanted and not there."""
        scan.recall(memory)
        new = scan.unknown
        fill_now = self.cache and not self.store(scan, memory).there
        if len(new) or fill_now:
            tell("looking at %d pictures of %s", len(scan.stat) if fill_now else len(new), shown(self.root))
        if not fill_now:
            scan.look(new)
        if self.cache and not self.store(scan, memory).there:  # a file that could not be decoded may be good now
            part = memory.with_suffix(".u8.part")
            fill(part, self.store(scan, memory).shape, lambda keep: scan.look(np.arange(len(scan.stat)), keep))
            os.replace(part, self.store(scan, memory).path)
            for old in set(memory.parent.glob(f"{memory.stem}-*.u8")) - {self.store(scan, memory).path}:
                old.unlink(missing_ok=True)
        if len(new) or fill_now:
            scan.remember(memory)
            tell("what was found is kept in %s", memory.parent)
        if self.cache:
            self.source = self.store(scan, memory)
            self.source.rows  # noqa: B018  (mapped now, before another run may replace the file)

    def store(self, scan: Scan, memory: Path) -> Cache:
        height, width = self.size or (0, 0)
        return Cache(memory.with_name(f"{memory.stem}-{scan.key}.u8"), (len(scan.stat), self.channels, height, width))

    def judge(self, scan: Scan) -> None:
        """Stop at files that cannot be decoded, or note them.

        Raises:
            UserError: there are some, or all of a class.
        """
        bad = {shown(scan.files.names[row]): why for row, why in sorted(scan.why.items())}
        lines = "".join(f"\n  {name}: {why}" for name, why in bad.items())
        if bad and self.on_bad_file == "error":
            raise UserError(
                f"{len(bad)} of {len(scan.stat)} pictures in {shown(self.root)} cannot be decoded; mend or delete "
                f"them, or type data.on_bad_file=skip:{lines}"
            )
        if bad:
            tell("%d of %d pictures are skipped, as they cannot be decoded:%s", len(bad), len(scan.stat), lines)
            self.notes["skipped"] = {"count": len(bad), "files": bad}

    def samples(self, split: str) -> Tensors | None:
        """Raises UserError where a class has no picture left to train on."""
        if split not in self.roots:
            return None
        _, labels, rows = self.listing
        good = torch.from_numpy(rows[split][self.scan.digest[rows[split]].any(1)])
        y = labels[good]
        if split == "train" and (lost := set(range(len(self.classes))) - set(y.tolist())):
            names = [self.classes[index] for index in sorted(lost)]
            raise UserError(f"No picture of the classes {names} in {shown(self.roots[split])} can be decoded.")
        pictures: Any = Pictures(self.source, good)  # a tensor as far as Tensors asks
        return Tensors(pictures, y)

    # what it says of itself

    def facts_of_x(self, train: Tensors | Sequences) -> dict[str, Any]:
        if self.transforms["train"] or self.transforms["val"]:
            try:
                return super().facts_of_x(train)
            except RuntimeError as error:
                raise UserError(f"The transforms of data leave pictures that make no batch: {error}.") from error
        mean, std = self.scan.moments(train.x.rows.numpy())
        return {"kind": "image", "shape": [self.channels, *(self.size or ())], "mean": mean, "std": std}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the names, contents and classes of all samples, and of how they are decoded."""
        digest = hashlib.sha256(repr(self.scan.files.settings).encode())
        for split in SPLITS:
            samples = self.splits[split]
            for row, label in zip(samples.x.rows.tolist(), samples.y.tolist(), strict=True):
                digest.update(f"{split} {label} ".encode() + os.fsencode(self.scan.files.names[row]))
                digest.update(self.scan.digest[row].tobytes())
        return digest.hexdigest()

    def name(self, split: str, index: int) -> str:
        """The file of a sample, relative to the root."""
        return shown(self.scan.files.names[int(self.splits[split].x.rows[index])])

    def workers(self, samples: Tensors | Sequences) -> int:
        return cores() if self.num_workers == "auto" and not self.cache else super().workers(samples)


def sides(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width. Raises UserError for anything else than one or two positive whole numbers."""
    both = [size, size] if isinstance(size, int) else size
    if both is None:
        return None
    if not isinstance(both, Sequence) or len(both) != 2 or not all(type(n) is int and n > 0 for n in both):
        raise UserError(f"data.size={size} is none; type a side in pixels, or '[height,width]'.")
    return both[0], both[1]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes out until the end, also the end of this process."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=2)  # ranks start together
    except Timeout:
        tell("waiting for another process that looks at the same pictures")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
