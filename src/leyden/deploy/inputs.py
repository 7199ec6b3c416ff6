"""What a user's path holds, one sample after the other: pictures, sequences, rows of tables, batches of them."""

import glob
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leyden import UserError, listed, said
from leyden.data import decode, folders, table
from leyden.data.samples import transformed
from leyden.deploy.graph import Metadata

BATCHES = (".npy", ".npz")
ENDINGS = {"image": (*decode.ENDINGS, *BATCHES), "sequence": (".csv", *BATCHES), "table": (".csv", ".tsv", *BATCHES)}


class Sample(NamedTuple):
    """One input that is still to be read; `read` raises UserError where it cannot be."""

    name: str
    read: Callable[[], Tensor]


def collate(transforms: list[Callable[[Tensor], Tensor]], samples: list[Sample]) -> dict[str, Any]:
    """Read a batch for a Predictor; of sequences `x` is values, padded with zeros, and lengths."""
    good, errors = list[Tensor](), list[str | None]()
    for sample in samples:
        try:
            one = transformed(sample.read(), transforms)
            if good and one.dim() == 3 and one.shape != good[0].shape:
                raise UserError(f"{sample.name} is {list(one.shape)} after the run's transforms, others are not.")
            good.append(one)
            errors.append(None)
        except UserError as error:
            errors.append(str(error))
    x: Any = None
    if good and good[0].dim() == 2:
        x = pad_sequence(good, batch_first=True), torch.tensor([len(values) for values in good])
    elif good:
        x = (torch.stack(good),)
    return {"names": [sample.name for sample in samples], "x": x, "y": None, "errors": errors}


def of_path(path: str, metadata: Metadata) -> Iterator[Sample]:
    """All samples of a file, a folder or a pattern; of several files one that cannot be opened is a sample, too.

    Raises:
        UserError: there is none that the model takes, or the only file cannot be opened or does not fit the model.
    """
    files = matching_files(path, metadata.kind)
    for name, file in files:
        try:
            if file.suffix.lower() in BATCHES or metadata.kind == "sequence":
                yield from arrays(name, file, metadata)
            elif metadata.kind == "table":
                yield from rows(name, file, metadata)
            else:
                channels, *sides = metadata.inputs["image"][1:]
                size: Any = metadata.size or (None if "height" in sides else sides)  # as it is, for own transforms
                yield Sample(name, partial(decode.decode, file, size, channels, metadata.background))
        except UserError as error:
            if len(files) == 1:
                raise
            yield Sample(name, partial(read_nothing, str(error)))


def read_nothing(sentence: str) -> Tensor:
    raise UserError(sentence)


def matching_files(path: str, kind: str) -> list[tuple[str, Path]]:
    """Name and path of each file, sorted; hidden ones in a folder are left out. Raises UserError if there is none."""
    root = Path(path).expanduser()
    pattern = glob.escape(str(root)) + "/**" * root.is_dir() if root.exists() else str(root)
    files = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if name.lower().endswith(ENDINGS[kind])]
    if not (files := [file for file in files if file.is_file()]):
        takes = f"{kind}s ({', '.join(ENDINGS[kind])})"
        raise UserError(f"`input` must be {takes}: a file, a folder or a pattern of them; got `{path}`.")
    return [(decode.shown(file.relative_to(root).as_posix() if root.is_dir() else file), file) for file in files]


def arrays(name: str, file: Path, metadata: Metadata) -> Iterator[Sample]:
    """The samples of a batch: a .npy file, or `x` of a .npz file; for sequences T x F, in a .csv file too, is one.

    Raises:
        UserError: it cannot be read, or is not of the shape and type that the model takes.
    """
    try:
        csv = file.suffix.lower() == ".csv"
        x = folders.load(file).numpy() if csv else np.load(file, allow_pickle=False)
        x = x if isinstance(x, np.ndarray) else x["x"]
    except UserError:
        raise
    except Exception as error:  # damaged heads and archives have errors of many kinds
        raise UserError(f"{file} cannot be read as a batch ({said(error)}).") from error
    single = metadata.kind == "sequence" and x.ndim == 2
    x = x[None] if single else x
    check_fits(file, x, metadata, x.dtype == metadata.dtype if metadata.kind == "image" else x.dtype.kind in "buif")
    for index, values in enumerate(x):
        where = name if single else f"{name}[{index}]"
        yield Sample(where, partial(read_entry, where, values, metadata))


def check_fits(what: object, x: Any, metadata: Metadata, typed: bool) -> None:
    """Raises UserError where an array or tensor is not of the shape, or not `typed` as the model takes it."""
    dims = next(iter(metadata.inputs.values()))
    fits = x.ndim == len(dims) and all(isinstance(d, str) or d == size for d, size in zip(dims, x.shape, strict=True))
    if not (fits and typed):
        takes, got = (" x ".join(map(str, sizes)) for sizes in (dims, x.shape))
        raise UserError(f"{what} must hold {metadata.dtype} of {takes}, as the model takes it; got {x.dtype} of {got}.")


def read_entry(where: str, values: np.ndarray, metadata: Metadata) -> Tensor:
    """A sample of a batch as the model takes it."""
    x = torch.from_numpy(np.array(values))
    if metadata.kind == "image":
        return decode.resized(x[None], metadata.size)[0]
    if metadata.kind == "table":
        offsets = [column.get("offset", 0.0) for column in metadata.columns or [{}]]
        return (x.double() - torch.tensor(offsets, dtype=torch.float64)).float()
    if not len(x) or not x.isfinite().all():
        raise UserError(f"{where} is empty, or holds NaN or infinity.")
    return x.float()


def rows(name: str, file: Path, metadata: Metadata) -> Iterator[Sample]:
    """The rows of a CSV file; columns are found by their names where the run knows them, else by their places.

    Raises:
        UserError: the file cannot be read, or does not have the columns that the run was trained on.
    """
    cells, places, _ = table.load(file, metadata.separator, metadata.missing)
    columns, count = metadata.columns or [{"name": column} for column in cells], metadata.inputs["row"][1]
    if missing := [column["name"] for column in columns if column["name"] not in cells]:
        raise UserError(f"{file} must have the columns of the run: {listed(missing)}; got {listed(cells)}.")
    if len(columns) != count or (not metadata.columns and all(map(table.is_number, cells))):
        raise UserError(f"{file} must have a header and {count} columns; got {listed(cells)}.")
    texts = zip(*(cells[column["name"]] for column in columns), strict=True)
    for place, row in zip(places, texts, strict=True):
        yield Sample(f"{name}:{place}", partial(read_row, f"Line {place} of {file}", row, columns))


def read_row(where: str, texts: tuple[str, ...], columns: list[dict[str, Any]]) -> Tensor:
    """The cells of a line as the model takes them."""
    x = [table.codes(column, [text])[0] for column, text in zip(columns, texts, strict=True)]
    for column, text, value in zip(columns, texts, x, strict=True):
        if math.isnan(value) and text and "categories" not in column:
            form = " with a decimal comma" if "decimal" in column else ""
            raise UserError(f"{where}: column {column['name']} must be a number{form}; got '{text}'.")
    return torch.tensor(x)
