"""Your own photographs, in a folder for each class."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden import UserError, listed, require
from leyden.data.datamodule import cores
from leyden.data.decode import ENDINGS, MODES, decode
from leyden.data.folders import Folders, log_once, remembered, state
from leyden.data.samples import OnDisk, Samples
from leyden.files import replacing

CHUNK = 256


class ImageFolder(Folders):
    """Pictures of C x H x W in uint8; conf/data/image_folder.yaml explains the arguments."""

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
        sides = [size, size] if isinstance(size, int) else size
        two = isinstance(sides, Sequence) and len(sides) == 2 and all(type(n) is int and n > 0 for n in sides)
        own = size is None and not cache and all(self.transforms.values())
        need = "a side in pixels or '[height,width]'; null needs transforms of train and eval, and no cache"
        require(two or own, "data.size", need, size)
        require(channels in MODES, "data.channels", "1 for grey or 3 for colour", channels)
        require(on_bad_file in ("error", "skip"), "data.on_bad_file", "error or skip", on_bad_file)

        self.settings: Any = sides and tuple(sides), channels, background
        self.skip, self.cache, self.data_dir = on_bad_file == "skip", cache, Path(data_dir)
        self.known, self.bad = dict[str, Any](), dict[str, str]()

    def read(self, split: str) -> tuple["Pictures", Tensor] | None:
        """The pictures that can be decoded, after a look at new files; UserError for others, or a skip."""
        if split not in self.roots:
            return None
        (names, labels), root = self.listing[split], self.roots[split]
        with remembered(self.data_dir, "image_folder", os.path.realpath(root), *self.settings) as (memory, known):
            if new := [name for name in names if name not in known or known[name][:2] != state(self.root / name)]:
                log_once("looking at %d pictures of %s", len(new), root)
                known |= zip(new, in_turn(self.look, new), strict=True)

            good = [row for row, name in enumerate(names) if isinstance(known[name], list)]
            bad = {name: known[name] for name in names if isinstance(known[name], str)}
            pictures = Pictures(self.root, [names[row] for row in good], *self.settings)
            if self.cache and (self.skip or not bad):
                pictures.write_cache(memory, [known[names[row]][2] for row in good])

        if bad:
            then = "skipped" if self.skip else "repair or delete them, or type data.on_bad_file=skip"
            what = f"{len(bad)} of {len(names)} pictures in {root} cannot be decoded; {then}:\n  "
            what += listed((f"{name}: {why}" for name, why in bad.items()), "\n  ")
            if not self.skip:
                raise UserError(what)
            log_once("%s", what)
            self.bad |= bad
            self.notes["skipped"] = {"count": len(self.bad), "files": self.bad}
        self.known |= known
        return pictures, torch.tensor(labels)[good]

    def look(self, name: str) -> list | str:
        """State and digest of a file, with the sums of its pixels and of their squares by channel.

        Where it cannot be decoded, the reason as a text.
        """
        file = self.root / name
        try:
            planes = decode(file, *self.settings).flatten(1).numpy()
        except UserError as error:
            return str(error).partition(" cannot be decoded: ")[2].rstrip(".")

        squares = np.multiply(planes, planes, dtype=np.uint16)
        sums = [planes.shape[1], *planes.sum(1).tolist(), *squares.sum(1).tolist()]
        return [*state(file), hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest(), sums]

    def moments(self, train: Samples) -> tuple[list[float], list[float]]:
        count, *sums = np.array([self.known[name][3] for name in train.x.files(train.x.rows)]).sum(0).tolist()
        mean, square = np.array(sums).reshape(2, -1) / count / [[255], [255**2]]
        std = np.sqrt((square - mean**2).clip(0))
        return mean.tolist(), np.where(std > 0, std, 1.0).tolist()

    def contents(self, samples: Samples) -> Iterator:
        names = samples.x.files(samples.x.rows)
        yield repr((self.settings, names, [self.known[name][2] for name in names], samples.y.tolist())).encode()


class Pictures(OnDisk):
    """N x C x H x W of uint8: files that are decoded when asked for, or a `cache` of all.

    The names are one array of bytes, which worker processes share; of a list each would come to hold a copy.
    """

    cache: Path | None = None
    slow = True

    def __init__(self, root: Path, names: list[str], size: tuple[int, int] | None, channels: int, background: str):
        super().__init__((len(names), channels, *(size or ())))
        self.root, self.names = str(root), np.array([os.fsencode(name) for name in names])
        self.settings = size, channels, background

    def files(self, rows: Tensor) -> list[str]:
        """Of pictures, relative to the root."""
        return [os.fsdecode(name) for name in self.names[rows.numpy()]]

    def read(self, rows: Tensor) -> Tensor:
        if self.cache:
            return torch.from_numpy(np.memmap(self.cache, np.uint8, "r", shape=self.shape)[rows.numpy()])
        return torch.stack([decode(os.path.join(self.root, file), *self.settings) for file in self.files(rows)])

    def write_cache(self, memory: Path, digests: list[str]) -> None:
        """Take them from now on from a file; older ones are deleted."""
        key = hashlib.blake2b(repr((self.names.tolist(), digests)).encode(), digest_size=16).hexdigest()
        path = memory.with_name(f"{memory.stem}-{key}.u8")
        if not path.exists():
            for old in path.parent.glob(f"*{memory.stem}-*.u8*"):
                old.unlink()
            with replacing(path, synced=True) as part, open(part, "wb") as file:
                file.writelines(in_turn(lambda index: self[index].numpy(), range(len(self))))
        self.cache, self.slow = path, False


def in_turn(function: Callable, items: Sequence) -> Iterator:
    """The function's result for each item, by threads with one of torch each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            for done in range(0, len(items), CHUNK):
                yield from pool.map(function, items[done : done + CHUNK])
    finally:
        torch.set_num_threads(threads)
