"""Whether a file gives the checkpoint's numbers: it is loaded again, and run on real samples."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.nn.functional import pad

from leyden import Failed, UserError, said
from leyden.data.datamodule import DataModule
from leyden.data.decode import resized
from leyden.data.image_folder import ImageFolder
from leyden.data.samples import Samples, to_float, transformed
from leyden.deploy import formats
from leyden.deploy.graph import Graph, Metadata, OwnGraph, resize_in_float
from leyden.tasks.supervised import Supervised

BATCHES = (3, 1, 2, 7)  # samples of each batch; the exporter sees the first
TOLERANCE, RESIZED = 1e-4, 0.01  # largest difference; the same where pictures are resized, in whole levels
Cases = list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]  # inputs, and what the checkpoint makes of them


def from_data(task: Supervised, datamodule: LightningDataModule, metadata: Metadata) -> tuple[Graph, Metadata, Cases]:
    """A task of leyden, and real samples of val, or else of test or train.

    Raises UserError for a datamodule that does not show its samples one by one.
    """
    if not isinstance(datamodule, DataModule):
        raise UserError("An export is checked on real samples, which only a datamodule of leyden shows one by one.")
    samples = next(datamodule.splits[split] for split in ("val", "test", "train") if len(datamodule.splits[split]))
    if metadata.kind == "image" and not isinstance(datamodule, ImageFolder):
        metadata.dtype = str(samples.x.dtype).removeprefix("torch.")
        metadata.inputs["image"][1:] = list(samples.x.shape[1:])  # before any transforms
    steps: list[Any] = [partial(resize_in_float, size=metadata.size)] if metadata.size else []
    batches = [raw_batch(samples, metadata, count) for count in BATCHES]
    cases: Cases = [(inputs, (reference(task, samples, metadata, inputs),)) for inputs in batches]
    return Graph(task, [*steps, *samples.transforms]).eval(), metadata, cases


def raw_batch(samples: Samples, metadata: Metadata, count: int) -> tuple[Tensor, ...]:
    """Samples before transforms; where any length or size is taken, of one that depends on `count`."""
    keys, more = [(count + place) % len(samples) for place in range(count)], count - 1
    if metadata.kind == "sequence":
        (values, lengths), _, _ = samples.__getitems__(keys)
        return pad(values, (0, 0, 0, more)), lengths
    parts, size = [samples.x[key] for key in keys], None
    if "height" in metadata.dims:
        size = [side + step * more for side, step in zip(parts[0].shape[1:], (9, 5), strict=True)]
    return (torch.cat([resized(part[None], size) for part in parts]),)


def reference(task: Supervised, samples: Samples, metadata: Metadata, inputs: tuple[Tensor, ...]) -> Tensor:
    """What the task itself makes of a raw batch, on the way that an evaluation takes."""
    x: Any = inputs
    if metadata.kind != "sequence":
        x = to_float(torch.stack([transformed(x, samples.transforms) for x in resized(inputs[0], metadata.size)]))
    with torch.no_grad():
        return task.readout()(task(x).float())


def from_example(task: LightningModule) -> tuple[OwnGraph, Metadata, Cases]:
    """A user's own task, and its `example_input`, a batch (a tensor, several, or a dict) for its forward.

    Raises UserError where it lacks one of them.
    """
    name, example = type(task).__name__, getattr(task, "example_input", None)
    if not is_overridden("forward", task) or example is None:
        raise UserError(f"{name} cannot be exported: it needs a forward(batch) and an example_input, a batch for it.")
    keys = list(example) if isinstance(example, dict) else None
    parts = list(example.values()) if keys else example if isinstance(example, tuple | list) else [example]
    if not parts or not all(isinstance(part, Tensor) and part.dim() and len(part) for part in parts):
        raise UserError(f"example_input of {name} must hold tensors whose first dimension is the batch.")
    graph = OwnGraph(task, keys).eval()
    batches = [tuple(part.detach().cpu()[torch.arange(n) % len(part)] for part in parts) for n in BATCHES]
    with torch.no_grad():
        cases: Cases = [(inputs, graph(*inputs)) for inputs in batches]
        named = graph.named_outputs(*batches[0])
    inputs = dict(zip(keys or inspect.signature(task.forward).parameters, parts, strict=False))
    dims, outputs = ({key: ["batch", *x.shape[1:]] for key, x in part.items()} for part in (inputs, named))
    return graph, Metadata("own", dims, outputs, str(parts[0].dtype).removeprefix("torch.")), cases


def check(form: str, path: Path, graph: nn.Module, metadata: Metadata, cases: Cases) -> dict[str, Any]:
    """The largest difference, of values in the target's standard deviations, its limit, and the sizes that were tried.

    Raises Failed where the file does not run at all sizes, or is further from the checkpoint.
    """
    try:
        run = formats.load(form, path, graph)
        with torch.no_grad():
            results = [run(*inputs) for inputs, _ in cases]
    except Exception as error:  # runtimes have errors of many kinds, and long ones
        raise Failed(f"The exported file does not run ({said(error)[:300]}). Nothing was written.") from error
    difference = torch.zeros(())
    scale = torch.tensor(metadata.target_std or 1.0, dtype=torch.float64)
    for (inputs, expected), outputs in zip(cases, results, strict=True):
        actual = [torch.as_tensor(part) for part in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        sizes, got, want = ([list(part.shape) for part in parts] for parts in (inputs, actual, expected))
        if got != want:
            raise Failed(f"For {sizes} the exported file gives {got}, the checkpoint {want}. Nothing was written.")
        for one, other in zip(actual, expected, strict=True):  # NaN if any is
            difference = difference.maximum(((one.double() - other.double()).abs() / scale).max())
    limit = RESIZED if metadata.size else TOLERANCE
    if not difference <= limit:
        raise Failed(f"The exported file is {difference:.2g} away from the checkpoint, above {limit:g}; not written.")
    batches = [[list(part.shape) for part in inputs] for inputs, _ in cases]
    return {"max_abs_diff": float(difference), "tolerance": limit, "batches": batches}
