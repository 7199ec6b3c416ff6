"""Your own photographs, in a folder for each class: a first look at the files, and how a batch gets them."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ImageColor
from torch import Tensor

from leyden import UserError, listed, require
from leyden.data.datamodule import cores
from leyden.data.decode import ENDINGS, MODES, VERSION, decode, pixels, reason, shown
from leyden.data.folders import Folders, log_once
from leyden.data.samples import Samples
from leyden.files import lock, read_json, replacing

CHUNK = 256  # pictures that are decoded at once


class ImageFolder(Folders):
    """Pictures of C x H x W in uint8; conf/data/image_folder.yaml explains the arguments.

    What is found out about the files is kept in <data_dir>/image_folder, and the cache, too.
    """

    what, endings = "picture", ENDINGS
    known: dict[str, list[Any]]  # of each file, as `look` gives it

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
        whole = size is None and not cache and all(self.transforms.values())
        need = "a side in pixels or '[height,width]'; null needs train_transforms and eval_transforms, and no cache"
        require(two or whole, "data.size", need, size)
        require(channels in MODES, "data.channels", "1 for grey or 3 for colour", channels)
        require(on_bad_file in ("error", "skip"), "data.on_bad_file", "error or skip", on_bad_file)
        ImageColor.getrgb(background)  # ValueError for what is no colour
        self.settings: Any = (tuple(sides) if sides else None), channels, background
        self.on_bad_file, self.cache, self.data_dir = on_bad_file, cache, Path(data_dir)

    @cached_property
    def listing(self) -> dict[str, tuple[list[str], list[int]]]:
        """The files of each split, and the index of the class of each."""
        return {split: self.files(split) for split in self.roots}

    @cached_property
    def pictures(self) -> "Pictures":
        """Those that can be decoded, after a look at the files that are new; `known` is what it found.

        Raises:
            UserError: files cannot be decoded, or there is no place to remember it.
        """
        names = [name for found, _ in self.listing.values() for name in found]
        place = repr((os.path.realpath(self.root), *self.settings, VERSION)).encode("utf-8", "backslashreplace")
        memory = self.data_dir / "image_folder" / f"{hashlib.blake2b(place, digest_size=8).hexdigest()}.json"
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            with lock(memory.with_suffix(".lock")):
                self.known, bad = look(self.root, names, self.settings, memory)
                counts = f"{len(bad)} of {len(names)} pictures in {shown(self.root)}"
                lines = "\n  " + listed((f"{name}: {why}" for name, why in bad.items()), "\n  ")
                if bad and self.on_bad_file == "error":
                    what = "repair or delete them, or type data.on_bad_file=skip"
                    raise UserError(f"{counts} cannot be decoded; {what}:{lines}")
                if bad:
                    log_once("%s are skipped, as they cannot be decoded:%s", counts, lines)
                    self.notes["skipped"] = {"count": len(bad), "files": bad}
                pictures = Pictures(self.root, list(self.known), *self.settings)
                if self.cache:
                    pictures.write_cache(memory, [entry[2] for entry in self.known.values()])
        except OSError as error:
            why = error.strerror or error
            raise UserError(f"{memory.parent} cannot be written ({why}); set data_dir=<folder>.") from error
        return pictures

    def read(self, split: str) -> tuple[Any, Tensor] | None:
        """Raises UserError where a class has no picture left to train on."""
        if split not in self.roots:
            return None
        pictures, places = self.pictures, {name: place for place, name in enumerate(self.known)}
        found = [(places[name], label) for name, label in zip(*self.listing[split], strict=True) if name in places]
        if split == "train" and (lost := set(range(len(self.classes))) - {label for _, label in found}):
            names = [self.classes[index] for index in sorted(lost)]
            raise UserError(f"No picture of the classes {listed(names)} in {shown(self.roots[split])} can be decoded.")
        rows, y = torch.tensor(found, dtype=torch.int64).view(-1, 2).unbind(1)
        return pictures[rows], y

    def facts_of_x(self, train: Samples) -> dict[str, Any]:
        if self.transforms["train"] or self.transforms["val"]:
            try:
                return super().facts_of_x(train)
            except RuntimeError as error:
                raise UserError(f"The transforms of data leave pictures that make no batch: {error}.") from error
        count, *sums = np.array([self.known[train.x.name(index)][3] for index in range(len(train))]).sum(0).tolist()
        mean, square = np.array(sums).reshape(2, -1) / count / [[255], [255**2]]
        std = np.sqrt((square - mean**2).clip(0))
        stds = np.where(std > 0, std, 1.0).tolist()
        return {"kind": "image", "shape": [*train.x.shape[1:]], "mean": mean.tolist(), "std": stds}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the names, contents and classes of all samples, and of how they are decoded."""
        digest = hashlib.sha256(repr(self.settings).encode())
        for split, samples in self.splits.items():
            for index, label in enumerate(samples.y.tolist()):
                name = samples.x.name(index)
                digest.update(f"{split} {name!r} {self.known[name][2]} {label}\n".encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def name(self, split: str, index: int) -> str:
        """The file of a sample, relative to the root."""
        return shown(self.splits[split].x.name(index))

    def workers(self, samples: Samples) -> int:
        return cores() if self.num_workers == "auto" and not self.cache else super().workers(samples)


class Pictures:
    """N x C x H x W of uint8 on disk: files that are decoded when they are asked for, or `cache`, all of them decoded.

    To `Samples` it is a tensor: an int gives a picture, other indices a part, and index_select reads a batch. The names
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
        if self.cache is None:
            return torch.stack([decode(self.path(i), *self.settings) for i in index.tolist()])
        x = torch.empty(len(index), *self.shape[1:], dtype=torch.uint8)
        with open(self.cache, "rb") as file:
            for picture, row in zip(x.numpy(), self.rows[index].tolist(), strict=True):
                file.seek(row * picture.nbytes)
                file.readinto(picture)
        return x

    def write_cache(self, memory: Path, digests: list[str]) -> None:
        """Take them from now on from a file beside the memory; those of other contents are deleted."""
        key = hashlib.blake2b(repr((self.names.tolist(), digests)).encode(), digest_size=16).hexdigest()
        path = memory.with_name(f"{memory.stem}-{key}.u8")
        if not path.exists():
            log_once("writing decoded pictures into %s", path.parent)
            for old in path.parent.glob(f"*{memory.stem}-*.u8*"):
                with suppress(OSError):  # Windows keeps what another run reads
                    old.unlink()
            with replacing(path, synced=True) as part, open(part, "wb") as file:
                for x in in_turn(lambda index: self[index].numpy(), range(len(self))):
                    file.write(x)
        self.cache = path


def look(
    root: Path, names: list[str], settings: Sequence[Any], memory: Path
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """What is known of each file that can be decoded, and why others, by names to be shown, cannot be.

    Known are its size, its time in ns, the digest of its bytes, and of the resized picture the number of pixels and the
    sums of each channel's values and squares. Files that are as `memory` knows them are not looked at again.
    """
    before = read_json(memory)

    def state(name: str) -> list[int]:
        found = os.stat(os.path.join(root, name))
        return [found.st_size, found.st_mtime_ns]

    def look_at(name: str) -> list[Any] | str:
        try:
            now, raw = state(name), Path(root, name).read_bytes()
            planes = pixels(raw, *settings).flatten(1).numpy()
        except Exception as error:  # damaged files have errors of many kinds
            return reason(error)
        squares = np.multiply(planes, planes, dtype=np.uint16)
        sums = [planes.shape[1], *planes.sum(1).tolist(), *squares.sum(1).tolist()]
        return [*now, hashlib.blake2b(raw, digest_size=16).hexdigest(), sums]

    found: dict[str, Any] = {}
    for name in before.keys() & names:
        with suppress(OSError):  # it is gone, or a link leads nowhere
            if before[name][:2] == state(name):
                found[name] = before[name]
    if new := [name for name in names if name not in found]:
        log_once("looking at %d pictures of %s", len(new), root)
        found |= zip(new, in_turn(look_at, new), strict=True)
        with replacing(memory) as part:
            part.write_text(json.dumps({name: entry for name, entry in found.items() if isinstance(entry, list)}))
    known = {name: found[name] for name in names if isinstance(found[name], list)}
    return known, {shown(name): found[name] for name in names if name not in known}


def in_turn(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """The function's result for each item; several are under way at once, each in a thread with one of torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            for done in range(0, len(items), CHUNK):
                yield from pool.map(function, items[done : done + CHUNK])
    finally:
        torch.set_num_threads(threads)
