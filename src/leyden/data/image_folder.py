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
from leyden.data.pictures import Pictures, Scan
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
        whole = size is None and not cache and self.transforms["train"] and self.transforms["val"]
        need = "a side in pixels or '[height,width]'; null needs train_transforms and eval_transforms, and no cache"
        require(two or whole, "data.size", need, size)
        require(channels in MODES, "data.channels", "1 for grey or 3 for colour", channels)
        require(on_bad_file in ("error", "skip"), "data.on_bad_file", "error or skip", on_bad_file)
        ImageColor.getrgb(background)  # ValueError for what is no colour
        self.size = (sides[0], sides[1]) if sides else None
        self.channels, self.background = channels, background
        self.on_bad_file, self.cache, self.data_dir = on_bad_file, cache, Path(data_dir)

    @cached_property
    def listing(self) -> tuple[list[str], Tensor, dict[str, np.ndarray]]:
        """All files, the class of each, and the rows of each split."""
        names, labels, rows = list[str](), list[int](), {}
        for split in self.roots:
            of_split, classes = self.files(split)
            rows[split] = np.arange(len(names), len(names) + len(of_split))
            names, labels = names + of_split, labels + classes
        return names, torch.tensor(labels), rows

    @cached_property
    def scan(self) -> Scan:
        """What is known of the files, after a look at those that are new; with it comes the cache.

        Raises:
            UserError: files cannot be decoded, or there is no place to remember it.
        """
        scan = Scan(Pictures(self.root, self.listing[0], self.size, self.channels, self.background))
        setting = repr((os.path.realpath(self.root), *scan.files.settings, VERSION)).encode("utf-8", "backslashreplace")
        memory = self.data_dir / "image_folder" / f"{hashlib.blake2b(setting, digest_size=8).hexdigest()}.npz"
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(memory.with_suffix(".lock")):
                scan.update(memory)
                self.judge(scan)
                if self.cache:
                    scan.write_cache(memory)
        except OSError as error:
            why = error.strerror or error
            raise UserError(f"{memory.parent} cannot be written ({why}); set data_dir=<folder>.") from error
        return scan

    def judge(self, scan: Scan) -> None:
        """Stop at files that cannot be decoded, or note them."""
        bad = {shown(scan.files.name(row)): scan.errors[row] for row in sorted(scan.errors)}
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

    def read(self, split: str) -> tuple[Any, Tensor] | None:
        """Raises UserError where a class has no picture left to train on."""
        if split not in self.roots:
            return None
        _, labels, rows = self.listing
        good = torch.from_numpy(rows[split][self.scan.digest[rows[split]].any(1)])
        if split == "train" and (lost := set(range(len(self.classes))) - set(labels[good].tolist())):
            names = [self.classes[index] for index in sorted(lost)]
            raise UserError(f"No picture of the classes {names} in {shown(self.roots[split])} can be decoded.")
        return self.scan.files[good], labels[good]

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
