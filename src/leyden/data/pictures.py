"""Pictures that stay on disk until a batch asks for them."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leyden.data.cache import Cache
from leyden.data.decode import decode


class Names:
    """Many names in two arrays, which processes share; as texts each process would come to hold its own."""

    def __init__(self, names: Iterable[str] = ()):
        raw = [os.fsencode(name) for name in names]
        self.text = np.frombuffer(b"".join(raw), np.uint8)
        self.ends = np.cumsum([0, *map(len, raw)])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> str:
        return os.fsdecode(self.text[self.ends[row] : self.ends[row + 1]].tobytes())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Names) and np.array_equal(self.text, other.text) and np.array_equal(self.ends, other.ends)
        )


class Files:
    """The pictures of a folder, decoded when they are asked for by their rows."""

    def __init__(self, root: Path, names: Names, size: tuple[int, int] | None, channels: int, background: str):
        self.root, self.names = str(root), names
        self.settings = size, channels, background

    def path(self, row: int) -> str:
        return os.path.join(self.root, self.names[row])

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Some of them, decoded; of one size, or it is a RuntimeError."""
        return torch.stack([decode(self.path(row), *self.settings) for row in rows.tolist()])


class Pictures:
    """N x C x H x W of uint8 that stay on disk: those of a source, Files or a Cache, that stand in its rows.

    To `Tensors` it is a tensor: an int gives a picture, other indices a part, and index_select reads a batch.
    """

    def __init__(self, source: Files | Cache, rows: Tensor):
        self.source, self.rows = source, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | list[int] | Tensor) -> "Tensor | Pictures":
        if isinstance(index, int):
            return self.source[self.rows[index : index + 1]][0]
        return Pictures(self.source, self.rows[index])

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return self.source[self.rows[index]]
