"""Pictures on disk: what a first look found out about their files, and how a batch gets them."""

import hashlib
import json
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from leyden.files import read_json, replacing

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
        self.rows = torch.arange(len(names))  # those that are here

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return os.fsdecode(self.names[self.rows[index]])

    def path(self, index: int) -> str:
        return os.path.join(self.root, self.name(index))

    def __getitem__(self, index: int | list[int] | Tensor) -> "Tensor | Pictures":
        if isinstance(index, int):
            return self.index_select(0, torch.tensor([index]))[0]
        part = copy(self)
        part.rows = self.rows[index]
        return part

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        if self.cache:
            return self.mapped.index_select(0, self.rows[index])
        return torch.stack([decode(self.path(i), *self.settings) for i in index.tolist()])

    @cached_property
    def mapped(self) -> Tensor:
        """The cache, in memory that all processes share; only to be read, so that it may be larger than the memory."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would rather have what it may write
            return torch.from_numpy(np.memmap(str(self.cache), np.uint8, "r", shape=self.shape))

    def __getstate__(self) -> dict[str, Any]:  # another process maps the file itself
        return {name: value for name, value in vars(self).items() if name != "mapped"}

    def write_cache(self, memory: Path, digests: list[str]) -> None:
        """Take them from now on from a file beside the memory; those of other contents are deleted."""
        key = hashlib.blake2b(repr((self.names.tolist(), digests)).encode(), digest_size=16).hexdigest()
        path, need = memory.with_name(f"{memory.stem}-{key}.u8"), math.prod(self.shape)
        if not (path.is_file() and path.stat().st_size == need):
            log_once("writing %.1f GB of decoded pictures into %s", need / 1e9, path.parent)
            for old in path.parent.glob(f"*{memory.stem}-*.u8*"):
                with suppress(OSError):  # runs that have mapped it keep it
                    old.unlink()
            with replacing(path, synced=True) as part, open(part, "wb") as file:
                for x in in_turn(lambda index: self[index].numpy().data, range(len(self))):
                    file.write(x)
        self.cache = path


def look(
    root: Path, names: list[str], settings: Sequence[Any], memory: Path
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """What is known of each file that can be decoded, and why others cannot be.

    Known are its size, its time in ns, the digest of its bytes, and of the resized picture the number of pixels and the
    sums of each channel's values and squares. Files that are as `memory` knows them are not looked at again.
    """
    before, known, bad = read_json(memory), dict[str, list[Any]](), dict[str, str]()

    def unchanged(name: str) -> bool:
        with suppress(OSError):  # it is gone, or a link leads nowhere
            found = os.stat(os.path.join(root, name))
            return before[name][:2] == [found.st_size, found.st_mtime_ns]
        return False

    def look_at(name: str) -> None:
        try:
            found, raw = os.stat(os.path.join(root, name)), Path(root, name).read_bytes()
            planes = pixels(raw, *settings).flatten(1).numpy()
        except Exception as error:  # damaged files have errors of many kinds
            bad[name] = reason(error)
            return
        squares = np.multiply(planes, planes, dtype=np.uint16)
        sums = [planes.shape[1], *planes.sum(1).tolist(), *squares.sum(1).tolist()]
        digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
        known[name] = [found.st_size, found.st_mtime_ns, digest, sums]

    known |= {name: before[name] for name in names if name in before and unchanged(name)}
    if new := [name for name in names if name not in known]:
        log_once("looking at %d pictures of %s", len(new), root)
        for _ in in_turn(look_at, new):
            pass
        with replacing(memory) as part:
            part.write_text(json.dumps(known))
    return {name: known[name] for name in names if name in known}, {name: bad[name] for name in names if name in bad}


def in_turn(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """The function's result for each item; several are under way at once, each in a thread with one of torch."""
    started = said = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            for done in range(0, len(items), CHUNK):
                if time.monotonic() - said > REPORT_S:
                    said = time.monotonic()
                    log.info("decoded %d of %d pictures, %.0f/s", done, len(items), done / (said - started))
                yield from pool.map(function, items[done : done + CHUNK])
    finally:
        torch.set_num_threads(threads)
