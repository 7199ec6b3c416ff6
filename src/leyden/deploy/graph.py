"""A task as one module, raw input in, probabilities or values out, and the metadata that says so."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from leyden import UserError, require
from leyden.data import decode
from leyden.data.datamodule import DataModule
from leyden.data.samples import to_float
from leyden.run import build
from leyden.tasks.supervised import Supervised

BATCHES = (3, 1, 2, 7)  # samples that an export is checked on; the exporter sees the first
READING: dict[str, Any] = {"background": "white", "separator": None, "missing": [], "encoding": "utf-8"}
Dims = list[Any]  # the size of each dimension, or a name where any size is taken
Cases = list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]  # inputs, and what the checkpoint makes of them


@dataclass
class Metadata:
    """What a graph takes and gives, in plain values."""

    kind: str  # image, sequence or table; own: a task of the user's
    inputs: dict[str, Dims]  # in the order of the arguments
    outputs: dict[str, Dims]
    dtype: str = "float32"  # of the first input
    classes: list[str] | None = None
    target_std: list[float] | None = None
    size: list[int] | None = None  # height and width that the graph resizes pictures to
    columns: list[dict[str, Any]] | None = None  # of a table: categories, or fill and offset
    data: dict[str, Any] = field(default_factory=READING.copy)  # how a file is read

    @property
    def dims(self) -> Dims:
        """Of the first input."""
        return next(iter(self.inputs.values()))


def metadata_of(cfg: DictConfig, meaning: str) -> Metadata:
    """For a task that learns y from x; UserError where no fact says what x is."""
    tree: Any = OmegaConf.to_container(cfg, resolve=True)
    facts, data = tree["facts"] or {}, tree["data"]
    kind, shape, columns, size = facts.get("kind"), facts.get("shape", ()), facts.get("columns"), data.get("size")
    sides = ["height", "width"] if size or data.get("eval_transforms") else shape[1:]
    inputs: Any = {
        "image": {"image": ["batch", *shape[:1], *sides]},
        "sequence": {"values": ["batch", "time", *shape[1:]], "lengths": ["batch"]},
        "table": {"row": ["batch", *([len(columns)] if columns else shape)]},
    }
    require(kind in inputs, "facts.kind", f"one of {', '.join(inputs)}", kind)

    known = ["kind", "dtype", "columns", "classes" if meaning == "probs" else "target_std"]
    more: Any = {key: facts[key] for key in known if key in facts}
    more["size"] = [size, size] if isinstance(size, int) else size
    more["data"] = {key: data.get(key) or usual for key, usual in READING.items()}
    return Metadata(inputs=inputs[kind], outputs={meaning: ["batch", facts["outputs"]]}, **more)


class Graph(nn.Module):
    """A task that learns y from x, without training: raw input -> B x outputs, probabilities or values.

    Raw: pictures, of any size if there is `size`, rows with NaN, or padded sequences and their lengths.
    """

    def __init__(self, task: Supervised, size: list[int] | None = None):
        super().__init__()
        self.size, self.preprocess, self.model, self.readout = size, task.preprocess, task.model, task.readout()

    def forward(self, *inputs: Tensor) -> Tensor:
        x = inputs if len(inputs) > 1 else to_float(resized(inputs[0], self.size))
        return self.readout(self.model(self.preprocess(x)).float())


def resized(image: Tensor, size: list[int] | None) -> Tensor:
    """As in `leyden.data.decode`, but for exporters, which know no uint8 there."""
    if size is None:
        return image
    image = interpolate(image.float(), tuple(size), mode="bilinear", antialias=True)
    return image.round().clamp(0, 255).to(torch.uint8)


@torch.no_grad()
def from_data(cfg: DictConfig, task: Supervised) -> tuple[Graph, Metadata, Cases]:
    """A task of leyden on raw samples, of several lengths or sizes if any will do."""
    data = build.data(cfg)
    if not isinstance(data, DataModule) or data.transforms["val"]:
        raise UserError("An export needs a datamodule of leyden without eval_transforms.")

    metadata, cases = metadata_of(cfg, task.meaning), Cases()
    size, samples = metadata.size, data.splits["val"] or data.splits["test"] or data.splits["train"]
    for count in BATCHES:
        x, _, _ = samples.__getitems__([(count + place) % len(samples) for place in range(count)])
        if metadata.kind == "sequence":
            inputs: Any = pad(x[0], (0, 0, 0, count - 1)), x[1]
        else:
            inputs = (decode.resized(x, size and [side + 9 * (count - 1) for side in size]),)
        seen = inputs if len(inputs) > 1 else to_float(decode.resized(inputs[0], size))
        cases.append((inputs, (task.readout()(task(seen).float()),)))

    return Graph(task, size).eval(), metadata, cases


class OwnGraph(nn.Module):
    """A user's own task by its `forward`; the tensors of its batch enter one by one."""

    def __init__(self, task: nn.Module, structure: Any):
        super().__init__()
        self.model, self.structure = task, structure

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(tree_leaves(self.model(*tree_unflatten(inputs, self.structure))))


@torch.no_grad()
def from_example(task: LightningModule) -> tuple[OwnGraph, Metadata, Cases]:
    """A user's own task, by its forward and `example_input`; UserError where it lacks one of them."""
    example = getattr(task, "example_input", None)
    batch = tuple(example) if isinstance(example, tuple | list) else (example,)
    parts, structure = tree_flatten(batch)

    good = is_overridden("forward", task) and all(isinstance(x, Tensor) and x.dim() for x in parts)
    outputs = task(*batch) if good else None
    several = tree_leaves(outputs)
    if not all(isinstance(x, Tensor) for x in several):
        needs = "a forward(batch) that gives tensors, and a batch of tensors as example_input"
        raise UserError(f"{type(task).__name__} cannot be exported: it needs {needs}.")

    graph = OwnGraph(task, structure).eval()
    batches = [tuple(x[torch.arange(count) % len(x)] for x in parts) for count in BATCHES]
    cases: Cases = [(inputs, graph(*inputs)) for inputs in batches]
    keys = example if isinstance(example, dict) else inspect.signature(task.forward).parameters
    names = outputs if isinstance(outputs, dict) else [f"output{n or ''}" for n, _ in enumerate(several)]
    return graph, Metadata("own", dims_of(keys, parts), dims_of(names, several), str(parts[0].dtype)[6:]), cases


def dims_of(names: Any, parts: list[Tensor]) -> dict[str, Dims]:
    """The sizes of named tensors, any number of samples."""
    return {name: ["batch", *x.shape[1:]] for name, x in zip(names, parts, strict=False)}
