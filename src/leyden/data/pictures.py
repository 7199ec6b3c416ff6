"""Pictures on disk: what a first look found out about their files, and how a batch gets them."""

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden.data.datamodule import cores
from leyden.data.decode import decode, pixels, reason
from leyden.data.folders import log_once
from leyden.files import replacing

CHUNK = 256  # pictures that are decoded at once
REPORT_S = 20  # seconds between two lines that say how far it is
log = logging.getLogger(__name__)


class Pictures:
    """N x C x H x W of uint8 on disk: files that are decoded when they are asked for, or `cache`, all of them decoded.

    To `Tensors` it is a tensor: an int gives a picture, other indices a part, and index_select reads a batch. The names
    are one array of bytes, which worker processes share: of a list of texts each would come to hold a copy.
    """

    cache: Path | None = None

    def __init__(self, root: Path, names: list[str], size: tuple[int, int] | None, channels: int, background: str):
        self.root, self.names = str(root), np.array([os.fsencode(name) for name in names])
        self.settings = size, channels, background
        self.shape = len(names), channels, *(size or ())
        self.rows = torch.arange(len(names))  # of the names, that are here

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        return os.fsdecode(self.names[row])

    def path(self, row: int) -> str:
        return os.path.join(self.root, self.name(row))

    def __getitem__(self, index: int | list[int] | Tensor) -> "Tensor | Pictures":
        if isinstance(index, int):
            return self.index_select(0, torch.tensor([index]))[0]
        part = copy(self)
        part.rows = self.rows[index]
        return part

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        rows = self.rows[index]
        if self.cache:
            return self.mapped.index_select(0, rows)
        return torch.stack([decode(self.path(row), *self.settings) for row in rows.tolist()])

    @cached_property
    def mapped(self) -> Tensor:
        """The cache, in memory that all processes share."""
        return torch.from_file(str(self.cache), size=math.prod(self.shape), dtype=torch.uint8).view(self.shape)

    def __getstate__(self) -> dict[str, Any]:  # another process maps the file itself
        return {name: value for name, value in vars(self).items() if name != "mapped"}


class Scan:
    """What is known of each file: `stat`, its size and its time in ns; `digest` of its bytes, zeros where it cannot be
    decoded; `sums`, of the resized picture: the number of pixels, and the sums of each channel's values and squares.
    """

    def __init__(self, files: Pictures):
        self.files, count = files, len(files.names)
        self.stat = np.array([size_and_time(files.path(row)) for row in range(count)])
        self.digest = np.zeros((count, 16), np.uint8)
        self.sums = np.zeros((count, 1 + 2 * files.settings[1]), np.int64)
        self.errors: dict[int, str] = {}

    def update(self, memory: Path) -> None:
        """Take over what is remembered of files that have not changed; look at the others, and remember that, too."""
        if memory.exists():
            try:
                self.recall(memory)
            except Exception as error:  # a damaged archive has errors of many kinds
                log.warning("%s is damaged (%s); the pictures are looked at again.", memory, reason(error))
        rows = np.flatnonzero(~self.digest.any(1)).tolist()
        if not rows:
            return
        log_once("looking at %d pictures of %s", len(rows), self.files.root)
        for _ in in_turn(self.look, rows):
            pass
        with replacing(memory) as part, open(part, "wb") as file:
            np.savez(file, names=self.files.names, stat=self.stat, digest=self.digest, sums=self.sums)

    def recall(self, memory: Path) -> None:
        with np.load(memory) as old:
            _, here, there = np.intersect1d(self.files.names, old["names"], assume_unique=True, return_indices=True)
            same = (self.stat[here] == old["stat"][there]).all(1)
            here, there = here[same], there[same]
            self.digest[here], self.sums[here] = old["digest"][there], old["sums"][there]

    def look(self, row: int) -> None:
        """Note the digest and the sums of a file, or why it cannot be decoded."""
        try:
            raw = Path(self.files.path(row)).read_bytes()
            planes = pixels(raw, *self.files.settings).flatten(1).numpy()
        except Exception as error:  # damaged files have errors of many kinds
            self.errors[row] = reason(error)
            return
        self.digest[row] = np.frombuffer(hashlib.blake2b(raw, digest_size=16).digest(), np.uint8)
        self.sums[row] = planes.shape[1], *planes.sum(1), *np.multiply(planes, planes, dtype=np.uint16).sum(1)

    def moments(self, rows: np.ndarray) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of some pictures, in 0..1."""
        count, *sums = self.sums[rows].sum(0).tolist()
        mean, square = np.array(sums, np.float64).reshape(2, -1) / (count * np.array([[255.0], [255.0**2]]))
        std = np.sqrt((square - mean**2).clip(0))
        return mean.tolist(), np.where(std > 0, std, 1.0).tolist()

    def write_cache(self, memory: Path) -> None:
        """From now on take the pictures from a file beside the memory; those of other contents are deleted."""
        key = hashlib.blake2b(self.files.names.tobytes() + self.digest.tobytes(), digest_size=16).hexdigest()
        path, need = memory.with_name(f"{memory.stem}-{key}.u8"), math.prod(self.files.shape)
        if not (path.is_file() and path.stat().st_size == need):
            log_once("writing %.1f GB of decoded pictures into %s", need / 1e9, memory.parent)
            for old in memory.parent.glob(f"*{memory.stem}-*.u8*"):
                with suppress(OSError):  # runs that have mapped it keep it
                    old.unlink()
            with replacing(path, synced=True) as part, open(part, "wb") as file:
                for x in in_turn(self.decoded, range(len(self.stat))):
                    file.write(x.data)
        self.files.cache = path

    def decoded(self, row: int) -> np.ndarray:
        """A picture; black where it cannot be decoded."""
        if not self.digest[row].any():
            return np.zeros(self.files.shape[1:], np.uint8)
        return self.files[row].numpy()


def size_and_time(path: str) -> tuple[int, int]:
    """Size and time of a file; -1 where there is none, or a link leads nowhere."""
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def in_turn(function: Callable[[int], Any], rows: list[int] | range) -> Iterator[Any]:
    """The function's result for each row; several rows are under way at once, each in a thread with one of torch."""
    started = said = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            for done in range(0, len(rows), CHUNK):
                if time.monotonic() - said > REPORT_S:
                    said = time.monotonic()
                    log.info("decoded %d of %d pictures, %.0f/s", done, len(rows), done / (said - started))
                yield from pool.map(function, rows[done : done + CHUNK])
    finally:
        torch.set_num_threads(threads)
