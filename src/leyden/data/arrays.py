"""Your own arrays: .npy files, which are mapped into memory and may be larger than it, or a .npz file."""

import hashlib
import math
import os
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden import UserError, require, said
from leyden.data.datamodule import DataModule
from leyden.data.folders import log_once, natural, remembering
from leyden.data.samples import OnDisk, Samples, moments
from leyden.files import read_json, write_json

LAYOUTS = {"NF": 2, "NHW": 3, "NTF": 3, "NHWC": 4, "NCHW": 4}  # and their dimensions
CHUNK = 2**25  # bytes that are looked at together
LARGE, MAPPED = 2**14, 128  # bytes of a large sample; large ones after which a file is mapped anew, which frees memory


class Arrays(DataModule):
    """Images, tables of numbers, or sequences, and their targets; conf/data/arrays.yaml explains the arguments.

    What one pass over the files finds out, mean, std and digests, is kept in <data_dir>/arrays.
    """

    def __init__(self, path: str | Path, layout: str = "auto", data_dir: str | Path = "data", **loader: Any):
        super().__init__(**loader)
        self.path, self.layout, self.data_dir = Path(path).expanduser(), layout, Path(data_dir)
        there = self.path.is_dir() or (self.path.is_file() and self.path.suffix == ".npz")
        require(there, "data.path", "a folder with x.npy and y.npy, or a .npz file of x and y", path)
        require(layout in ("auto", *LAYOUTS), "data.layout", f"auto or one of {', '.join(LAYOUTS)}", layout)

    def read(self, split: str) -> tuple["Mapped", Tensor] | None:
        prefix = "" if split == "train" and load(self.path, "train_x") is None else f"{split}_"
        names = [f"{prefix}{name}" for name in ("x", "y", "lengths")]
        values, y, lengths = (load(self.path, name) for name in names)
        if values is None and split != "train":
            return None
        if values is None or y is None:
            raise UserError(f"{self.path} must hold {names[0]} and {names[1]}, as .npy files or in a .npz file.")
        x = Mapped(self.path, names[0], values, self.layout, lengths)
        log_once("%s of %s: %s of %s, as %s", names[0], self.path, values.dtype, list(values.shape), x.layout)
        return x, self.targets(names[1], y)

    def targets(self, name: str, y: np.ndarray) -> Tensor:
        """Class indices of whole numbers and texts, with their names in `classes`; floats are targets of regression."""
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        numbers = y.dtype.kind == "f" and y.ndim in (1, 2)
        if numbers and np.isfinite(y).all():
            exact = torch.from_numpy(y.astype(np.float64))
            close = len(exact) > 1 and exact.abs().max() > 2**16 * exact.std()  # float32 would round too much
            return exact if close else exact.float()
        if numbers or y.dtype.kind not in "biuUS" or y.ndim != 1:
            what = "N whole numbers or texts, which are classes, or finite floats of N or N x K"
            raise UserError(f"{name} of {self.path} must hold {what}; got {y.dtype} of {list(y.shape)}.")
        y = y.astype(str) if y.dtype.kind == "S" else y
        values = np.unique(y)
        found = list(map(str, values))
        if self.classes is None:
            self.classes = sorted(found, key=natural) if y.dtype.kind in "US" else found
        if strange := sorted(set(found).difference(self.classes)):
            raise UserError(f"{name} of {self.path} has the classes {strange} that train does not have.")
        index = torch.tensor([self.classes.index(label) for label in found])
        return index[torch.from_numpy(np.searchsorted(values, y))]

    # what a pass over the files says

    @cached_property
    def known(self) -> dict[str, Any]:
        """The `digests` of the x of all splits, and `mean` and `std` of the training samples."""
        files = sorted(self.path.glob("*.npy")) if self.path.is_dir() else [self.path]
        states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        rows = hashlib.sha256(self.splits["train"].x.rows.numpy().data).hexdigest()
        with remembering(self.data_dir, "arrays", os.path.realpath(self.path), states, self.layout, rows) as memory:
            if not (known := read_json(memory)):
                known["digests"] = digests = dict[str, str]()
                known["mean"], known["std"] = moments(self.parts(digests))
                write_json(memory, known)
        return known

    def parts(self, digests: dict[str, str]) -> Iterator[Tensor]:
        """The training samples, of sequences their steps, in parts, as digests are made; UserError if not finite."""
        start = time.monotonic()
        for split, x in ((split, samples.x) for split, samples in self.splits.items() if samples.x.name not in digests):
            digest, chosen = hashlib.sha256(), torch.zeros(x.shape[0], dtype=torch.bool).index_fill(0, x.rows, True)
            for rows in torch.arange(x.shape[0]).split(max(1, CHUNK // x.row_bytes)):
                part = x.read(rows)
                digest.update(part.numpy().data)
                if time.monotonic() - start > 5:
                    log_once("reading all of %s, for mean, std and fingerprint, which are kept", self.path)
                    start = math.inf
                if split == "train":
                    part, rows = part[chosen[rows]], rows[chosen[rows]]
                    if x.steps is not None:
                        part = part.masked_fill(~x.inside(rows)[:, :, None], 0)
                    for row in rows[~part.flatten(1).isfinite().all(1)].tolist():
                        raise UserError(f"{x.name} of {self.path} holds NaN or infinity in sample {row}; leave it out.")
                    yield part if x.steps is None else part[x.inside(rows)]
            digests[x.name] = digest.hexdigest()

    def moments(self, train: Samples) -> tuple[list[float], list[float]]:
        mean, std = self.known["mean"], self.known["std"]
        if any(abs(middle) > 2**16 * apart for middle, apart in zip(mean, std, strict=True)):
            log_once("x of %s has a mean far above its std: float32 rounds it; subtract the mean first", self.path)
        return mean, std

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the files' digests, and of the rows, targets and lengths of each split."""
        digest = hashlib.sha256(repr(self.known["digests"]).encode())
        for samples in self.splits.values():
            for part in (samples.x.rows, samples.y, *([] if samples.lengths is None else [samples.lengths])):
                digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


class Mapped(OnDisk):
    """An array of a file, which is mapped into memory; of large samples only the last ones stay there.

    Pictures are given as C x H x W; all but their uint8 is given as float32. Sequences have `lengths`, N.

    Raises:
        UserError: it holds no numbers, or its shape or the lengths do not fit the layout.
    """

    def __init__(self, path: Path, name: str, values: np.ndarray, layout: str, lengths: np.ndarray | None):
        self.path, self.name, self.values, self.touched, self.steps = path, name, values, 0, None
        fewest = "NHWC" if values.ndim == 4 and values.shape[3] < values.shape[1] else "NCHW"  # channels
        auto = {2: "NF", 3: "NHW" if lengths is None else "NTF"}.get(values.ndim, fewest)
        self.layout = layout = auto if layout == "auto" else layout
        if values.dtype.kind not in "buif" or values.ndim != LAYOUTS[layout] or 0 in values.shape[1:]:
            what = f"numbers of {' x '.join(layout)}; got {values.dtype} of {list(values.shape)}"
            raise UserError(f"{name} of {path} must hold {what}; see data.layout.")
        sizes, picture = dict(zip(layout, values.shape, strict=True)), "H" in layout
        shape = (len(values), sizes.get("C", 1), sizes["H"], sizes["W"]) if picture else values.shape
        super().__init__(shape, torch.uint8 if picture and values.dtype == np.uint8 else torch.float32)
        self.row_bytes = values[:1].nbytes or 1
        if layout == "NTF":
            steps = np.full(len(values), sizes["T"]) if lengths is None else lengths
            if steps.shape != (len(values),) or not np.isin(steps, np.arange(1, sizes["T"] + 1)).all():
                raise UserError(f"lengths of {name} in {path} must hold N whole numbers from 1 to T, {sizes['T']}.")
            self.steps = torch.from_numpy(steps.astype(np.int64))

    @property
    def lengths(self) -> Tensor | None:
        return None if self.steps is None else self.steps[self.rows]

    def inside(self, rows: Tensor) -> Tensor:
        """Which of the steps of sequences are no padding."""
        return torch.arange(self.shape[1]) < self.steps[rows, None]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({"values": None} if isinstance(self.values, np.memmap) else {})

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found[: self.steps[self.rows[index]]] if self.steps is not None and isinstance(index, int) else found

    def read(self, rows: Tensor) -> Tensor:
        if self.values is None or (isinstance(self.values, np.memmap) and self.touched > MAPPED):
            self.values, self.touched = load(self.path, self.name), 0
        self.touched += len(rows) * (self.row_bytes > LARGE)  # of small ones the page faults would cost more
        x = torch.from_numpy(np.take(self.values, rows.numpy(), 0).astype(str(self.dtype)[6:], copy=False))
        return x[:, None] if self.layout == "NHW" else x.movedim(-1, 1).contiguous() if self.layout == "NHWC" else x


def load(path: Path, name: str) -> Any:
    """An array of a folder, mapped into memory, or one of a .npz file; None where it is not there."""
    try:
        if not path.is_dir():
            with np.load(path) as archive:
                return archive.get(name)
        file = path / f"{name}.npy"
        return np.load(file, mmap_mode="r") if file.exists() else None
    except Exception as error:  # damaged heads and archives have errors of many kinds
        why = "texts are saved with .astype(str), and sequences as N x T x F, padded, with lengths.npy"
        why = f"Python objects may run code; {why}" if "object" in str(error).lower() else said(error)
        raise UserError(f"{name} of {path} cannot be read ({why}).") from error
