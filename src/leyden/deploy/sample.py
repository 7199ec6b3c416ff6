"""One input of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Sample(NamedTuple):
    """One input that is still to be read; `read` raises UserError where it cannot be."""

    name: str
    read: Callable[[], Tensor]
    target: Any = None  # where it is known
