"""Decoded pictures in one file, which all processes map into their memory and share."""

import math
import os
import shutil
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden import UserError


class Cache:
    """Rows of uint8 of one shape. It is there whole or not at all, whenever its writer is killed.

    The writer must be alone; readers of an older file keep what they have mapped.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self.path, self.shape = path, tuple(shape)

    @property
    def there(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == math.prod(self.shape)

    @cached_property
    def rows(self) -> Tensor:
        """The file as a tensor, which is only read."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch asks for memory that it may write
            return torch.from_numpy(np.memmap(self.path, np.uint8, "r", shape=self.shape))

    def __getitem__(self, rows: Tensor) -> Tensor:
        """A copy of some rows."""
        return self.rows.index_select(0, rows)

    def __getstate__(self) -> dict[str, Any]:
        """What another process is sent: it maps the file itself."""
        return {"path": self.path, "shape": self.shape}


def fill(part: Path, shape: tuple[int, ...], look: Callable[[Callable[[np.ndarray | None], Any]], None]) -> None:
    """Write the file that a cache is renamed from; `look` gives each row in turn to the function that it gets.

    Raises:
        UserError: the disk has no room for it.
    """
    need, blank = math.prod(shape), np.zeros(shape[1:], np.uint8)
    part.unlink(missing_ok=True)  # of a writer that was killed
    if (free := shutil.disk_usage(part.parent).free) < need:
        raise UserError(
            f"data.cache=true needs {need / 1e9:.1f} GB in {part.parent}, but {free / 1e9:.1f} GB are free; "
            "set data_dir=<folder>, a smaller data.size, or data.cache=false."
        )
    with open(part, "wb") as file:
        look(lambda x: file.write((blank if x is None else x).data))
        file.flush()
        os.fsync(file.fileno())
