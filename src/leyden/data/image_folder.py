"""Your own photographs, in a folder for each class."""

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from PIL import ImageColor
from torch import Tensor

from leyden import UserError, require
from leyden.data.datamodule import cores
from leyden.data.decode import ENDINGS, MODES, VERSION, shown
from leyden.data.folders import Folders, log_once
from leyden.data.pictures import Pictures, look
from leyden.data.samples import Sequences, Tensors


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
        self.size = (sides[0], sides[1]) if sides else None
        self.channels, self.background = channels, background
        self.on_bad_file, self.cache, self.data_dir = on_bad_file, cache, Path(data_dir)

    @cached_property
    def listing(self) -> dict[str, tuple[list[str], list[int]]]:
        """The files of each split, and the index of the class of each."""
        return {split: self.files(split) for split in self.roots}

    @cached_property
    def pictures(self) -> Pictures:
        """Those that can be decoded, after a look at the files that are new; `known` is what it found.

        Raises:
            UserError: files cannot be decoded, or there is no place to remember it.
        """
        names = [name for found, _ in self.listing.values() for name in found]
        settings = self.size, self.channels, self.background
        place = repr((os.path.realpath(self.root), *settings, VERSION)).encode("utf-8", "backslashreplace")
        memory = self.data_dir / "image_folder" / f"{hashlib.blake2b(place, digest_size=8).hexdigest()}.json"
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(memory.with_suffix(".lock")):
                self.known, bad = look(self.root, names, settings, memory)
                self.judge({shown(name): why for name, why in bad.items()}, len(names))
                pictures = Pictures(self.root, list(self.known), *settings)
                if self.cache:
                    pictures.write_cache(memory, [entry[2] for entry in self.known.values()])
        except OSError as error:
            why = error.strerror or error
            raise UserError(f"{memory.parent} cannot be written ({why}); set data_dir=<folder>.") from error
        return pictures

    def judge(self, bad: dict[str, str], count: int) -> None:
        """Stop at files that cannot be decoded, or note them."""
        counts, lines = f"{len(bad)} of {count} pictures", "".join(f"\n  {name}: {why}" for name, why in bad.items())
        if bad and self.on_bad_file == "error":
            what = "repair or delete them, or type data.on_bad_file=skip"
            raise UserError(f"{counts} in {shown(self.root)} cannot be decoded; {what}:{lines}")
        if bad:
            log_once("%s are skipped, as they cannot be decoded:%s", counts, lines)
            self.notes["skipped"] = {"count": len(bad), "files": bad}

    def read(self, split: str) -> tuple[Any, Tensor] | None:
        """Raises UserError where a class has no picture left to train on."""
        if split not in self.roots:
            return None
        pictures, places = self.pictures, {name: place for place, name in enumerate(self.known)}
        found = [(places[name], label) for name, label in zip(*self.listing[split], strict=True) if name in places]
        if split == "train" and (lost := set(range(len(self.classes))) - {label for _, label in found}):
            names = [self.classes[index] for index in sorted(lost)]
            raise UserError(f"No picture of the classes {names} in {shown(self.roots[split])} can be decoded.")
        rows, y = torch.tensor(found, dtype=torch.int64).view(-1, 2).unbind(1)
        return pictures[rows], y

    def facts_of_x(self, train: Tensors | Sequences) -> dict[str, Any]:
        if self.transforms["train"] or self.transforms["val"]:
            try:
                return super().facts_of_x(train)
            except RuntimeError as error:
                raise UserError(f"The transforms of data leave pictures that make no batch: {error}.") from error
        count, *sums = np.array([self.known[train.x.name(index)][3] for index in range(len(train))]).sum(0).tolist()
        mean, square = np.array(sums).reshape(2, -1) / count / [[255], [255**2]]
        std = np.sqrt((square - mean**2).clip(0))
        shape, stds = [self.channels, *(self.size or ())], np.where(std > 0, std, 1.0).tolist()
        return {"kind": "image", "shape": shape, "mean": mean.tolist(), "std": stds}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the names, contents and classes of all samples, and of how they are decoded."""
        digest = hashlib.sha256(repr(self.pictures.settings).encode())
        for split, samples in self.splits.items():
            for index, label in enumerate(samples.y.tolist()):
                name = samples.x.name(index)
                digest.update(f"{split} {name!r} {self.known[name][2]} {label}\n".encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def name(self, split: str, index: int) -> str:
        """The file of a sample, relative to the root."""
        return shown(self.splits[split].x.name(index))

    def workers(self, samples: Tensors | Sequences) -> int:
        return cores() if self.num_workers == "auto" and not self.cache else super().workers(samples)
