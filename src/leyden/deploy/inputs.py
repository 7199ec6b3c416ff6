"""What a user's path holds, sample by sample."""

import glob
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leyden import UserError, listed, require
from leyden.data import arrays, decode, folders, table
from leyden.data.samples import transformed
from leyden.deploy.graph import Metadata
from leyden.files import shown

BATCHES = (".npy", ".npz")
ENDINGS = {"image": (*decode.ENDINGS, *BATCHES), "sequence": (".csv", *BATCHES), "table": (*table.ENDINGS, *BATCHES)}
Samples = dict[str, Tensor | Path | str]  # by name: what the model takes, a picture's file, or why there is nothing


def of_path(path: str, metadata: Metadata) -> Samples:
    """The samples of a file, a folder or a pattern; UserError if there is none. Of several files one may be bad."""
    root, kind, samples = Path(path).expanduser(), metadata.kind, Samples()
    pattern = glob.escape(str(root)) + "/**" * root.is_dir() if root.exists() else str(root)
    found = [Path(name) for name in glob.glob(pattern, recursive=True) if name.lower().endswith(ENDINGS[kind])]
    files = sorted(file for file in found if file.is_file())
    require(bool(files), "input", f"{kind}s ({', '.join(ENDINGS[kind])}): a file, a folder or a pattern of them", path)

    for file in files:
        name = shown(file.relative_to(root).as_posix() if root.is_dir() else str(file))
        try:
            if file.suffix.lower() in BATCHES:
                samples |= batch(name, file, metadata)
            elif kind == "table":
                samples |= rows(name, file, metadata)
            else:
                samples[name] = file if kind == "image" else as_batch(folders.load(file), metadata)[0]
        except UserError as error:
            if len(files) == 1:
                raise
            samples[name] = shown(str(error))
    return samples


def batch(name: str, file: Path, metadata: Metadata) -> Samples:
    """The samples of x, and lengths, in .npz or .npy files, as data=arrays has them."""
    folder, stem = (file, "x") if file.suffix.lower() == ".npz" else (file.parent, file.stem)
    values = np.array(arrays.load(folder, stem))
    if values.dtype.kind not in "buif":
        raise UserError(f"{file} must hold numbers, a .npz file as x.")

    offsets = [column.get("offset", 0.0) for column in metadata.columns or []]
    if values.shape[-1:] == (len(offsets),):  # of a table
        values = values - offsets

    parts: Any = as_batch(torch.from_numpy(values), metadata)
    if metadata.kind == "sequence":
        lengths = arrays.load(folder, stem.removesuffix("x") + "lengths")
        if lengths is not None:
            if not arrays.are_lengths(lengths, *parts.shape[:2]):
                raise UserError(f"lengths of {file} must hold {len(parts)} whole numbers from 1 to {parts.shape[1]}.")
            parts = [part[: int(steps)] for part, steps in zip(parts, lengths, strict=True)]

        if not all(part.isfinite().all() for part in parts):
            raise UserError(f"{file} holds NaN or infinity.")
    return {f"{name}[{index}]" if len(parts) > 1 else name: part for index, part in enumerate(parts)}


def as_batch(x: Tensor, metadata: Metadata, floats: bool = False) -> Tensor:
    """Samples as the model takes them, or one as a batch; UserError if x is not of its shape or type.

    The channels of pictures may come last, or be left out if it is one; `floats`: 0..1 will do, too.
    """
    dims, picture, shape = metadata.dims, metadata.kind == "image", x.shape
    if picture and x.dim() > 1 and dims[1] not in shape[-3:-2]:
        x = x.movedim(-1, -3) if shape[-1] == dims[1] else x.unsqueeze(-3)
    x = x[None] if x.dim() == len(dims) - 1 else x

    fits = x.dim() == len(dims) and all(d == size or isinstance(d, str) for d, size in zip(dims, x.shape, strict=True))
    raw = (x.dtype == torch.uint8) == (metadata.dtype == "uint8")  # bytes become 0..1 later
    if not (fits and x.numel() and (raw or not picture or (floats and x.is_floating_point()))):
        takes, got = (" x ".join(map(str, sizes)) for sizes in (dims, shape))
        raise UserError(f"x must hold {metadata.dtype} of {takes}; got {str(x.dtype)[6:]} of {got}.")
    return decode.resized(x, metadata.size) if picture and x.dtype == torch.uint8 else x.float()


def rows(name: str, file: Path, metadata: Metadata) -> Samples:
    """A table's rows, by its columns' names where the run knows them."""
    cells, lines, _ = table.load(file, *(metadata.data[key] for key in ("separator", "missing", "encoding")))
    columns = {column["name"]: column for column in metadata.columns or []} or {key: {} for key in cells}

    missing, count = [key for key in columns if key not in cells], metadata.dims[1]
    header = metadata.columns or any(map(np.isnan, map(table.number, cells)))
    if missing or len(columns) != count or not header:
        needs = listed(missing) or f"{count}, with a header"
        raise UserError(f"{file} must have the columns of the run: {needs}; got {listed(cells)}.")
    codes, wrong = [], dict[int, str]()
    for key, column in columns.items():
        codes.append(table.codes(column, cells[key]))
        for line, text, value in zip(lines, cells[key], codes[-1], strict=True):
            if text and np.isnan(value) and "categories" not in column:
                wrong[line] = f"Line {line} of {file}: column {key} must be a number as in training; got '{text}'."

    return {f"{name}:{line}": wrong.get(line, x) for line, x in zip(lines, torch.tensor(codes).T, strict=True)}


def collate(metadata: Metadata, transforms: list[Any], samples: list[Any]) -> dict[str, Any]:
    """The batch of a Predictor, of pairs of name and x."""
    found = [opened(x, metadata) if isinstance(x, Path) else x for _, x in samples]
    good = [transformed(x, transforms) for x in found if isinstance(x, Tensor)]
    x: Any = None
    if good:
        lengths = torch.tensor(list(map(len, good)))
        x = (pad_sequence(good, batch_first=True), lengths) if good[0].dim() == 2 else torch.stack(good)

    errors = [part if isinstance(part, str) else None for part in found]
    return {"names": [name for name, _ in samples], "x": x, "errors": errors}


def opened(file: Path, metadata: Metadata) -> Tensor | str:
    """A picture as the model takes it, or why it cannot be decoded."""
    _, channels, *sides = metadata.dims
    size: Any = metadata.size or (None if "height" in sides else sides)
    try:
        return decode.decode(file, size, channels, metadata.data["background"])
    except UserError as error:
        return str(error)
