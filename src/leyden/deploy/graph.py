"""A task as one plain module, raw input in, probabilities or values out, and the metadata that says so."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from leyden import UserError
from leyden.data import decode
from leyden.data.datamodule import DataModule
from leyden.data.samples import Samples, to_float
from leyden.tasks.supervised import Supervised

BATCHES = (3, 1, 2, 7)  # samples of each batch that an export is checked on; the exporter sees the first
Dims = list[Any]  # the size of each dimension, or a name where any size is taken
Cases = list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]  # inputs, and what the checkpoint makes of them


@dataclass
class Metadata:
    """What a graph takes and gives, in plain values: an exported file holds each field as JSON."""

    kind: str  # image, sequence or table; own: a task of the user's
    inputs: dict[str, Dims]  # in the order of the arguments
    outputs: dict[str, Dims]
    dtype: str = "float32"  # of the first input
    classes: list[str] | None = None
    # of the run's data; the graph resizes, encodes and normalises by itself
    size: list[int] | None = None  # height and width that pictures are resized to
    background: str = "white"  # behind transparent pixels
    columns: list[dict[str, Any]] | None = None  # of a table: categories, or fill and the offset to subtract first
    missing: list[str] = field(default_factory=list)  # cells of a table without a value
    separator: str | None = None
    encoding: str = "utf-8"
    target: str | None = None  # the column that is predicted
    target_std: list[float] | None = None
    # where the file comes from
    run: str | None = None
    checkpoint: str | None = None
    commit: str | None = None  # that trained the run
    versions: dict[str, str] = field(default_factory=dict)  # that wrote the file

    @property
    def dims(self) -> Dims:
        """Of the first input."""
        return next(iter(self.inputs.values()))


def metadata_of(cfg: DictConfig, meaning: str) -> Metadata:
    """The metadata of a task that learns y from x; UserError where the facts do not say what a sample is."""
    tree: Any = OmegaConf.to_container(cfg, resolve=True)
    facts, data = tree["facts"] or {}, tree["data"]
    kind, shape, columns, size = facts.get("kind"), facts.get("shape", ()), facts.get("columns"), data.get("size")
    any_size = size or data.get("eval_transforms")
    inputs: dict[str, dict[str, Dims]] = {
        "image": {"image": ["batch", *shape[:1], *(["height", "width"] if any_size else shape[1:])]},
        "sequence": {"values": ["batch", "time", *shape[1:]], "lengths": ["batch"]},
        "table": {"row": ["batch", len(columns)] if columns else ["batch", *shape]},
    }
    if kind not in inputs or not shape or "outputs" not in facts:
        raise UserError(f"`facts.kind` must be one of {', '.join(inputs)}, with a shape and outputs; got `{kind}`.")
    return Metadata(
        kind,
        inputs[kind],
        outputs={meaning: ["batch", facts["outputs"]]},
        dtype=facts.get("dtype", "float32"),
        classes=facts.get("classes") if meaning == "probs" else None,
        target_std=facts.get("target_std") if meaning == "values" else None,
        size=[size, size] if isinstance(size, int) else size,
        columns=columns,
        **{key: data[key] for key in ("background", "missing", "separator", "encoding", "target") if data.get(key)},
    )


class Graph(nn.Module):
    """A task that learns y from x, without training: raw input -> B x outputs, probabilities or values.

    Raw input: pictures (B x C x H x W; uint8, or float as the data has it), rows (B x columns, NaN where a value is
    missing), or sequences (B x T x F, padded) and their lengths (B). Pictures are resized to `size`, if it is given.
    """

    def __init__(self, task: Supervised, size: Sequence[int] | None = None):
        super().__init__()
        self.size = size
        self.preprocess, self.model, self.readout = task.preprocess, task.model, task.readout()

    def forward(self, *inputs: Tensor) -> Tensor:
        x: Any = self.preprocess(inputs if len(inputs) > 1 else to_float(resized(inputs[0], self.size)))
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        x = x.to(dtype) if isinstance(x, Tensor) else (x[0].to(dtype), *x[1:])
        return self.readout(self.model(x).float())


class OwnGraph(nn.Module):
    """A user's own task by its `forward`; a dict batch enters as its values, in the order of `keys`."""

    def __init__(self, task: nn.Module, keys: list[str] | None = None):
        super().__init__()
        self.model, self.keys = task, keys

    def named_outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs by their names; UserError where they are no tensors."""
        outputs = self.model(dict(zip(self.keys, inputs, strict=True))) if self.keys else self.model(*inputs)
        if not isinstance(outputs, dict):
            several = outputs if isinstance(outputs, list | tuple) else [outputs]
            outputs = {f"output{number or ''}": part for number, part in enumerate(several)}
        if not outputs or not all(isinstance(part, Tensor) for part in outputs.values()):
            raise UserError(f"forward of {type(self.model).__name__} must give a tensor, several, or a dict of them.")
        return outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.named_outputs(*inputs).values())


def from_data(task: Supervised, datamodule: LightningDataModule, metadata: Metadata) -> tuple[Graph, Metadata, Cases]:
    """A task of leyden, on samples of val, or else of test or train; UserError where the data shows none."""
    if not isinstance(datamodule, DataModule) or datamodule.transforms["val"]:
        raise UserError("An export is checked on samples of a datamodule of leyden, and one without eval_transforms.")
    samples = next(datamodule.splits[split] for split in ("val", "test", "train") if len(datamodule.splits[split]))
    cases: Cases = []
    for count in BATCHES:
        inputs = raw_batch(samples, metadata, count)
        x: Any = inputs if len(inputs) > 1 else to_float(decode.resized(inputs[0], metadata.size))
        with torch.no_grad():
            cases.append((inputs, (task.readout()(task(x).float()),)))
    return Graph(task, metadata.size).eval(), metadata, cases


def raw_batch(samples: Samples, metadata: Metadata, count: int) -> tuple[Tensor, ...]:
    """Some samples; where any length or size is taken, of one that depends on `count`."""
    x, _, _ = samples.__getitems__([(count + place) % len(samples) for place in range(count)])
    if metadata.kind == "sequence":
        values, lengths = x
        return pad(values, (0, 0, 0, count - 1)), lengths
    if metadata.size:
        height, width = metadata.size
        x = decode.resized(x, [height + 9 * (count - 1), width + 5 * (count - 1)])
    return (x,)


def from_example(task: LightningModule) -> tuple[OwnGraph, Metadata, Cases]:
    """A user's own task, by its forward and `example_input`; UserError where it lacks one of them."""
    example: Any = getattr(task, "example_input", None)
    keys = list(example) if isinstance(example, dict) else None
    parts = list(example.values()) if keys else example if isinstance(example, tuple | list) else [example]
    good = parts and all(isinstance(part, Tensor) and part.dim() and len(part) for part in parts)
    if not good or not is_overridden("forward", task):
        needs = "a forward(batch) and an example_input, tensors that are a batch for it"
        raise UserError(f"{type(task).__name__} cannot be exported: it needs {needs}.")
    graph = OwnGraph(task, keys).eval()
    batches = [tuple(part.detach().cpu()[torch.arange(n) % len(part)] for part in parts) for n in BATCHES]
    with torch.no_grad():
        cases: Cases = [(inputs, graph(*inputs)) for inputs in batches]
        named = graph.named_outputs(*batches[0])
    inputs = dict(zip(keys or inspect.signature(task.forward).parameters, parts, strict=False))
    dims, outputs = ({key: ["batch", *x.shape[1:]] for key, x in part.items()} for part in (inputs, named))
    return graph, Metadata("own", dims, outputs, str(parts[0].dtype).removeprefix("torch.")), cases


def resized(image: Tensor, size: Sequence[int] | None) -> Tensor:
    """As of `leyden.data.decode`, but for exporters, which know no uint8 there: rounded to whole levels."""
    if size is None:
        return image
    image = interpolate(image.float(), tuple(size), mode="bilinear", antialias=True)
    return image.round().clamp(0, 255).to(torch.uint8)
