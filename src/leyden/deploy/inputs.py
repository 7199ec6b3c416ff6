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

from leyden import UserError, listed
from leyden.data import arrays, decode, folders, table
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
                samples += batch(name, file, metadata)
            elif metadata.kind == "sequence":
                samples.append(Sample(name, as_batch(file, folders.load(file), metadata)[0]))
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
    found = folders.walk(root) if root.is_dir() else [root] if root.exists() else glob.glob(str(root), recursive=True)
    files = sorted(file for file in map(Path, found) if file.name.lower().endswith(ENDINGS[kind]))
    if not files:
        takes = f"{kind}s ({', '.join(ENDINGS[kind])})"
        raise UserError(f"`input` must be {takes}: a file, a folder or a pattern of them; got `{path}`.")
    return [(decode.shown(file.relative_to(root).as_posix() if root.is_dir() else file), file) for file in files]


def batch(name: str, file: Path, metadata: Metadata) -> list[Sample]:
    """The samples of a .npy file, or of `x` of a .npz file; UserError if they do not fit.

    Padded sequences have `lengths` in the .npz, or a lengths.npy beside x.npy, as data=arrays has.
    """
    folder, stem = (file, "x") if file.suffix.lower() == ".npz" else (file.parent, file.stem)
    values, lengths = arrays.load(folder, stem), None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "buif":
        raise UserError(f"{file} must hold numbers, a .npz file as x.")
    x = torch.from_numpy(np.array(values))
    if metadata.kind == "table":  # from float64: the rest fits into 32 bits
        x = x.double() - torch.tensor([column.get("offset", 0.0) for column in metadata.columns or [{}]]).double()
    x = as_batch(file, x, metadata)
    if metadata.kind == "sequence":
        lengths = arrays.load(folder, stem.removesuffix("x") + "lengths")
        if lengths is not None and not arrays.are_lengths(lengths, *x.shape[:2]):
            raise UserError(f"lengths of {file} must hold {len(x)} whole numbers from 1 to {x.shape[1]}.")
    parts = list(x) if lengths is None else [part[:steps] for part, steps in zip(x, lengths, strict=True)]
    if metadata.kind == "sequence" and not torch.cat(parts).isfinite().all():
        raise UserError(f"{file} holds NaN or infinity.")
    return [Sample(f"{name}[{index}]" if len(parts) > 1 else name, part) for index, part in enumerate(parts)]


def as_batch(what: object, x: Tensor, metadata: Metadata, floats: bool = False) -> Tensor:
    """Samples as the model takes them, or one as a batch; UserError if x is not of its shape or type.

    Of pictures the channels may come last, and one channel may be left out; `floats`: they may be of 0..1, too.
    """
    dims, picture, got = metadata.dims, metadata.kind == "image", x.shape
    if picture and x.dim() > 1 and (x.dim() == 2 or x.shape[-3] != dims[1]):
        if x.shape[-1] == dims[1]:
            x = x.movedim(-1, -3)  # H x W x C
        elif dims[1] == 1:
            x = x.unsqueeze(-3)  # H x W
    x = x[None] if x.dim() == len(dims) - 1 else x
    same = [isinstance(d, str) or d == size for d, size in zip(dims, x.shape, strict=False)]
    raw = (x.dtype == torch.uint8) == (metadata.dtype == "uint8")  # bytes are scaled to 0..1 later
    known = raw or not picture or (floats and x.is_floating_point())
    if not (known and x.dim() == len(dims) and all(same) and x.numel()):
        kind, takes, has = str(x.dtype)[6:], *(" x ".join(map(str, sizes)) for sizes in (dims, got))
        raise UserError(f"{what} must hold {metadata.dtype} of {takes}, as the model takes it; got {kind} of {has}.")
    return decode.resized(x, metadata.size) if picture and x.dtype == torch.uint8 else x.float()


def rows(name: str, file: Path, metadata: Metadata) -> list[Sample]:
    """The rows of a table, by the names of its columns where the run knows them; UserError where it lacks some."""
    cells, lines, _ = table.load(file, *(metadata.data[key] for key in ("separator", "missing", "encoding")))
    columns, count = metadata.columns or [{"name": column} for column in cells], metadata.dims[1]
    if missing := [column["name"] for column in columns if column["name"] not in cells]:
        raise UserError(f"{file} must have the columns of the run: {listed(missing)}; got {listed(cells)}.")
    if len(columns) != count or (not metadata.columns and not any(map(math.isnan, map(table.number, cells)))):
        raise UserError(f"{file} must have a header and {count} columns; got {listed(cells)}.")
    codes = [table.codes(column, cells[column["name"]]) for column in columns]
    samples = [Sample(f"{name}:{line}", x) for line, x in zip(lines, torch.tensor(codes).T, strict=True)]
    for column, values in zip(columns, codes, strict=True):
        form = "a number with a decimal comma" if "decimal" in column else "a number"
        for place, text in enumerate(cells[column["name"]]):
            if math.isnan(values[place]) and text and "categories" not in column:
                wrong = f"Line {lines[place]} of {file}: column {column['name']} must be {form}; got '{text}'."
                samples[place] = Sample(samples[place].name, wrong)
    return samples


def collate(metadata: Metadata, transforms: list[Callable[[Tensor], Tensor]], samples: list[Sample]) -> dict[str, Any]:
    """The batch of a Predictor; of sequences `x` is values, padded with zeros, and lengths."""
    channels, *sides = metadata.dims[1:] if metadata.kind == "image" else [0]
    size: Any = metadata.size or (None if "height" in sides else sides)  # as it is, for own transforms
    good, errors = list[Tensor](), list[str | None]()
    for _, x in samples:
        try:
            x = decode.decode(x, size, channels, metadata.data["background"]) if isinstance(x, Path) else x
        except UserError as error:
            x = str(error)
        errors.append(x if isinstance(x, str) else None)
        if isinstance(x, Tensor):
            good.append(transformed(x, transforms))
    batch: Any = None
    if good and good[0].dim() == 2:
        batch = pad_sequence(good, batch_first=True), torch.tensor(list(map(len, good)))
    elif good:
        batch = (torch.stack(good),)
    return {"names": [sample.name for sample in samples], "x": batch, "errors": errors}
