"""The one file that a command writes, whole or not at all, and the rows of a prediction in it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from pandas import DataFrame

from leyden import UserError, files, listed


@contextmanager
def writing(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path beside the file, which takes its place at the end; after an error nothing is left.

    Raises UserError where the file may not be replaced, or cannot be written.
    """
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} is there already; type another output=<file>, or overwrite=true.")
    made = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()  # a mistake is told before any work
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); set output=<file>.") from error
    try:
        with files.replacing(path) as beside:
            yield beside
    finally:
        if made:
            with suppress(OSError):  # a folder with files in it stays
                path.parent.rmdir()


def table(outputs: list[Any]) -> tuple[DataFrame, dict[str, np.ndarray]]:
    """What predict_steps returned, of several loaders a list each: rows, and arrays of several values a sample.

    Raises UserError where they are no dicts of columns, or nothing.
    """
    groups = outputs if outputs and isinstance(outputs[0], list) else [outputs]
    if not any(groups):
        raise UserError("There is nothing to predict in what was asked for.")
    parts = []
    try:
        for number, part in [(number, part) for number, group in enumerate(groups) for part in group]:
            half = {
                key: value.float() for key, value in part.items() if getattr(value, "dtype", None) == torch.bfloat16
            }
            arrays = {str(key): np.asarray(value) for key, value in (part | half).items()}  # numpy has no bfloat16
            (count,) = {len(array) for array in arrays.values()}
            parts.append(({"dataloader_idx": np.full(count, number)} if len(groups) > 1 else {}) | arrays)
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        must = "a dict of tensors or lists, an entry for each sample, with the same names and shapes each time"
        raise UserError(f"`predict_step` must return {must}.") from error
    count = len(next(iter(whole.values())))
    columns: dict[str, Any] = {"name": list(map(str, range(count)))}
    for name in [name for name, array in whole.items() if array.size == count]:
        values = whole.pop(name).reshape(count)  # floats with the digits that their type has
        columns[name] = values.astype(str).astype(float) if values.dtype.kind == "f" else values
    return DataFrame(columns | {"error": columns.pop("error", None)}), whole


def save(outputs: list[Any], path: Path | None, beside: Path | None, overwrite: bool) -> DataFrame:
    """Write what predict_steps returned beside the file, or to the screen, and arrays to a .npz file."""
    rows, arrays = table(outputs)
    if arrays and path is None:
        raise UserError(f"{listed(arrays)} of `predict_step` are arrays, which need a file; type output=<file>.csv.")
    if path and path.suffix.lower() == ".jsonl":
        rows.to_json(beside, orient="records", lines=True, force_ascii=False, double_precision=15)
    else:
        rows.to_csv(beside or sys.stdout, index=False)
    if path and arrays:
        with writing(path.with_suffix(".npz"), overwrite) as other, open(other, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    return rows
