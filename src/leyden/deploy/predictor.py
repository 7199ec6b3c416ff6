"""A prediction under a Trainer: batches of samples in, rows out, to a file or the screen."""

import csv
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

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.deploy import output
from leyden.deploy.graph import Metadata, transformed
from leyden.deploy.inputs import Sample


def collate(transforms: list[Callable[[Tensor], Tensor]], samples: list[Sample]) -> dict[str, Any]:
    """Read a batch: `x` is what the model takes of the samples that could be read, `errors` has a sentence or None."""
    good: list[Tensor] = []
    errors: list[str | None] = []
    for sample in samples:
        try:
            x = transformed(sample.read(), transforms)
            if good and x.dim() == 3 and x.shape != good[0].shape:
                raise UserError(f"{sample.name} is {list(x.shape)} after the run's transforms, others are not.")
            good.append(x)
            errors.append(None)
        except UserError as error:
            errors.append(str(error))
    names, targets = [sample.name for sample in samples], [sample.target for sample in samples]
    return {"names": names, "targets": targets, "errors": errors, "x": joined(good) if good else None}


def joined(samples: list[Tensor]) -> tuple[Tensor, ...]:
    """The inputs of a graph: of sequences, the values padded with zeros, and the lengths."""
    if samples[0].dim() == 2:
        return pad_sequence(samples, batch_first=True), torch.tensor([len(values) for values in samples])
    return (torch.stack(samples),)


def to_predict(datamodule: LightningDataModule, split: str) -> LightningDataModule:
    """The datamodule, so changed that a split is what it predicts.

    Raises:
        UserError: it has no loader for it, or one that may be shuffled.
    """
    if isinstance(datamodule, DataModule) and split != "predict":
        datamodule.tested, split = split, "test"
    if split == "train" or not is_overridden(f"{split}_dataloader", datamodule):
        name = type(datamodule).__name__
        raise UserError(f"`split` must be one of val, test, predict that {name} has a loader for; got `{split}`.")
    loader, setup = getattr(datamodule, f"{split}_dataloader"), datamodule.setup
    changed: Any = datamodule
    changed.setup = lambda stage: setup("validate" if split == "val" else split)
    changed.predict_dataloader = lambda: iter(loader())  # Lightning would build a loader anew, which may fail
    return changed


class Predictor(LightningModule):
    """Columns for the samples of `collate`; what could not be read has an error in place of values."""

    def __init__(self, graph: Callable[..., Tensor], metadata: Metadata, top_k: int, all_probs: bool):
        super().__init__()
        self.graph, self.metadata, self.top_k, self.all_probs = graph, metadata, top_k, all_probs

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        errors, targets, classes = batch["errors"], batch["targets"], self.metadata.classes
        width = next(iter(self.metadata.outputs.values()))[1]
        readable = torch.zeros(0, width) if batch["x"] is None else self.graph(*batch["x"]).cpu()
        outputs = readable.new_full((len(errors), width), math.nan)
        outputs[torch.tensor([error is None for error in errors])] = readable
        columns: dict[str, Any] = {"name": batch["names"]}
        columns |= self.best(outputs, classes) if classes else numbered("prediction", outputs)
        if None not in targets:
            columns |= numbered("target", torch.stack(targets))
            if classes:
                columns["target"] = [classes[y] for y in targets]
        return columns | {"error": errors}

    def best(self, probs: Tensor, classes: list[str]) -> dict[str, Any]:
        """The most probable classes with their probabilities, and the probability of each class if it is asked for."""
        columns: dict[str, Any] = {}
        values, order = probs.sort(dim=1, descending=True, stable=True)
        for place in range(min(self.top_k, len(classes))):
            end, ranked = f"_{place + 1}" if place else "", zip(order[:, place].tolist(), values[:, place], strict=True)
            columns[f"prediction{end}"] = [None if prob.isnan() else classes[index] for index, prob in ranked]
            columns[f"probability{end}"] = values[:, place]
        return columns | {f"prob_{name}": probs[:, n] for n, name in enumerate(classes) if self.all_probs}


def numbered(name: str, values: Tensor) -> dict[str, Tensor]:
    """B or B x 1 as one column, B x K as several."""
    columns = values.reshape(len(values), -1).T
    return {name if len(columns) == 1 else f"{name}_{n}": column for n, column in enumerate(columns, 1)}


class RowWriter(Callback):
    """Writes the dict of columns that a predict_step returns, as CSV or as a line of JSON for each sample.

    What has one value for each sample is a column; larger arrays stay in memory, in `arrays`.
    """

    def __init__(self, file: TextIO, as_json: bool = False):
        self.file, self.as_json = file, as_json
        self.total = self.unreadable = 0
        self.arrays: dict[str, list[np.ndarray]] = {}

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        columns = self.columns(outputs)
        rows = list(zip(*columns.values(), strict=True))
        if self.as_json:
            named = (dict(zip(columns, row, strict=True)) for row in rows)
            self.file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in named)
        else:
            csv.writer(self.file).writerows(rows if self.total else [tuple(columns), *rows])
        self.total += len(rows)
        self.unreadable += len(rows) - columns["error"].count(None)

    def columns(self, outputs: Any) -> dict[str, list[Any]]:
        """A list for each column, from `name` to `error`; arrays are kept apart."""
        parts = outputs.items() if isinstance(outputs, Mapping) else ()
        arrays = {str(name): as_array(values) for name, values in parts}
        sizes = {array.shape[:1] for array in arrays.values()}
        if len(sizes) != 1 or () in sizes:
            raise UserError("`predict_step` must return a dict of tensors or lists with an entry for each sample.")
        (size,) = sizes.pop()
        columns: dict[str, list[Any]] = {"name": [str(self.total + index) for index in range(size)]}
        for name, array in arrays.items():
            if array.size == size:
                columns[name] = json_values(array.reshape(size))
            elif self.file is sys.stdout:
                raise UserError(f"{name} of `predict_step` is an array, which needs a file; type output=<file>.csv.")
            else:
                self.arrays.setdefault(name, []).append(array)
        return columns | {"error": columns.pop("error", [None] * size)}


@contextmanager
def writing(path: Path | None, overwrite: bool) -> Iterator[RowWriter]:
    """A writer to a file, or to the screen; arrays go to a .npz beside the file. After an error nothing is left."""
    if path is None:
        yield RowWriter(sys.stdout)
        return
    with output.writing(path, overwrite) as beside:
        with open(beside, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = RowWriter(file, path.suffix.lower() == ".jsonl")
            yield writer
        if writer.arrays:
            content: dict[str, Any] = {name: np.concatenate(parts) for name, parts in writer.arrays.items()}
            with output.writing(path.with_suffix(".npz"), overwrite) as other, open(other, "wb") as archive:
                np.savez(archive, **content)


def as_array(values: Any) -> np.ndarray:
    """What a predict_step gives under one name; bfloat16, which numpy lacks, as float32."""
    if isinstance(values, Tensor):
        values = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu()
    return np.asarray(values)


def json_values(array: np.ndarray) -> list[Any]:
    """Values as JSON has them: floats in the digits that their type has, None for NaN."""
    if array.dtype.kind != "f":
        return array.tolist()
    return [float(str(value)) if np.isfinite(value) else None for value in array]
