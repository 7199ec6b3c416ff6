"""Sequences and batches in .npy, .npz and .csv files, as the samples that a model takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leyden import UserError
from leyden.data import sequence_folder
from leyden.deploy.sample import Sample


def sequence(file: Path, card: dict[str, Any]) -> Tensor:
    return fitting(sequence_folder.load(file), str(file), card)


def fitting(values: Tensor, name: str, card: dict[str, Any]) -> Tensor:
    features = card["inputs"]["values"][2]
    if values.dim() != 2 or values.shape[1] != features or not len(values):
        raise UserError(
            f"{name} is {' x '.join(map(str, values.shape))}, but the model takes sequences of T x {features}."
        )
    if not values.isfinite().all():
        raise UserError(f"{name} holds NaN or infinity.")
    return values


def is_one(file: Path) -> bool:
    """Whether a .npy file holds a single sequence."""
    return file.suffix.lower() == ".npy" and opened(file).ndim == 2


def opened(file: Path) -> Any:
    """An array that is read from the disk as it is used, or the arrays of a .npz. Raises UserError if it is none."""
    try:
        return np.load(file, mmap_mode="r" if file.suffix.lower() == ".npy" else None, allow_pickle=False)
    except Exception as error:  # damaged heads and archives have errors of many kinds
        raise UserError(f"{file} cannot be read as a batch ({' '.join(str(error).split())}).") from error


def batch(name: str, file: Path, card: dict[str, Any]) -> Iterator[Sample]:
    """The samples of an array of B x shape, or of the one array (or `x`) in a .npz; sequences may have `lengths`."""
    found, lengths = opened(file), None
    if not isinstance(found, np.ndarray):
        names = [key for key in found.files if key not in ("lengths", "y")]
        key = next(
            (key for key in ("x", "values", "image", "row") if key in names), names[0] if len(names) == 1 else None
        )
        if key is None:
            raise UserError(f"{file} holds {', '.join(names) or 'nothing'}; name the array to predict x.")
        lengths, found = (found["lengths"] if "lengths" in found.files else None), found[key]
    found = shaped(found, file, card)
    for place in range(len(found)):
        yield Sample(f"{name}[{place}]", partial(one, found, lengths, place, name, card))


def shaped(found: np.ndarray, file: Path, card: dict[str, Any]) -> np.ndarray:
    """The batch as B x shape; grey pictures may lack their channel, others have it last. UserError for the rest."""
    dims = next(iter(card["inputs"].values()))[1:]
    kind = card["kind"]
    if kind == "image" and found.ndim == 3:
        found = found[:, None] if dims[0] == 1 else found[None]
    if kind == "image" and found.ndim == 4 and found.shape[1] != dims[0] == found.shape[3]:
        found = found.transpose(0, 3, 1, 2)
    fits = found.ndim == len(dims) + 1 and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, found.shape[1:], strict=True)
    )
    if not fits or (
        found.dtype != np.uint8 if kind == "image" and card["dtype"] == "uint8" else found.dtype.kind not in "buif"
    ):
        raise UserError(
            f"{file} holds {found.dtype} of {' x '.join(map(str, found.shape))}, but the model takes {card['dtype']} "
            f"of batch x {' x '.join(map(str, dims))}."
        )
    return found


def one(found: np.ndarray, lengths: np.ndarray | None, place: int, name: str, card: dict[str, Any]) -> Tensor:
    x = torch.from_numpy(np.array(found[place]))
    if card["kind"] == "sequence":
        return fitting((x if lengths is None else x[: int(lengths[place])]).float(), f"{name}[{place}]", card)
    if card["kind"] == "image" and card["size"] and list(x.shape[1:]) != card["size"]:
        x = F.interpolate(x[None], tuple(card["size"]), mode="bilinear", antialias=True)[0]
    return x if card["dtype"] == "uint8" else x.float()
