"""What a user's path holds, sample by sample: pictures, sequences, rows of tables, batches of them."""

import glob
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leyden import UserError, listed, said
from leyden.data import decode, folders, table
from leyden.data.arrays import are_lengths
from leyden.data.samples import transformed
from leyden.deploy.graph import Metadata

BATCHES = (".npy", ".npz")
ENDINGS = {"image": (*decode.ENDINGS, *BATCHES), "sequence": (".csv", *BATCHES), "table": (*table.ENDINGS, *BATCHES)}


class Sample(NamedTuple):
    """One input: what the model takes, a picture that is still to be decoded, or why there is nothing."""

    name: str
    x: Tensor | Path | str


def of_path(path: str, metadata: Metadata) -> list[Sample]:
    """The samples of a file, a folder or a pattern; UserError if there is none. Of several files one may be bad."""
    files, samples = matching_files(path, metadata.kind), list[Sample]()
    for name, file in files:
        try:
            if file.suffix.lower() in BATCHES:
                samples += arrays(name, file, metadata)
            elif metadata.kind == "sequence":
                samples += [Sample(name, as_batch(file, folders.load(file), metadata)[0])]
            else:
                samples += rows(name, file, metadata) if metadata.kind == "table" else [Sample(name, file)]
        except UserError as error:
            if len(files) == 1:
                raise
            samples.append(Sample(name, str(error)))
    return samples


def matching_files(path: str, kind: str) -> list[tuple[str, Path]]:
    """Name and path of each file, sorted, without hidden ones; UserError if there is none."""
    root = Path(path).expanduser()
    pattern = glob.escape(str(root)) + "/**" * root.is_dir() if root.exists() else str(root)
    found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if name.lower().endswith(ENDINGS[kind])]
    if not (files := [file for file in found if file.is_file()]):
        takes = f"{kind}s ({', '.join(ENDINGS[kind])})"
        raise UserError(f"`input` must be {takes}: a file, a folder or a pattern of them; got `{path}`.")
    return [(file.relative_to(root).as_posix() if root.is_dir() else str(file), file) for file in files]


def arrays(name: str, file: Path, metadata: Metadata) -> list[Sample]:
    """The samples of a .npy file, or of `x` of a .npz file; UserError if they do not fit.

    Sequences that are padded have `lengths` in the .npz, or a lengths.npy beside x.npy, as data=arrays has.
    """
    beside = file.with_name(file.name.removesuffix("x.npy") + "lengths.npy")
    try:
        content: Any = np.load(file, mmap_mode="c", allow_pickle=False)
        content = {"x": content} if isinstance(content, np.ndarray) else dict(content)
        if metadata.kind == "sequence" and beside.exists():
            content["lengths"] = np.load(beside)
        x = torch.from_numpy(content["x"])
    except Exception as error:  # damaged heads and archives have errors of many kinds
        raise UserError(f"{file} cannot be read as a batch ({said(error)}).") from error
    if metadata.kind == "table":  # from float64: the rest fits into 32 bits
        x = x.double() - torch.tensor([column.get("offset", 0.0) for column in metadata.columns or [{}]]).double()
    batch, samples = as_batch(file, x, metadata), []
    lengths = content.get("lengths") if metadata.kind == "sequence" else None
    if lengths is not None and not are_lengths(lengths, len(batch), batch.shape[1]):
        raise UserError(f"lengths of {file} must hold {len(batch)} whole numbers from 1 to {batch.shape[1]}.")
    for index, part in enumerate(batch):
        where = f"{name}[{index}]" if len(batch) > 1 else name
        part = part if lengths is None else part[: int(lengths[index])]  # without its padding
        good = metadata.kind != "sequence" or (len(part) and part.isfinite().all())
        samples.append(Sample(where, part if good else f"{where} is empty, or holds NaN or infinity."))
    return samples


def as_batch(what: object, x: Tensor, metadata: Metadata, floats: bool = False) -> Tensor:
    """Samples as the model takes them, or one as a batch; UserError if x is not of its shape or type.

    `floats`: pictures may be of 0..1, too.
    """
    dims, picture = metadata.dims, metadata.kind == "image"
    if picture and x.dim() == 3 and dims[1] == 1:
        x = x[:, None]  # N x H x W
    elif picture and x.dim() == 4 and x.shape[1] != dims[1] and x.shape[3] == dims[1]:
        x = x.movedim(3, 1)  # N x H x W x C
    batch = x[None] if x.dim() == len(dims) - 1 else x
    same = [isinstance(d, str) or d == size for d, size in zip(dims, batch.shape, strict=False)]
    fits = batch.dim() == len(dims) and all(same) and batch.numel()
    raw = (x.dtype == torch.uint8) == (metadata.dtype == "uint8")  # bytes are scaled to 0..1 later
    if not fits or (picture and not raw and not (floats and x.is_floating_point())):
        kind, takes, got = str(x.dtype)[6:], *(" x ".join(map(str, sizes)) for sizes in (dims, x.shape))
        raise UserError(f"{what} must hold {metadata.dtype} of {takes}, as the model takes it; got {kind} of {got}.")
    return decode.resized(batch, metadata.size) if picture and x.dtype == torch.uint8 else batch.float()


def rows(name: str, file: Path, metadata: Metadata) -> list[Sample]:
    """The rows of a table, by the names of its columns where the run knows them; UserError where it lacks some."""
    cells, lines, _ = table.load(file, metadata.separator, metadata.missing, metadata.encoding)
    columns, count = metadata.columns or [{"name": column} for column in cells], metadata.dims[1]
    if missing := [column["name"] for column in columns if column["name"] not in cells]:
        raise UserError(f"{file} must have the columns of the run: {listed(missing)}; got {listed(cells)}.")
    if len(columns) != count or (not metadata.columns and not any(map(math.isnan, map(table.number, cells)))):
        raise UserError(f"{file} must have a header and {count} columns; got {listed(cells)}.")
    samples, codes = [], [table.codes(column, cells[column["name"]]) for column in columns]
    for place, line in enumerate(lines):
        x: Tensor | str = torch.tensor([values[place] for values in codes])
        for column, values in zip(columns, codes, strict=True):
            text = cells[column["name"]][place]
            if math.isnan(values[place]) and text and "categories" not in column:
                form = " with a decimal comma" if "decimal" in column else ""
                x = f"Line {line} of {file}: column {column['name']} must be a number{form}; got '{text}'."
        samples.append(Sample(f"{name}:{line}", x))
    return samples


def collate(metadata: Metadata, transforms: list[Callable[[Tensor], Tensor]], samples: list[Sample]) -> dict[str, Any]:
    """The batch of a Predictor; of sequences `x` is values, padded with zeros, and lengths."""
    good, errors = list[Tensor](), list[str | None]()
    for _, x in samples:
        try:
            if isinstance(x, str):
                raise UserError(x)
            if isinstance(x, Path):
                channels, *sides = metadata.dims[1:]
                size: Any = metadata.size or (None if "height" in sides else sides)  # as it is, for own transforms
                x = decode.decode(x, size, channels, metadata.background)
            good.append(transformed(x, transforms))
            errors.append(None)
        except UserError as error:
            errors.append(str(error))
    batch: Any = None
    if good and good[0].dim() == 2:
        batch = pad_sequence(good, batch_first=True), torch.tensor(list(map(len, good)))
    elif good:
        batch = (torch.stack(good),)
    return {"names": [sample.name for sample in samples], "x": batch, "y": None, "errors": errors}
