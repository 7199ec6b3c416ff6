"""Whether a file gives the checkpoint's numbers: it is loaded again, and run on real samples."""

import inspect
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.nn.functional import pad

from leyden import Failed, UserError, said
from leyden.data import decode
from leyden.data.datamodule import DataModule
from leyden.data.samples import Samples, to_float
from leyden.deploy import formats
from leyden.deploy.graph import Graph, Metadata, OwnGraph
from leyden.tasks.supervised import Supervised

BATCHES = (3, 1, 2, 7)  # samples of each batch; the exporter sees the first
TOLERANCE, RESIZED = 1e-4, 0.01  # largest difference; the same where pictures are resized, in whole levels
Cases = list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]  # inputs, and what the checkpoint makes of them


def from_data(task: Supervised, datamodule: LightningDataModule, metadata: Metadata) -> tuple[Graph, Metadata, Cases]:
    """A task of leyden, and real samples of val, or else of test or train.

    Raises UserError for a datamodule that does not show its samples one by one, or has transforms of its own.
    """
    if not isinstance(datamodule, DataModule):
        raise UserError("An export is checked on real samples, which only a datamodule of leyden shows one by one.")
    if datamodule.transforms["val"]:
        raise UserError("A run with data.eval_transforms cannot be exported; put what they do into the model.")
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
    """A user's own task, by its forward and `example_input`, a batch for it; UserError where it lacks one of them."""
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
    difference, scale = torch.zeros(()), torch.tensor(metadata.target_std or 1.0, dtype=torch.float64)
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
