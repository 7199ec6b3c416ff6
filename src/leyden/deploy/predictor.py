"""A prediction under a Trainer: batches of samples in, rows out, to a file or the screen."""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from lightning import Callback, LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, get_worker_info

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.deploy import output
from leyden.deploy.inputs import Sample
from leyden.deploy.metadata import Metadata

ENDINGS = (".csv", ".jsonl")


class Batches(IterableDataset):
    """Batches of what `source` gives, as dicts; each loader worker makes its own part of them.

    `x` is what the model takes of the samples that could be read, None if there is none; `errors` has a sentence for
    each of the others, None for each of these; `names` and `targets` are of all.
    """

    def __init__(self, source: Callable[[], Iterator[Sample]], size: int, prepare: Callable[[Tensor], Tensor]):
        self.source, self.size, self.prepare = source, size, prepare

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, samples = get_worker_info(), self.source()
        for number in itertools.count():
            part = list(itertools.islice(samples, self.size))
            if not part:
                return
            if worker is None or number % worker.num_workers == worker.id:  # the loader asks its workers in turn
                yield self.read(part)

    def read(self, part: list[Sample]) -> dict[str, Any]:
        good: list[Tensor] = []
        errors: list[str | None] = []
        for sample in part:
            try:
                x = self.prepare(sample.read())
                if good and x.dim() == 3 and x.shape != good[0].shape:
                    raise UserError(f"{sample.name} is {list(x.shape)} after the run's transforms, others are not.")
                good.append(x)
                errors.append(None)
            except UserError as error:
                errors.append(str(error))
        targets = [sample.target for sample in part]
        return {"names": [sample.name for sample in part], "errors": errors, "x": joined(good), "targets": targets}


def joined(samples: list[Tensor]) -> tuple[Tensor, ...] | None:
    """Samples as a model takes them: a batch, or for sequences (values padded with zeros, lengths)."""
    if not samples:
        return None
    if samples[0].dim() == 2:
        return pad_sequence(samples, batch_first=True), torch.tensor([len(values) for values in samples])
    return (torch.stack(samples),)


def to_predict(datamodule: LightningDataModule, split: str) -> LightningDataModule:
    """The datamodule, so changed that a split is what it predicts. Raises UserError if it has no loader for it."""
    if isinstance(datamodule, DataModule):
        datamodule.tested = split
        split = "test"
    if split == "train":  # which may be shuffled
        raise UserError("`split` of your own datamodule must be one of val, test, predict; got `train`.")
    if not is_overridden(f"{split}_dataloader", datamodule):
        raise UserError(f"{type(datamodule).__name__} has no {split}_dataloader; choose another split.")
    stages = {"val": "validate", "test": "test", "predict": "predict"}
    loader, setup = getattr(datamodule, f"{split}_dataloader"), datamodule.setup
    changed: Any = datamodule
    changed.setup = lambda stage: setup(stages[split])
    changed.predict_dataloader = lambda: iter(loader())  # Lightning would build a loader anew, which may fail
    return changed


class Predictor(LightningModule):
    """A row for each sample of `batches.Batches`; one that could not be read has an error in place of values."""

    def __init__(self, graph: Callable[..., Tensor], metadata: Metadata, top_k: int, all_probs: bool):
        super().__init__()
        self.graph, self.metadata, self.top_k, self.all_probs = graph, metadata, top_k, all_probs

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[dict[str, Any]]:
        values, digits = [], 7
        if batch["x"] is not None:
            outputs = self.graph(*batch["x"])
            values, digits = outputs.tolist(), 15 if outputs.dtype == torch.float64 else 7
        width, classes = int(next(iter(self.metadata.outputs.values()))[1]), self.metadata.classes
        empty = dict.fromkeys(cells([0.0] * width, classes, self.top_k, self.all_probs))
        read, rows = (cells(outputs, classes, self.top_k, self.all_probs, digits) for outputs in values), []
        for name, error, target in zip(batch["names"], batch["errors"], batch["targets"], strict=True):
            row = {"name": name} | (empty if error else next(read))
            if target is not None:
                row["target"] = classes[target] if classes else rounded(target, digits)
            rows.append(row | {"error": error})
        return rows


def cells(
    outputs: list[float], classes: list[str] | None, top_k: int, all_probs: bool, digits: int = 7
) -> dict[str, Any]:
    """Values as they are; of probabilities the best classes with theirs, and all of them if they are asked for."""
    if not classes:
        names = ["prediction"] if len(outputs) == 1 else [f"prediction_{n + 1}" for n in range(len(outputs))]
        return {name: rounded(value, digits) for name, value in zip(names, outputs, strict=True)}
    row: dict[str, Any] = {}
    for n, index in enumerate(sorted(range(len(classes)), key=lambda index: -outputs[index])[:top_k], 1):
        end = f"_{n}" if n > 1 else ""
        row |= {f"prediction{end}": classes[index], f"probability{end}": rounded(outputs[index], 6)}
    if all_probs:
        row |= {f"prob_{name}": rounded(prob, 6) for name, prob in zip(classes, outputs, strict=True)}
    return row


def rounded(value: Any, digits: int = 7) -> Any:
    """A value as JSON has it: a float in the digits that float32 has, nothing for NaN."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


@contextmanager
def writing(path: Path | None, overwrite: bool) -> Iterator[RowWriter]:
    """A writer to a file, or to the screen; arrays go to a .npz beside the file. After an error nothing is left."""
    if path is None:
        yield RowWriter(sys.stdout, ".csv")
        return
    with output.writing(path, overwrite) as beside:
        with open(beside, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = RowWriter(file, path.suffix.lower())
            yield writer
        if writer.arrays:
            content: dict[str, Any] = {name: np.concatenate(parts) for name, parts in writer.arrays.items()}
            with output.writing(path.with_suffix(".npz"), overwrite) as other:
                np.savez(other, **content)


class RowWriter(Callback):
    """Writes the rows of each batch as it comes, as CSV or, for .jsonl, as a line of JSON each.

    A predict_step of the user's gives a dict: what has one value for each sample is a column; larger arrays stay in
    memory, in `arrays`, batch by batch.
    """

    def __init__(self, file: TextIO, ending: str):
        self.file, self.ending = file, ending
        self.total = self.unreadable = 0
        self.csv: csv.DictWriter | None = None
        self.arrays: dict[str, list[np.ndarray]] = {}

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.write(outputs if isinstance(pl_module, Predictor) else self.own_rows(outputs))

    def write(self, rows: list[dict[str, Any]]) -> None:
        self.total += len(rows)
        self.unreadable += sum(row["error"] is not None for row in rows)
        if self.ending == ".jsonl":
            self.file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        if self.csv is None:
            self.csv = csv.DictWriter(self.file, list(rows[0]))
            self.csv.writeheader()
        self.csv.writerows(rows)

    def own_rows(self, outputs: Any) -> list[dict[str, Any]]:
        """The rows of what a user's own predict_step returns."""
        if not isinstance(outputs, Mapping) or not outputs:
            raise UserError(
                "`predict_step` must return a dict of tensors or lists with an entry for each sample; got "
                f"`{type(outputs).__name__}`."
            )
        arrays = {str(name): as_array(values) for name, values in outputs.items()}
        sizes = {name: len(array) if array.ndim else None for name, array in arrays.items()}
        size = next(iter(sizes.values()))
        if size is None or set(sizes.values()) != {size}:
            raise UserError(f"`predict_step` must return an entry for each sample under each name; got {sizes}.")
        columns = {name: array.reshape(size).tolist() for name, array in arrays.items() if array.size == size}
        for name, array in arrays.items():
            if name not in columns:
                self.keep(name, array)
        return [
            {"name": str(self.total + index)}
            | {name: rounded(column[index]) for name, column in columns.items()}
            | {"error": None}
            for index in range(size)
        ]

    def keep(self, name: str, array: np.ndarray) -> None:
        if self.file is sys.stdout:
            raise UserError(f"{name} of `predict_step` is an array, which needs a file; type output=<file>.csv.")
        parts = self.arrays.setdefault(name, [])
        if parts and parts[0].shape[1:] != array.shape[1:]:
            raise UserError(
                f"{name} of `predict_step` must have one shape for all samples; got {list(parts[0].shape[1:])} and "
                f"{list(array.shape[1:])}."
            )
        parts.append(array)


def as_array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype in (torch.float16, torch.bfloat16) else values).numpy()
    return np.asarray(values)
