"""Pictures on disk: what a first look found out about their files, and how a batch gets them."""

import hashlib
import logging
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden import UserError
from leyden.data.datamodule import cores
from leyden.data.decode import decode, pixels, reason
from leyden.data.folders import log_once

CHUNK = 256  # pictures that are decoded at once
REPORT_S = 20  # seconds between two lines that say how far it is
log = logging.getLogger(__name__)


class Files:
    """The pictures of a folder, decoded when they are asked for by their rows.

    The names are one array of bytes: worker processes share it, and of a list of texts each would come to hold a copy.
    """

    def __init__(self, root: Path, names: list[str], size: tuple[int, int] | None, channels: int, background: str):
        self.root, self.names = str(root), np.array([os.fsencode(name) for name in names])
        self.settings = size, channels, background

    def name(self, row: int) -> str:
        return os.fsdecode(self.names[row])

    def path(self, row: int) -> str:
        return os.path.join(self.root, self.name(row))

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Some of them, decoded; of one size, or it is a RuntimeError."""
        return torch.stack([decode(self.path(row), *self.settings) for row in rows.tolist()])


class Cache:
    """The same pictures decoded, in one file that all processes map into their memory and share."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self.path, self.shape = path, shape
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch asks for memory that may be written, of which there is less
            self.pictures = torch.from_numpy(np.memmap(path, np.uint8, "r", shape=shape))

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.pictures.index_select(0, rows)

    def __reduce__(self) -> tuple[type, tuple]:
        return Cache, (self.path, self.shape)  # another process maps the file itself


class Pictures:
    """N x C x H x W of uint8 that stay on disk: those of a source, Files or a Cache, that stand in its rows.

    To `Tensors` it is a tensor: an int gives a picture, other indices a part, and index_select reads a batch.
    """

    def __init__(self, source: Files | Cache, rows: Tensor):
        self.source, self.rows = source, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | list[int] | Tensor) -> "Tensor | Pictures":
        if isinstance(index, int):
            return self.source[self.rows[index : index + 1]][0]
        return Pictures(self.source, self.rows[index])

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return self.source[self.rows[index]]


class Scan:
    """What is known of each file: `stat`, its size and its time in ns; `digest` of its bytes, zeros where it cannot be
    decoded; `sums`, of the resized picture: the number of pixels, and the sums of each channel's values and squares.
    """

    def __init__(self, files: Files):
        self.files, count = files, len(files.names)
        self.stat = np.array([size_and_time(files.path(row)) for row in range(count)], np.int64)
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
        for row, found in zip(rows, in_turn(self.look, rows), strict=True):
            if isinstance(found, str):
                self.errors[row] = found
            else:
                self.digest[row], self.sums[row] = found
        part = memory.with_suffix(".part")
        with open(part, "wb") as file:
            np.savez(file, names=self.files.names, stat=self.stat, digest=self.digest, sums=self.sums)
        os.replace(part, memory)

    def recall(self, memory: Path) -> None:
        with np.load(memory) as old:
            _, here, there = np.intersect1d(self.files.names, old["names"], assume_unique=True, return_indices=True)
            same = (self.stat[here] == old["stat"][there]).all(1)
            here, there = here[same], there[same]
            self.digest[here], self.sums[here] = old["digest"][there], old["sums"][there]

    def look(self, row: int) -> tuple[np.ndarray, list[int]] | str:
        """The digest and the sums of a file; or why it cannot be decoded."""
        try:
            with open(self.files.path(row), "rb") as file:
                raw = file.read()
            planes = pixels(raw, *self.files.settings).flatten(1).numpy()
        except Exception as error:  # damaged files have errors of many kinds
            return reason(error)
        sums = [planes.shape[1], *planes.sum(1), *np.multiply(planes, planes, dtype=np.uint16).sum(1)]
        return np.frombuffer(hashlib.blake2b(raw, digest_size=16).digest(), np.uint8), sums

    def moments(self, rows: np.ndarray) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of some pictures, in 0..1."""
        count, *sums = self.sums[rows].sum(0).tolist()
        mean, square = np.array(sums, np.float64).reshape(2, -1) / (count * np.array([[255.0], [255.0**2]]))
        std = np.sqrt((square - mean**2).clip(0))
        return mean.tolist(), np.where(std > 0, std, 1.0).tolist()

    def cached(self, memory: Path) -> Cache:
        """The cache of these files beside the memory; written if it is not there, and those of other contents deleted.

        Raises:
            UserError: the disk has no room for it.
        """
        height, width = self.files.settings[0] or (0, 0)
        shape = len(self.stat), self.files.settings[1], height, width
        key = hashlib.blake2b(self.files.names.tobytes() + self.digest.tobytes(), digest_size=16).hexdigest()
        path, need = memory.with_name(f"{memory.stem}-{key}.u8"), math.prod(shape)
        if path.is_file() and path.stat().st_size == need:
            return Cache(path, shape)
        part = memory.with_suffix(".u8.part")
        part.unlink(missing_ok=True)  # of a writer that was killed
        if (free := shutil.disk_usage(part.parent).free) < need:
            raise UserError(
                f"data.cache=true needs {need / 1e9:.1f} GB in {part.parent}, but {free / 1e9:.1f} GB are free; "
                "set data_dir=<folder>, a smaller data.size, or data.cache=false."
            )
        log_once("writing %.1f GB of decoded pictures into %s", need / 1e9, part.parent)
        good, blank = self.digest.any(1), np.zeros(shape[1:], np.uint8)

        def decoded(row: int) -> np.ndarray:
            return self.files[torch.tensor([row])].numpy() if good[row] else blank

        try:
            with open(part, "wb") as file:
                for x in in_turn(decoded, range(shape[0])):
                    file.write(x.data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        for old in set(path.parent.glob(f"{memory.stem}-*.u8")) - {path}:
            old.unlink(missing_ok=True)  # runs that have mapped it keep it
        return Cache(path, shape)


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
