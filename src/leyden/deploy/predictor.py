"""A prediction: batches in, rows out, in Python or in a file, which is written whole or not at all."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from pandas import DataFrame
from torch import Tensor, nn
from torch.utils.data import DataLoader

from leyden import UserError, files, listed, require
from leyden.data.datamodule import SPLITS, DataModule, cores
from leyden.data.image_folder import Pictures
from leyden.data.samples import to_float
from leyden.deploy import graph, inputs
from leyden.run import build, configs, paths
from leyden.tasks.supervised import Supervised


class Predictor(LightningModule):
    """Columns for the samples of a batch; what could not be read has an error in place of values."""

    def __init__(self, model: nn.Module, metadata: graph.Metadata, top_k: int, all_probs: bool):
        super().__init__()
        self.graph, self.metadata, self.top_k, self.all_probs = model, metadata, top_k, all_probs

    def predict_step(self, batch: dict[str, Any], batch_idx: int = 0) -> dict[str, Any]:
        """A batch has `names`, `x` of the samples without error, and, if there are any, `y` or `errors`."""
        names, x, y, classes = batch["names"], batch["x"], batch.get("y"), self.metadata.classes
        columns = {"name": names, "error": batch.get("errors", [None] * len(names))}
        readable, (_, width) = torch.tensor([e is None for e in columns["error"]]), *self.metadata.outputs.values()
        outputs = torch.full((len(names), width), torch.nan, dtype=torch.float32)
        if x is not None:
            values, *lengths = [x] if isinstance(x, Tensor) else x
            outputs[readable] = self.graph(to_float(values).to(self.dtype), *lengths).cpu()

        if not classes:
            return columns | numbered("prediction", outputs) | ({} if y is None else numbered("target", y))
        probs, order = outputs.sort(dim=1, descending=True, stable=True)
        best: Any = np.where(readable[:, None], np.array(classes, object)[order], None)
        for place in range(min(self.top_k, len(classes))):
            end = f"_{place + 1}" if place else ""
            columns |= {f"prediction{end}": best[:, place], f"probability{end}": probs[:, place]}
        if self.all_probs:
            columns |= {f"prob_{label}": outputs[:, n] for n, label in enumerate(classes)}
        if y is not None:
            columns["target"] = [classes[label] for label in y.flatten().tolist()]
        return columns


def numbered(name: str, values: Tensor) -> dict[str, Tensor]:
    """B or B x 1 as one column, B x K as several."""
    columns = values.reshape(len(values), -1).T
    return {name if len(columns) == 1 else f"{name}_{n}": column for n, column in enumerate(columns, 1)}


def of_task(cfg: DictConfig, task: Any, top_k: int, all_probs: bool) -> Predictor:
    """For a task that learns y from x, else UserError."""
    require(isinstance(task, Supervised), "task", "one with a predict_step(batch, batch_idx)", type(task).__name__)
    return Predictor(graph.Graph(task), graph.metadata_of(cfg, task.meaning), top_k, all_probs)


def of_command(cfg: DictConfig) -> tuple[Any, Any]:
    """The module that predicts, and its loader, or for a user's own task the datamodule."""
    task = build.trained(cfg)
    own = is_overridden("predict_step", task)
    require(cfg.split or not own, "input", "replaced by split=test for a task of your own", cfg.input)
    cfg.data.update({key: cfg[key] for key in ("batch_size", "num_workers") if cfg[key] is not None})
    data: Any = build.data(cfg, cfg.split) if cfg.split else None

    if own:
        return task, to_predict(data, cfg.split)
    model = of_task(cfg, task, cfg.top_k, cfg.all_probs)
    if data:
        good = cfg.split in SPLITS and isinstance(data, DataModule)
        require(good, "split", "one of train, val, test of a datamodule of leyden", cfg.split)
        return model, of_split(cfg.split, data)

    samples: Any = list(inputs.of_path(str(cfg.input), model.metadata).items())
    transforms = [build.make(cfg, "data.eval_transforms", node) for node in cfg.data.get("eval_transforms") or []]
    workers = cfg.data.get("num_workers")
    if not isinstance(workers, int):  # few samples are not worth a process
        workers = min(cores(), len(samples) // 100)
    collate = partial(inputs.collate, model.metadata, transforms)
    return model, DataLoader(samples, cfg.data.get("batch_size") or 64, num_workers=workers, collate_fn=collate)


def of_split(split: str, data: DataModule) -> Iterator[dict[str, Any]]:
    """The batches of a split, for a Predictor."""
    source = data.splits[split].x
    for x, y, keys in data.loader(split):
        names = [f"{split}[{key}]" for key in keys.tolist()]
        if isinstance(source, Pictures):
            names = list(map(files.shown, source.files(source.rows[keys])))
        yield {"names": names, "x": x, "y": y}


def to_predict(data: Any, split: str) -> Any:
    """The datamodule, made to predict a split; UserError where it has no loader."""
    if isinstance(data, DataModule) and split == "train":
        data.tested, split = split, "test"

    good = split != "train" and is_overridden(f"{split}_dataloader", data)
    require(good, "split", f"one of val, test, predict that {type(data).__name__} has a loader for", split)
    loader, setup = getattr(data, f"{split}_dataloader"), data.setup
    data.setup = lambda stage: setup("validate" if split == "val" else split)
    # iterators: Lightning would build loaders anew, which may fail
    data.predict_dataloader = lambda: list(map(iter, CombinedLoader(loader()).flattened))
    return data


def table(outputs: list[Any]) -> tuple[DataFrame, dict[str, np.ndarray]]:
    """Rows, and arrays of several values a sample, of what predict_steps returned; of several loaders a list each."""
    groups = outputs if outputs and isinstance(outputs[0], list) else [outputs]
    parts = [(number, part) for number, group in enumerate(groups) for part in group]
    if not parts:
        raise UserError("There is nothing to predict.")
    try:
        whole = {str(name): np.concatenate([as_array(part[name]) for _, part in parts]) for name in parts[0][1]}
        (count,) = {len(array) for array in whole.values()}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        must = "a dict of tensors or lists, one entry a sample, of the same names and shapes"
        raise UserError(f"`predict_step` must return {must}.") from error

    columns: Any = {"name": np.arange(count).astype(str)}
    if len(groups) > 1:
        columns["dataloader_idx"] = [number for number, part in parts for _ in next(iter(part.values()))]
    for name in [name for name, array in whole.items() if array.size == count]:
        values = whole.pop(name).reshape(count)  # floats with the digits that their type has
        columns[name] = values.astype(str).astype(float) if values.dtype.kind == "f" else values
    return DataFrame(columns | {"error": columns.pop("error", None)}), whole


def as_array(values: Any) -> np.ndarray:
    """A column in numpy, without bfloat16."""
    return np.asarray(values.float() if getattr(values, "dtype", None) == torch.bfloat16 else values)


def save(outputs: Any, path: Path | None, beside: Path | None, overwrite: bool) -> DataFrame:
    """Write what predict_steps returned to the screen or beside the file, arrays to a .npz file."""
    rows, arrays = table(outputs)
    if arrays and path is None:
        raise UserError(f"{listed(arrays)} are arrays; type output=<file>.csv.")

    if path and path.suffix.lower() == ".jsonl":
        rows.to_json(beside, orient="records", lines=True, force_ascii=False, double_precision=15)
    else:
        rows.to_csv(beside or sys.stdout, index=False)
    if path and arrays:
        with writing(path.with_suffix(".npz"), overwrite) as other, open(other, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    return rows


@contextmanager
def writing(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path beside the file, which takes its place at the end; after an error nothing is left.

    UserError where it may not be replaced or written.
    """
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; type another output, or overwrite=true.")
    made = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()  # mistakes are told before work
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); set output=<file>.") from error
    try:
        with files.replacing(path) as beside:
            yield beside
    finally:
        if made:
            with suppress(OSError):  # a folder with files in it stays
                path.parent.rmdir()


class Loaded(NamedTuple):
    """A run that is ready to use: `loaded(x)` predicts, in 32 bits and on the task's device."""

    config: DictConfig
    model: nn.Module
    datamodule: LightningDataModule
    task: LightningModule

    @torch.no_grad()
    def __call__(self, x: Any, top_k: int = 1, all_probs: bool = False) -> Any:
        """The rows of predict.py, as a DataFrame, for a batch as the loader yields it, its x alone, or one sample.

        UserError for other shapes. A task of your own gets a batch, and gives what its predict_step returns.
        """
        task, y = self.task, None
        if is_overridden("predict_step", task):
            return task.predict_step(self.datamodule.on_after_batch_transfer(x, 0), 0)

        predictor = of_task(self.config, task, top_k, all_probs)
        sequence = predictor.metadata.kind == "sequence"
        if isinstance(x, tuple | list) and hasattr(x[0], "shape") != sequence:  # a batch
            x, y, *_ = x
        values, *lengths = map(torch.as_tensor, x if isinstance(x, tuple | list) else [x])
        values = inputs.as_batch(values, predictor.metadata, floats=True)
        if sequence and not lengths:
            lengths = [torch.full((len(values),), values.shape[1])]

        names, x = np.arange(len(values)).astype(str), [part.to(task.device) for part in (values, *lengths)]
        return table([predictor.predict_step({"names": names, "x": x, "y": y})])[0]


def load(run: Path | str, exact: bool = True, trusted: Any = ()) -> Loaded:
    """`leyden.load`: what `run=` takes, with its best weights or the named checkpoint's.

    `exact=False`: also where the data has changed; `trusted`: packages it may build from besides those in conf/.
    UserError where there is no run, or it may not be built.
    """
    found = paths.find(str(run), paths.logs_folder())
    tree = configs.stored(found.directory)
    own = OmegaConf.load(paths.CONF / "_packages.yaml").own
    tree.update(run=str(found.checkpoint(str(run))), run_dir=None, own=own, trusted=list(trusted), exact=exact)

    task, data = build.trained(tree).eval(), build.data(tree)
    data.prepare_data()
    for stage in ("fit", "test"):
        data.setup(stage)
    return Loaded(tree, getattr(task, "model", getattr(task, "net", task)), data, task)
