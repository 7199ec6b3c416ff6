"""Real samples as a user would have them, and what the checkpoint makes of them: an export is checked with these."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.data.decode import decode
from leyden.data.image_folder import ImageFolder
from leyden.data.samples import Tensors
from leyden.deploy.graph import GRAPHS, Apply, Call, Resize, resized
from leyden.deploy.metadata import Metadata
from leyden.deploy.verify import Case
from leyden.tasks.supervised import Supervised

BATCHES = (1, 2, 7)
LARGE = 512  # pixels of a side, beyond which batches of pictures would only take memory


class RealSamples:
    """Of the validation data of a run (or test, or train, where there is none), for a task that learns y from x.

    Raises:
        UserError: the data is not there.
    """

    def __init__(self, task: Supervised, datamodule: LightningDataModule, metadata: Metadata):
        if not isinstance(datamodule, DataModule):
            raise UserError("An export is checked on real samples, which only a datamodule of leyden shows one by one.")
        split = next(split for split in ("val", "test", "train") if len(datamodule.splits[split]))
        self.samples: Any = datamodule.splits[split]
        self.datamodule, self.task, self.metadata = datamodule, task, metadata
        self.source, self.place = f"real {split} samples", 0
        if metadata.kind == "image":
            (x,) = self.raw(1)
            metadata.dtype = str(x.dtype).removeprefix("torch.")
            if not metadata.size and not isinstance(datamodule, ImageFolder):  # raw, before any transforms
                metadata.inputs["image"][1:] = list(x.shape[1:])

    def raw(self, count: int) -> tuple[Tensor, ...]:
        """The next samples as the exported file takes them."""
        keys = [(self.place + step) % len(self.samples) for step in range(count)]
        self.place += count
        if self.metadata.kind == "sequence":
            (values, lengths), _, _ = self.samples.__getitems__(keys)
            return values, lengths
        if isinstance(self.datamodule, ImageFolder):
            return (self.pictures(keys),)
        return (self.samples.x.index_select(0, torch.tensor(keys)),)

    def pictures(self, keys: list[int]) -> Tensor:
        """A file as it is; of a batch, all in the size of the first, or LARGE."""
        data, size = self.datamodule, None
        files = [self.samples.x.path(key) for key in keys]
        if len(files) > 1:
            height, width = decode(files[0], None, data.channels, data.background).shape[1:]
            size = min(height, LARGE), min(width, LARGE)
        return torch.stack([decode(file, size, data.channels, data.background) for file in files])

    def expected(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """By the task itself, on the way that an evaluation takes."""
        x: Any = inputs if len(inputs) > 1 else inputs[0]
        if self.metadata.kind != "sequence":
            x = resized(x, self.metadata.size)
            if transforms := self.datamodule.transforms["val"]:
                x = torch.stack([Tensors(x, x, transforms).transform(part, 0) for part in x])
            x, _ = self.datamodule.on_after_batch_transfer((x, None, torch.zeros(0)), 0)
        with torch.no_grad():
            return (self.task.readout()(self.task(x).float()),)

    def cases(self) -> list[Case]:
        """Batches of 1, 2 and 7, and two further sizes of each other dimension that may have any."""
        batches = [self.raw(count) for count in BATCHES]
        if self.metadata.kind == "sequence":
            batches += [lengthened(self.raw(2), steps) for steps in (1, 9)]
        if self.metadata.size:
            (image,) = self.raw(2)
            height, width = image.shape[2:]
            batches += [(resized(image, size),) for size in ((height + 9, width), (height, 2 * width + 1))]
        return [Case(inputs, self.expected(inputs)) for inputs in batches]

    def graph(self) -> nn.Module:
        """The module to export."""
        steps: list[nn.Module] = [Resize(self.metadata.size)] if self.metadata.size else []
        if isinstance(self.samples, Tensors) and (transforms := self.datamodule.transforms["val"]):
            steps.append(Apply(transforms))
        return GRAPHS[self.metadata.kind](self.task, nn.Sequential(*steps)).eval()


class OwnExample:
    """Of a user's own task: its `example_input`, a batch (a tensor, several, or a dict) as its `forward` takes it.

    Raises:
        UserError: it has no forward or no example_input, or the input is none.
    """

    source = "the task's example_input"

    def __init__(self, task: LightningModule):
        name = type(task).__name__
        example = getattr(task, "example_input", None)
        example = task.example_input_array if example is None else example
        if not is_overridden("forward", task) or example is None:
            raise UserError(
                f"{name} cannot be exported: it needs a forward(batch) and an example_input, a batch for it."
            )
        example = example() if callable(example) else example
        keys = list(example) if isinstance(example, dict) else None
        parts = list(example.values()) if keys else example if isinstance(example, tuple | list) else [example]
        if not parts or not all(isinstance(part, Tensor) and part.dim() and len(part) for part in parts):
            raise UserError(f"example_input of {name} must hold tensors whose first dimension is the batch.")
        self.call, self.parts = Call(task, keys).eval(), [part.detach().cpu() for part in parts]
        names = keys or list(inspect.signature(task.forward).parameters)[: len(parts)]
        inputs = {key: ["batch", *part.shape[1:]] for key, part in zip(names, self.parts, strict=True)}
        with torch.no_grad():
            outputs = {key: ["batch", *part.shape[1:]] for key, part in self.call.named(*self.raw(2)).items()}
        dtype = str(self.parts[0].dtype).removeprefix("torch.")
        self.metadata = Metadata("own", inputs, outputs, dtype, task=name)

    def raw(self, count: int) -> tuple[Tensor, ...]:
        return tuple(part[torch.arange(count) % len(part)] for part in self.parts)

    def cases(self) -> list[Case]:
        with torch.no_grad():
            return [Case(inputs, self.call(*inputs)) for inputs in map(self.raw, BATCHES)]

    def graph(self) -> nn.Module:
        return self.call


def lengthened(batch: tuple[Tensor, ...], steps: int) -> tuple[Tensor, ...]:
    """Sequences whose last step is repeated."""
    values, lengths = batch
    step = torch.arange(values.shape[1] + steps).clamp(max=lengths[:, None] - 1)
    return values.gather(1, step[:, :, None].expand(-1, -1, values.shape[2])), lengths + steps
