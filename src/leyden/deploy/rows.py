"""From outputs to rows, and from rows to a file: names of classes, values in their unit, and errors."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from leyden import UserError

ENDINGS = (".csv", ".jsonl")


class Spool(Callback):
    """Keeps the rows of each batch in a file of this rank, a line of JSON for each batch: memory does not grow.

    Batches of a user's own task are dicts: scalars become columns, arrays the entries of `arrays`.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.arrays: dict[str, Growing] = {}
        self.rows = self.rank = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.rank == 0:
            clear(self.folder)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self.rank = trainer.global_rank
        self.file = open(spooled(self.folder, self.rank), "w", encoding="utf-8")  # noqa: SIM115

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        rows = outputs if isinstance(outputs, list) else self.own(outputs)
        self.rows += len(rows)
        self.file.write(json.dumps(rows) + "\n")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self.file.close()
        for array in self.arrays.values():
            array.close()

    def own(self, outputs: Any) -> list[dict[str, Any]]:
        """The rows of what a user's own predict_step returns."""
        if not isinstance(outputs, Mapping) or not outputs:
            raise UserError(
                f"predict_step returned {type(outputs).__name__}; it needs a dict of tensors or lists with an entry "
                "for each sample."
            )
        columns, size = {}, None
        for name, values in outputs.items():
            values = values.detach().cpu() if isinstance(values, Tensor) else values
            array = (
                values.float().numpy()
                if isinstance(values, Tensor) and values.is_floating_point()
                else np.asarray(values)
            )
            if array.ndim == 0 or (size is not None and len(array) != size):
                raise UserError(
                    f"predict_step: {name} has {list(array.shape)}, not an entry for each of {size} samples."
                )
            size = len(array)
            array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
            if array.ndim == 1:
                columns[str(name)] = array.tolist()
            else:
                self.arrays.setdefault(str(name), Growing(self.folder / f"{len(self.arrays)}.array", str(name))).add(
                    array
                )
        return [
            {
                "name": str(self.rows + place),
                **{name: plain(column[place]) for name, column in columns.items()},
                "error": None,
            }
            for place in range(size or 0)
        ]


class Growing:
    """An array that grows along its first dimension, on the disk."""

    def __init__(self, path: Path, name: str):
        self.path, self.name, self.length = path, name, 0
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = None
        self.file = open(path, "wb")  # noqa: SIM115

    def add(self, part: np.ndarray) -> None:
        if self.length and (part.shape[1:], part.dtype) != (self.shape, self.dtype):
            raise UserError(f"predict_step: {self.name} is {list(part.shape[1:])} for some samples, not for all.")
        self.shape, self.dtype, self.length = part.shape[1:], part.dtype, self.length + len(part)
        self.file.write(np.ascontiguousarray(part).data)

    def close(self) -> None:
        self.file.close()

    def read(self) -> np.ndarray:
        return np.memmap(self.path, self.dtype, "r", shape=(self.length, *self.shape))


def spooled(folder: str | Path, rank: int) -> Path:
    return Path(folder, f"rows.{rank}.jsonl")


def plain(value: Any, digits: int = 7) -> Any:
    """A value as JSON has it: a float32 in its seven digits, nothing for NaN."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


def of_batch(
    batch: Mapping[str, Any], outputs: Tensor | None, card: Mapping[str, Any], top_k: int, all_probs: bool
) -> list[dict]:
    """A row for each sample of a batch, in its order; one that could not be read has an error in place of a value."""
    told = iter(outputs.tolist() if outputs is not None else [])
    best = iter(outputs.topk(min(top_k, outputs.shape[1])).indices.tolist() if outputs is not None else [])
    known = any(target is not None for target in batch["targets"])
    names, digits = columns(card, top_k, all_probs), 6 if card["classes"] else 7
    rows = []
    for name, error, target in zip(batch["names"], batch["errors"], batch["targets"], strict=True):
        values = [None] * len(names) if error else cells(next(told), next(best), card, all_probs)
        row = {"name": name} | {key: plain(value, digits) for key, value in zip(names, values, strict=True)}
        if known:
            row["target"] = plain(card["classes"][target] if card["classes"] else target)
        rows.append(row | {"error": error})
    return rows


def columns(card: Mapping[str, Any], top_k: int, all_probs: bool) -> list[str]:
    """The names of what `cells` gives."""
    if not card["classes"]:
        width = next(iter(card["outputs"].values()))[1]
        return ["prediction"] if width == 1 else [f"prediction_{n + 1}" for n in range(width)]
    k = min(top_k, len(card["classes"]))
    found = [f"{word}{f'_{n + 1}' * (n > 0)}" for n in range(k) for word in ("prediction", "probability")]
    return found + [f"prob_{name}" for name in card["classes"]] * all_probs


def cells(outputs: list[float], best: list[int], card: Mapping[str, Any], all_probs: bool) -> list[Any]:
    if not card["classes"]:
        return outputs
    found = [cell for index in best for cell in (card["classes"][index], outputs[index])]
    return found + outputs * all_probs


def merged(folder: str | Path, world: int) -> Iterator[dict[str, Any]]:
    """The rows of all ranks in the order of the inputs: batch n is of rank n % world."""
    opened = [open(spooled(folder, rank), encoding="utf-8") for rank in range(world)]  # noqa: SIM115
    try:
        for number in count():
            line = opened[number % world].readline()
            if not line:
                return
            yield from json.loads(line)
    finally:
        for file in opened:
            file.close()


def write(rows: Iterator[dict[str, Any]], path: Path | None, ending: str) -> tuple[int, int]:
    """Write rows to a file, or as a table to the screen; returns how many, and how many of them have an error."""
    if path is None:
        return show(rows)
    total, bad = 0, 0
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = None
        for row in rows:
            total, bad = total + 1, bad + (row["error"] is not None)
            if ending == ".jsonl":
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                continue
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)
    return total, bad


def show(rows: Iterator[dict[str, Any]]) -> tuple[int, int]:
    """A table whose columns are as wide as the first rows need."""
    first = [row for row, _ in zip(rows, range(100), strict=False)]
    if not first:
        return 0, 0
    names = [name for name in first[0] if name != "error" or any(row["error"] for row in first)]
    widths = {name: max([len(name), *(len(text(row[name])) for row in first)]) for name in names}
    print("  ".join(name.ljust(widths[name]) for name in names).rstrip())
    total = bad = 0
    for row in chain(first, rows):
        total, bad = total + 1, bad + (row["error"] is not None)
        shown = [text(row[name]).ljust(widths[name]) for name in names]
        late = row["error"] if row["error"] and "error" not in names else ""
        print("  ".join([*shown, late]).rstrip())
    return total, bad


def text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def save_arrays(arrays: Mapping[str, Growing], path: Path) -> None:
    """Write a .npz of all arrays, each streamed from the disk."""
    content: dict[str, Any] = {name: array.read() for name, array in arrays.items()}
    with open(path, "wb") as file:
        np.savez(file, **content)


def clear(folder: str | Path) -> None:
    """Take away what the ranks kept."""
    for path in (*Path(folder).glob("rows.*.jsonl"), *Path(folder).glob("*.array")):
        path.unlink()
