"""Your own arrays: .npy files, which may be larger than memory, or a .npz file."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden import UserError, require, said
from leyden.data.datamodule import DataModule
from leyden.data.folders import log_once, natural, remembered, state
from leyden.data.samples import OnDisk, Samples, moments

NAMES = "x", "y", "lengths"
LAYOUTS = "NF", "NHW", "NTF", "NHWC", "NCHW"  # a letter for each dimension
CHUNK, MAPPED = 2**25, 2**28  # bytes looked at together; read before a new mapping frees memory


class Arrays(DataModule):
    """Images, rows, or sequences, and their targets; conf/data/arrays.yaml explains the arguments."""

    def __init__(self, path: str | Path, layout: str = "auto", data_dir: str | Path = "data", **loader: Any):
        super().__init__(**loader)
        self.path, self.layout, self.data_dir = Path(path).expanduser(), layout, Path(data_dir)
        good = self.path.is_dir() or self.path.suffix == ".npz"
        require(good, "data.path", "a folder with x.npy and y.npy, or a .npz file", path)
        require(layout in ("auto", *LAYOUTS), "data.layout", f"auto or one of {', '.join(LAYOUTS)}", layout)

    def read(self, split: str) -> tuple["Mapped", Tensor] | None:
        prefix = "" if split == "train" and load(self.path, "train_x") is None else f"{split}_"
        values, y, lengths = (load(self.path, prefix + name) for name in NAMES)
        if values is None and split != "train":
            return None
        if values is None or y is None:
            raise UserError(f"{self.path} must hold {prefix}x and {prefix}y.")
        x = Mapped(self.path, f"{prefix}x", values, self.layout, lengths)
        log_once("%s of %s: %s of %s, as %s", x.name, self.path, values.dtype, [*values.shape], x.layout)
        return x, self.targets(f"{prefix}y of {self.path}", y)

    def targets(self, what: str, y: np.ndarray) -> Tensor:
        """Floats, or the places in `classes` of whole numbers and texts."""
        y = y[:, 0] if y.shape[1:] == (1,) else y
        if y.dtype.kind == "f" and y.ndim in (1, 2) and np.isfinite(y).all():
            close = abs(y).max() > 2**16 * y.std()  # float32 would round too much
            return torch.from_numpy(y.astype(np.float64 if close else np.float32))
        if y.dtype.kind not in "biuUS" or y.ndim != 1:
            raise UserError(f"{what} must hold N whole numbers, texts or finite floats; got {y.dtype} of {[*y.shape]}.")

        values, places = np.unique(y, return_inverse=True)
        names = values.astype(str).tolist()
        self.classes = self.classes or sorted(names, key=natural)
        if strange := sorted(set(names) - set(self.classes)):
            raise UserError(f"{what} has the classes {strange} that train does not have.")
        return torch.tensor([self.classes.index(name) for name in names])[torch.from_numpy(places)]

    @cached_property
    def known(self) -> dict:
        """Digests, and mean and std of train, kept in <data_dir>."""
        files = [file for file in sorted(self.path.glob("*.npy")) if file.stem.split("_")[-1] in NAMES] or [self.path]
        train, states = self.splits["train"].x, [(file.name, *state(file)) for file in files]
        key = str(self.path.resolve()), states, self.layout, hashlib.sha256(train.rows.numpy()).hexdigest()
        with remembered(self.data_dir, "arrays", *key) as (_, known):
            if not known:
                log_once("reading all of %s once, for mean, std and fingerprint", self.path)
                known["mean"], known["std"] = moments(train.parts())
                known["digests"] = []
                for file in files:
                    with file.open("rb") as content:
                        known["digests"].append(hashlib.file_digest(content, "sha256").hexdigest())
        return known

    def moments(self, train: Samples) -> tuple[list[float], list[float]]:
        mean, std = self.known["mean"], self.known["std"]
        if any(abs(middle) > 2**16 * apart for middle, apart in zip(mean, std, strict=True)):
            log_once("x of %s: float32 rounds it; subtract the mean first", self.path)
        return mean, std

    def contents(self, samples: Samples) -> Iterator:
        yield repr(self.known["digests"]).encode()
        yield samples.x.rows.numpy()


class Mapped(OnDisk):
    """An array of a file, mapped into memory: pictures as C x H x W of uint8 or float32, all else as float32.

    What was read long ago does not stay in memory. Sequences have `lengths`, N.

    Raises:
        UserError: it holds no numbers, or its shape or the lengths do not fit the layout.
    """

    steps: Tensor | None = None  # of each sequence of the file

    def __init__(self, path: Path, name: str, values: np.ndarray, layout: str, lengths: np.ndarray | None):
        self.path, self.name, self.values, self.touched = path, name, values, 0
        if layout == "auto":
            pictures = "NHWC" if values.ndim == 4 and values.shape[3] < values.shape[1] else "NCHW"
            layout = {2: "NF", 3: "NHW" if lengths is None else "NTF"}.get(values.ndim, pictures)
        if values.dtype.kind not in "buif" or values.ndim != len(layout):
            what = f"numbers of {' x '.join(layout)}; got {values.dtype} of {[*values.shape]}"
            raise UserError(f"{name} of {path} must hold {what}; see data.layout.")

        sizes, picture = dict(zip(layout, values.shape, strict=True)), "H" in layout
        shape = [sizes.get(axis, 1) for axis in ("NCHW" if picture else layout)]
        super().__init__(shape, torch.uint8 if picture and values.dtype == np.uint8 else torch.float32)
        self.layout, self.row_bytes = layout, values[:1].nbytes or 1

        if layout == "NTF":
            steps = np.full(len(values), sizes["T"]) if lengths is None else lengths
            if not are_lengths(steps, len(values), sizes["T"]):
                raise UserError(f"lengths of {name} in {path} must hold N numbers from 1 to T, {sizes['T']}.")
            self.steps = torch.from_numpy(steps.astype(np.int64))

    @property
    def lengths(self) -> Tensor | None:
        return None if self.steps is None else self.steps[self.rows]

    def __getstate__(self) -> dict:
        return self.__dict__ | ({"values": None} if isinstance(self.values, np.memmap) else {})

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found[: self.steps[self.rows[index]]] if self.steps is not None and isinstance(index, int) else found

    def read(self, rows: Tensor) -> Tensor:
        if self.values is None or (isinstance(self.values, np.memmap) and self.touched > MAPPED):
            self.values, self.touched = load(self.path, self.name), 0
        self.touched += len(rows) * self.row_bytes
        x = torch.from_numpy(np.take(self.values, rows.numpy(), 0).astype(str(self.dtype)[6:], copy=False))
        return x[:, None] if self.layout == "NHW" else x.movedim(-1, 1).contiguous() if self.layout == "NHWC" else x

    def parts(self) -> Iterator[Tensor]:
        """All samples, or steps, part by part; UserError for NaN or infinity."""
        for rows in self.rows.split(max(1, CHUNK // self.row_bytes)):
            part = self.read(rows)
            if self.steps is not None:
                part = part[torch.arange(self.shape[1]) < self.steps[rows, None]]
                rows = rows.repeat_interleave(self.steps[rows])  # of each step
            if len(bad := rows[~part.flatten(1).isfinite().all(1)]):
                raise UserError(f"{self.name} of {self.path} holds NaN or infinity in sample {bad[0]}.")
            yield part


def are_lengths(steps: np.ndarray, count: int, most: int) -> bool:
    """Whether these are `count` whole numbers from 1 to `most`."""
    return steps.shape == (count,) and bool(np.isin(steps, np.arange(1, most + 1)).all())


def load(path: Path, name: str) -> Any:
    """An array of a folder, mapped into memory, or of a .npz file; None where it is not there."""
    try:
        if not path.is_dir():
            with np.load(path) as archive:
                return archive.get(name)
        file = path / f"{name}.npy"
        return np.load(file, mmap_mode="r") if file.exists() else None
    except Exception as error:  # of many kinds
        how = "save texts by .astype(str), sequences padded, with lengths.npy"
        raise UserError(f"{name} of {path} cannot be read ({said(error)}); {how}.") from error
