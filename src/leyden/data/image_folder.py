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
from leyden.data.datamodule import SPLITS, cores
from leyden.data.decode import ENDINGS, MODES, VERSION, shown
from leyden.data.folders import Folders, log_once
from leyden.data.pictures import Cache, Files, Pictures, Scan
from leyden.data.samples import Sequences, Tensors


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
        sides = [size, size] if isinstance(size, int) else size
        two = isinstance(sides, Sequence) and len(sides) == 2 and all(type(n) is int and n > 0 for n in sides)
        require(two or sides is None, "data.size", "a side in pixels, '[height,width]' or null", size)
        require(channels in MODES, "data.channels", "1 for grey or 3 for colour", channels)
        require(on_bad_file in ("error", "skip"), "data.on_bad_file", "error or skip", on_bad_file)
        try:
            ImageColor.getrgb(str(background))
        except ValueError:
            require(False, "data.background", "a colour's name, such as white, or '#rrggbb'", background)
        self.size = (sides[0], sides[1]) if sides else None
        self.channels, self.background = channels, background
        self.on_bad_file, self.cache, self.data_dir = on_bad_file, cache, Path(data_dir)
        if size is None and (cache or not (self.transforms["train"] and self.transforms["val"])):
            raise UserError(
                "data.size=null needs train_transforms and eval_transforms that resize, and data.cache=false; "
                "set data.size=224."
            )

    @cached_property
    def listing(self) -> tuple[Files, Tensor, dict[str, np.ndarray]]:
        """All files, the class of each, and the rows of each split."""
        names: list[str] = []
        labels: list[int] = []
        rows = {}
        for split in self.roots:
            of_split, classes = self.files(split)
            rows[split] = np.arange(len(names), len(names) + len(of_split))
            names, labels = names + of_split, labels + classes
        return Files(self.root, names, self.size, self.channels, self.background), torch.tensor(labels), rows

    @cached_property
    def scan(self) -> Scan:
        """What is known of the files, after a look at those that are new; with it comes the cache.

        Raises:
            UserError: files cannot be decoded, or there is no place to remember it.
        """
        scan = Scan(self.listing[0])
        setting = (os.path.realpath(self.root), self.size, self.channels, self.background, VERSION)
        name = hashlib.blake2b(repr(setting).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        memory = self.data_dir / "image_folder" / f"{name}.npz"
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(memory.with_suffix(".lock")):
                scan.update(memory)
                self.judge(scan)
                self.source: Files | Cache = scan.cached(memory) if self.cache else scan.files
        except OSError as error:
            raise UserError(
                f"{memory.parent} cannot be written ({error.strerror or error}); set data_dir=<folder>."
            ) from error
        return scan

    def judge(self, scan: Scan) -> None:
        """Stop at files that cannot be decoded, or note them."""
        bad = {shown(scan.files.name(row)): why for row, why in scan.errors.items()}
        counts = f"{len(bad)} of {len(scan.stat)} pictures"
        lines = "".join(f"\n  {name}: {why}" for name, why in bad.items())
        if bad and self.on_bad_file == "error":
            raise UserError(
                f"{counts} in {shown(self.root)} cannot be decoded; repair or delete them, or type "
                f"data.on_bad_file=skip:{lines}"
            )
        if bad:
            log_once("%s are skipped, as they cannot be decoded:%s", counts, lines)
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
            rows, y = self.splits[split].x.rows.numpy(), self.splits[split].y.numpy()
            digest.update(f"{split} {len(rows)}".encode())
            for part in self.scan.files.names[rows], self.scan.digest[rows], y:
                digest.update(part.tobytes())
        return digest.hexdigest()

    def name(self, split: str, index: int) -> str:
        """The file of a sample, relative to the root."""
        return shown(self.scan.files.name(int(self.splits[split].x.rows[index])))

    def workers(self, samples: Tensors | Sequences) -> int:
        return cores() if self.num_workers == "auto" and not self.cache else super().workers(samples)
