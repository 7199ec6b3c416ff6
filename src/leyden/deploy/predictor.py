"""A prediction under a Trainer: batches of samples in, columns of names and values out."""

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from leyden import UserError, require
from leyden.data import decode
from leyden.data.datamodule import DataModule
from leyden.data.samples import transformed
from leyden.deploy import graph, inputs, output
from leyden.deploy.graph import Metadata
from leyden.deploy.inputs import Sample
from leyden.run import build, configs, paths
from leyden.tasks.supervised import Supervised


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


def to_predict(task: LightningModule, datamodule: LightningDataModule, split: str) -> LightningDataModule:
    """The datamodule, so changed that a split is what it predicts.

    Raises:
        UserError: it has no loader for it, or one that may be shuffled.
    """
    if isinstance(datamodule, DataModule) and split != "predict":
        datamodule.tested, split = split, "test"
    good = split != "train" and is_overridden(f"{split}_dataloader", datamodule)
    require(good, "split", f"one of val, test, predict that {type(datamodule).__name__} has a loader for", split)
    loader, setup = getattr(datamodule, f"{split}_dataloader"), datamodule.setup

    def predict_dataloader() -> Any:
        loaders = loader()
        if not isinstance(loaders, list | tuple | dict):
            return iter(loaders)  # Lightning would build a loader anew, which may fail
        if "dataloader_idx" not in inspect.signature(task.predict_step).parameters:
            raise UserError(f"There are several loaders: predict_step of {type(task).__name__} needs a dataloader_idx.")
        return [iter(each) for each in (loaders.values() if isinstance(loaders, dict) else loaders)]

    changed: Any = datamodule
    changed.setup = lambda stage: setup("validate" if split == "val" else split)
    changed.predict_dataloader = predict_dataloader
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


# in Python


class Loaded(NamedTuple):
    """A run that is ready to use: `loaded(x)` predicts, in 32 bits and on the task's device."""

    config: DictConfig
    model: nn.Module
    datamodule: LightningDataModule
    task: LightningModule

    @torch.no_grad()
    def __call__(self, x: Any, top_k: int = 1, all_probs: bool = False) -> Any:
        """The rows of predict.py for a batch as the loader yields it, for its x alone, or for one sample.

        x: B x the shape of a sample, as arrays or tensors; of sequences a pair of values, B x T x F, and lengths, B,
        or one of T x F. A task of your own gets the batch, and gives what its `predict_step` returns.

        Raises:
            UserError: x is not of the model's shape, or the task has no predict_step.
        """
        task: Any = self.task
        if is_overridden("predict_step", task):
            batch = self.datamodule.transfer_batch_to_device(x, task.device, 0)
            return task.predict_step(self.datamodule.on_after_batch_transfer(batch, 0), 0)
        require(isinstance(task, Supervised), "task", "one with a predict_step(batch, batch_idx)", type(task).__name__)
        metadata = graph.metadata_of(self.config, task.meaning)
        parts, targets = raw_parts(x, metadata)
        batch = {"names": [*map(str, range(len(parts[0])))], "targets": targets, "errors": [None] * len(parts[0])}
        batch["x"] = tuple(part.to(task.device) for part in parts)
        columns = Predictor(graph.Graph(task), metadata, top_k, all_probs).predict_step(batch, 0)
        return output.table([columns])[0]


def raw_parts(x: Any, metadata: Metadata) -> tuple[list[Tensor], list[Any]]:
    """What the model takes of a batch of the loader, of its x or of one sample; and the targets, or None for each."""
    sequence, y = metadata.kind == "sequence", None
    if isinstance(x, tuple | list) and hasattr(x[0], "shape") != sequence:
        x, y = x[:2]
    values, *lengths = [torch.as_tensor(part) for part in (x if isinstance(x, tuple) else [x])]
    values = values[None] if values.dim() == len(next(iter(metadata.inputs.values()))) - 1 else values
    if metadata.kind != "image":
        values = values.float()
    elif values.dtype == torch.uint8:
        values = decode.resized(values, metadata.size)
    inputs.check_fits("x", values, metadata, values.is_floating_point() or values.dtype == torch.uint8)
    if sequence and not lengths:
        lengths = [torch.full((len(values),), values.shape[1])]
    targets = [None] * len(values) if y is None else list(torch.as_tensor(y).reshape(len(values), -1))
    return [values, *lengths], targets


def load(run: Path | str, exact: bool = True, trusted: Sequence[str] = ()) -> Loaded:
    """`leyden.load`: a run by what `run=` takes, with the weights of its best checkpoint or of the one that is named.

    `exact=False`: also where the data has changed; `trusted`: packages that it may build from, besides those in conf/.

    Raises:
        UserError: there is no such run, it may not be built, or its data is gone or has changed.
    """
    found = paths.find(str(run), paths.logs_folder())
    tree = configs.stored(found.directory)
    own = OmegaConf.load(paths.CONF / "_packages.yaml").own
    tree.update(run=str(found.checkpoint(str(run))), run_dir=None, own=own, trusted=list(trusted), exact=exact)
    if OmegaConf.select(tree, "model.weights"):  # the checkpoint has them
        tree.model.weights = None
    task, datamodule = build.trained(tree).eval(), build.data(tree)
    networks = [part for part in task.children() if any(True for _ in part.parameters())]
    model = networks[0] if len(networks) == 1 else getattr(task, "model", task)
    return Loaded(tree, model, datamodule, task)
