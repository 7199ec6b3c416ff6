"""A look at each picture before training: which cannot be decoded, what is in them, and what has changed since."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leyden.data.datamodule import cores
from leyden.data.decode import pixels, reason
from leyden.data.pictures import Files, Names

CHUNK = 256  # pictures that are under way at once
PATIENCE = 20  # seconds between two lines that say how far it is
log = logging.getLogger(__name__)


class Scan:
    """What is known of each file: `stat`, its size and its time in ns; `digest` of its bytes, zeros where it is not
    known or cannot be decoded, which `why` says then; `sums`, of the resized picture: the number of pixels, and for
    each channel the sums of its values and of their squares.
    """

    def __init__(self, files: Files):
        self.files, count = files, len(files.names)
        self.stat = np.array([status(files.path(row)) for row in range(count)], np.int64).reshape(count, 2)
        self.digest = np.zeros((count, 16), np.uint8)
        self.sums = np.zeros((count, 1 + 2 * files.settings[1]), np.int64)
        self.why: dict[int, str] = {}

    @property
    def unknown(self) -> np.ndarray:
        return np.flatnonzero(~self.digest.any(1))

    @property
    def key(self) -> str:
        """Of the names and the contents of all files."""
        parts = (self.files.names.text, self.files.names.ends, self.digest)
        return hashlib.blake2b(b"".join(part.tobytes() for part in parts), digest_size=16).hexdigest()

    def look(self, rows: np.ndarray, keep: Callable[[np.ndarray | None], Any] | None = None) -> None:
        """Examine files, several at once; `keep` gets the pixels of each in turn, None where there are none."""
        started = said = time.monotonic()
        with one_thread(), ThreadPoolExecutor(cores()) as pool:
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK].tolist()
                for row, found in zip(chunk, pool.map(self.examine, chunk), strict=True):
                    self.why.pop(row, None)
                    x, self.digest[row], self.sums[row] = found if isinstance(found, tuple) else (None, 0, 0)
                    if not isinstance(found, tuple):
                        self.why[row] = found
                    if keep:
                        keep(x)
                if time.monotonic() - said > PATIENCE:
                    said, done = time.monotonic(), start + len(chunk)
                    log.info("looked at %d of %d pictures, %.0f/s", done, len(rows), done / (said - started))

    def examine(self, row: int) -> tuple[np.ndarray, np.ndarray, list[int]] | str:
        """The pixels, the digest and the sums of a file; or why it cannot be decoded."""
        try:
            with open(self.files.path(row), "rb") as file:
                raw = file.read()
            x = pixels(raw, *self.files.settings).numpy()
        except Exception as error:  # damaged files have errors of many kinds
            return reason(error)
        planes = x.reshape(len(x), -1)
        sums = [planes.shape[1], *planes.sum(1), *np.multiply(planes, planes, dtype=np.uint16).sum(1)]
        return x, np.frombuffer(hashlib.blake2b(raw, digest_size=16).digest(), np.uint8), sums

    def moments(self, rows: np.ndarray) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of some pictures, in 0..1."""
        count, *sums = self.sums[rows].sum(0).tolist()
        mean, square = np.array(sums, np.float64).reshape(2, -1) / (count * np.array([[255.0], [255.0**2]]))
        std = np.sqrt((square - mean**2).clip(0))
        return mean.tolist(), np.where(std > 0, std, 1.0).tolist()

    # memory

    def remember(self, path: Path) -> None:
        beside = path.with_suffix(".part")
        with open(beside, "wb") as file:
            names = self.files.names
            np.savez(file, text=names.text, ends=names.ends, stat=self.stat, digest=self.digest, sums=self.sums)
        os.replace(beside, path)

    def recall(self, path: Path) -> None:
        """Take over what is remembered of files whose size and time have not changed."""
        if not path.exists():
            return
        try:
            with np.load(path) as old:
                names = Names()
                names.text, names.ends, stat, digest, sums = (
                    old[key] for key in ("text", "ends", "stat", "digest", "sums")
                )
        except Exception as error:  # a damaged archive has errors of many kinds
            log.warning("%s is damaged (%s); the pictures are looked at again.", path, reason(error))
            return
        if names == self.files.names:
            here = there = np.arange(len(names))
        else:
            place = {names[row]: row for row in range(len(names))}
            pairs = [(row, place[name]) for row in range(len(self.stat)) if (name := self.files.names[row]) in place]
            here, there = np.array(pairs, np.int64).reshape(-1, 2).T
        same = (self.stat[here] == stat[there]).all(1) & (self.stat[here, 0] >= 0)
        self.digest[here[same]], self.sums[here[same]] = digest[there[same]], sums[there[same]]


def status(path: str) -> tuple[int, int]:
    """Size and time of a file; -1 where there is none, or a link leads nowhere."""
    try:
        found = os.stat(path)
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


@contextmanager
def one_thread() -> Iterator[None]:
    """Let threads of Python work side by side, each with one of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
