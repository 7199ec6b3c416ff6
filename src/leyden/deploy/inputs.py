"""What a user's path holds, one sample after the other: pictures, sequences, rows of tables, batches of them."""

from __future__ import annotations

import csv
import glob
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from leyden import UserError
from leyden.data import decode, sequence_folder
from leyden.data.image_folder import ImageFolder
from leyden.data.table import codes, is_number, lines
from leyden.deploy.graph import resized
from leyden.deploy.metadata import Metadata

BATCHES = (".npy", ".npz")
ENDINGS = {"image": (*decode.ENDINGS, *BATCHES), "sequence": (".csv", *BATCHES), "table": (".csv", ".tsv", *BATCHES)}
WORDS = {"image": "pictures", "sequence": "sequences", "table": "rows of a table"}


class Sample(NamedTuple):
    """One input that is still to be read; `read` raises UserError where it cannot be."""

    name: str
    read: Callable[[], Tensor]
    target: Any = None  # where it is known


def of_split(split: str, data: Any) -> Iterator[Sample]:
    """The samples of a split of a run's own datamodule, with their targets."""
    samples = data.splits[split]

    def read(index: int) -> Tensor:
        x, _, _ = samples.__getitems__([index])
        return x[0][0] if isinstance(x, tuple) else x[0]

    for index in range(len(samples)):
        name = data.name(split, index) if isinstance(data, ImageFolder) else f"{split}[{index}]"
        yield Sample(name, partial(read, index), samples.y[index].tolist())


def of_path(path: str, metadata: Metadata) -> Iterator[Sample]:
    """All samples of a path, in the order of their names; a file that cannot be opened is a sample that cannot be read.

    Raises:
        UserError: as `files` does, or where the one file that was typed does not fit the model, before any sample.
    """
    reads = {"image": picture, "sequence": sequence}
    begun = False
    for name, file in files(path, metadata.kind):
        try:
            if file.lower().endswith(BATCHES):
                samples = arrays(name, Path(file), metadata)
            elif metadata.kind == "table":
                samples = rows(name, Path(file), metadata)
            else:
                samples = iter([Sample(name, partial(reads[metadata.kind], Path(file), metadata))])
            for sample in samples:
                yield sample
                begun = True
        except UserError as error:
            if not begun and name == path:
                raise
            yield Sample(name, partial(fail, str(error)))
            begun = True


def fail(sentence: str) -> Tensor:
    raise UserError(sentence)


def files(path: str, kind: str) -> list[tuple[str, str]]:
    """Name and path of each file: itself, those below a folder that fit, or what a glob matches.

    Raises:
        UserError: there is none, or a single one is of another kind.
    """
    place, takes = os.path.expanduser(path), f"{WORDS[kind]} ({', '.join(ENDINGS[kind])})"
    if os.path.isfile(place):
        if not place.lower().endswith(ENDINGS[kind]):
            raise UserError(f"`input` must hold what the model takes, {takes}; got `{path}`.")
        return [(path, place)]
    if os.path.isdir(place):
        if not (found := below(place, ENDINGS[kind])):
            raise UserError(f"`input` must hold what the model takes, {takes}; got the folder `{path}` without any.")
        return found
    names = [name for name in sorted(glob.glob(place, recursive=True)) if os.path.isfile(name)]
    if not names:
        raise UserError(f"`input` must be a file, a folder or a pattern that files match; `{path}` is not there.")
    return [(name, name) for name in names]


def below(root: str, endings: tuple[str, ...]) -> list[tuple[str, str]]:
    """The files of these endings below a folder, by their path in it; hidden files and folders are left out."""
    found = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(endings) and not name.startswith("."):
                path = os.path.join(folder, name)
                found.append((Path(os.path.relpath(path, root)).as_posix(), path))
    return found


def picture(file: Path, metadata: Metadata) -> Tensor:
    """uint8 of C x H x W: resized as the run does or to the one size that it knows; as it is for own transforms."""
    channels, *size = metadata.inputs["image"][1:]
    size = metadata.size or [side for side in size if isinstance(side, int)]
    return decode.decode(file, tuple(size) if size else None, channels, metadata.background)


def sequence(file: Path, metadata: Metadata) -> Tensor:
    return checked_sequence(sequence_folder.load(file), str(file), metadata)


def checked_sequence(values: Tensor, name: str, metadata: Metadata) -> Tensor:
    features = metadata.inputs["values"][2]
    if values.shape[1] != features or not len(values):
        raise UserError(f"{name} must be a sequence of T x {features}; got {shape_text(values.shape)}.")
    if not values.isfinite().all():
        raise UserError(f"{name} holds NaN or infinity.")
    return values


def shape_text(dims: Any) -> str:
    return " x ".join(map(str, dims))


def arrays(name: str, file: Path, metadata: Metadata) -> Iterator[Sample]:
    """The samples of a batch in a .npy file, or in `x` of a .npz file, where sequences may have `lengths`.

    Raises:
        UserError: it cannot be read, or is not of the shape and type that the model takes.
    """
    try:
        loaded = np.load(file, mmap_mode="r", allow_pickle=False)
        one = isinstance(loaded, np.ndarray)
        parts = {"x": loaded} if one else {key: loaded[key] for key in ("x", "lengths") if key in loaded}
    except Exception as error:  # damaged heads and archives have errors of many kinds
        raise UserError(f"{file} cannot be read as a batch ({' '.join(str(error).split())}).") from error
    if one and metadata.kind == "sequence" and loaded.ndim == 2:
        yield Sample(name, partial(sequence, file, metadata))
        return
    if "x" not in parts:
        raise UserError(f"{file} must hold an array `x`; got {', '.join(loaded.files) or 'nothing'}.")
    x, lengths = parts["x"], parts.get("lengths")
    dims = next(iter(metadata.inputs.values()))
    shape_fits = x.ndim == len(dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, x.shape, strict=True)
    )
    type_fits = x.dtype == np.uint8 if metadata.dtype == "uint8" else x.dtype.kind in "buif"
    if not (shape_fits and type_fits):
        got = f"{x.dtype} of {shape_text(x.shape)}"
        raise UserError(f"{file} must hold {metadata.dtype} of {shape_text(dims)}, as the model takes it; got {got}.")
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise UserError(f"`lengths` of {file} must have {len(x)} entries; got {shape_text(lengths.shape)}.")
    for index in range(len(x)):
        length = None if lengths is None else int(lengths[index])
        yield Sample(f"{name}[{index}]", partial(entry, x, index, length, f"{name}[{index}]", metadata))


def entry(batch: np.ndarray, index: int, length: int | None, name: str, metadata: Metadata) -> Tensor:
    x = torch.from_numpy(np.array(batch[index]))
    if metadata.kind == "sequence":
        return checked_sequence(x[:length].float(), name, metadata)
    if metadata.kind == "image":
        return resized(x[None], metadata.size)[0]
    offsets = [column.get("offset", 0.0) for column in metadata.columns or []]
    return (x.double() - torch.tensor(offsets, dtype=torch.float64)).float() if any(offsets) else x.float()


def rows(name: str, file: Path, metadata: Metadata) -> Iterator[Sample]:
    """The rows of a CSV file; columns are found by their names where the run knows them, else by their places.

    Raises:
        UserError: the file cannot be read, or lacks a column that the run was trained on.
    """
    known, width = metadata.columns, int(metadata.inputs["row"][1])
    columns, places = known or [{"name": str(place)} for place in range(width)], list(range(width))
    try:
        with lines(file, metadata.separator) as reader:
            header: list[str] = [cell.strip() for cell in next(reader, [])]
            if known:
                names, width = [column["name"] for column in known], len(header)
                if missing := [name for name in names if name not in header]:
                    has = f"{', '.join(missing)} is missing, it has {', '.join(header)}"
                    raise UserError(f"{file} must have the columns that the run was trained on; {has}.")
                places = [header.index(name) for name in names]
            first = [header] if not known and all(map(is_number, header)) else []  # no header
            for cells in itertools.chain(first, reader):
                if any(map(str.strip, cells)):
                    where = f"Line {reader.line_num} of {file}"
                    read = partial(row, where, cells, width, places, columns, metadata.missing)
                    yield Sample(f"{name}:{reader.line_num}", read)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a table ({error}).") from error


def row(
    where: str, cells: list[str], width: int, places: list[int], columns: list[dict[str, Any]], missing: list[str]
) -> Tensor:
    """The cells of a line as the model takes them: those at `places`, for `columns`."""
    if len(cells) != width:
        raise UserError(f"{where} must have {width} cells; got {len(cells)}.")
    x = []
    for place, column in zip(places, columns, strict=True):
        text = cells[place].strip()
        text = "" if text in missing else text
        if "categories" not in column and text and not is_number(text, column.get("decimal", ".")):
            form = " with a decimal comma" if "decimal" in column else ""
            raise UserError(f"{where}: column {column['name']} must be a number{form}; got '{text}'.")
        x += codes(column, [text])
    return torch.tensor(x)
