"""A prediction under a Trainer: batches of samples in, columns of names and values out."""

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leyden import UserError, require
from leyden.data.datamodule import DataModule
from leyden.data.samples import transformed
from leyden.deploy.graph import Metadata
from leyden.deploy.inputs import Sample


def collate(transforms: list[Callable[[Tensor], Tensor]], samples: list[Sample]) -> dict[str, Any]:
    """Read a batch: `x` is what the model takes of the samples that could be read, `errors` has a sentence or None."""
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
    x: Any = (torch.stack(good),) if good and good[0].dim() != 2 else None
    if good and x is None:  # sequences, padded with zeros, and their lengths
        x = pad_sequence(good, batch_first=True), torch.tensor([len(values) for values in good])
    return {"names": [s.name for s in samples], "targets": [s.target for s in samples], "errors": errors, "x": x}


def to_predict(datamodule: LightningDataModule, split: str) -> LightningDataModule:
    """The datamodule, so changed that a split is what it predicts.

    Raises:
        UserError: it has no loader for it, or one that may be shuffled.
    """
    if isinstance(datamodule, DataModule) and split != "predict":
        datamodule.tested, split = split, "test"
    good = split != "train" and is_overridden(f"{split}_dataloader", datamodule)
    require(good, "split", f"one of val, test, predict that {type(datamodule).__name__} has a loader for", split)
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
        if not classes:
            known = {} if None in targets else numbered("target", torch.stack(targets))
            return columns | numbered("prediction", outputs) | known | {"error": errors}
        values, order = outputs.sort(dim=1, descending=True, stable=True)
        for place in range(min(self.top_k, len(classes))):
            end, best = f"_{place + 1}" if place else "", order[:, place].tolist()
            columns[f"prediction{end}"] = [None if e else classes[k] for k, e in zip(best, errors, strict=True)]
            columns[f"probability{end}"] = values[:, place]
        columns |= {f"prob_{name}": outputs[:, n] for n, name in enumerate(classes) if self.all_probs}
        if None not in targets:
            columns["target"] = [classes[y] for y in targets]
        return columns | {"error": errors}


def numbered(name: str, values: Tensor) -> dict[str, Tensor]:
    """B or B x 1 as one column, B x K as several."""
    columns = values.reshape(len(values), -1).T
    return {name if len(columns) == 1 else f"{name}_{n}": column for n, column in enumerate(columns, 1)}
