"""Real validation samples as a user would have them, and what the checkpoint makes of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.nn import functional as F

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.data.decode import decode
from leyden.data.image_folder import ImageFolder
from leyden.data.samples import Tensors
from leyden.deploy import card as cards
from leyden.deploy.graph import KINDS, Apply, Call, Resize
from leyden.deploy.verify import Case
from leyden.tasks.supervised import Supervised

BATCHES = (1, 2, 7)
LARGE = 512  # pixels of a side, beyond which batches of pictures would only take memory


def of(
    task: LightningModule, data: Callable[[], LightningDataModule], facts: Mapping[str, Any], config: Mapping[str, Any]
) -> Samples | Own:
    """What an export of this task is made and checked with; `data` gives its datamodule, `config` that of the data."""
    return Samples(task, data(), cards.make(facts, config, task.meaning)) if isinstance(task, Supervised) else Own(task)


class Samples:
    """Of the validation data of a run (or test, or train, where there is none), for a task that learns y from x.

    Raises:
        UserError: the data is not there.
    """

    def __init__(self, task: Supervised, datamodule: LightningDataModule, card: dict[str, Any]):
        if not isinstance(datamodule, DataModule):
            raise UserError("An export is checked on real samples, which only a datamodule of leyden shows one by one.")
        try:
            splits = datamodule.splits
        except UserError as error:
            raise UserError(
                f"An export is checked on the run's validation data, which is not there: {error}"
            ) from error
        split = next(split for split in ("val", "test", "train") if len(splits[split]))
        self.samples: Any = splits[split]
        self.datamodule, self.task, self.card = datamodule, task, card
        self.source, self.place = f"real {split} samples", 0
        if card["kind"] == "image":
            (x,) = self.raw(1)
            card["dtype"] = str(x.dtype).removeprefix("torch.")
            if not card["size"] and not isinstance(datamodule, ImageFolder):  # raw, before any transforms
                card["inputs"]["image"][1:] = list(x.shape[1:])

    def raw(self, count: int) -> tuple[Tensor, ...]:
        """The next samples as the exported file takes them."""
        keys = [(self.place + step) % len(self.samples) for step in range(count)]
        self.place += count
        if self.card["kind"] == "sequence":
            (values, lengths), _, _ = self.samples.__getitems__(keys)
            return values, lengths
        if isinstance(self.datamodule, ImageFolder):
            return (self.pictures(keys),)
        return (self.samples.x.index_select(0, torch.tensor(keys)),)

    def pictures(self, keys: list[int]) -> Tensor:
        """A file as it is; of a batch, all in the size of the first, or LARGE."""
        data, size = self.datamodule, None
        files = [Path(data.root, data.scan.files.names[int(self.samples.x.rows[key])]) for key in keys]
        if len(files) > 1:
            high, wide = decode(files[0], None, data.channels, data.background).shape[1:]
            size = min(high, LARGE), min(wide, LARGE)
        return torch.stack([decode(file, size, data.channels, data.background) for file in files])

    def expected(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """By the task itself, on the way that an evaluation takes."""
        x: Any = inputs if len(inputs) > 1 else inputs[0]
        if self.card["kind"] != "sequence":
            x = resized(x, self.card["size"]) if self.card["size"] else x
            if transforms := self.datamodule.transforms["val"]:
                x = torch.stack([Tensors(x, x, transforms).transform(part, 0) for part in x])
            x, _ = self.datamodule.on_after_batch_transfer((x, None, torch.zeros(0)), 0)
        with torch.no_grad():
            return (self.task.readout()(self.task(x)).float(),)

    def cases(self) -> list[Case]:
        """Batches of 1, 2 and 7, and two further sizes of each other dimension that may have any."""
        batches = [self.raw(count) for count in BATCHES]
        if self.card["kind"] == "sequence":
            batches += [stretched(self.raw(2), steps) for steps in (1, 9)]
        if self.card["size"]:
            (image,) = self.raw(2)
            high, wide = image.shape[2:]
            batches += [(resized(image, size),) for size in ((high + 9, wide), (high, 2 * wide + 1))]
        return [Case(inputs, self.expected(inputs)) for inputs in batches]

    def graph(self, half: bool = False) -> nn.Module:
        """The module to export; a half one computes in float16."""
        task = copy.deepcopy(self.task) if half else self.task
        if half:
            task.model.half()
        steps: list[nn.Module] = [Resize(self.card["size"])] if self.card["size"] else []
        if isinstance(self.samples, Tensors) and (transforms := self.datamodule.transforms["val"]):
            steps.append(Apply(transforms))
        return KINDS[self.card["kind"]](task, nn.Sequential(*steps)).eval()


class Own:
    """Of a user's own task: its `example_input`, a batch (a tensor, several, or a dict) as its `forward` takes it.

    Raises:
        UserError: it has no forward or no example_input, or the input is none.
    """

    source = "the task's example_input"

    def __init__(self, task: LightningModule):
        name = type(task).__name__
        found = getattr(task, "example_input", None)
        found = task.example_input_array if found is None else found
        if not is_overridden("forward", task) or found is None:
            raise UserError(
                f"{name} cannot be exported: it needs a forward(batch) and an example_input, a batch for it."
            )
        found = found() if callable(found) else found
        self.keys = list(found) if isinstance(found, dict) else None
        parts = list(found.values()) if self.keys else list(found) if isinstance(found, tuple | list) else [found]
        if not parts or not all(isinstance(part, Tensor) and part.dim() and len(part) for part in parts):
            raise UserError(f"example_input of {name} must hold tensors whose first dimension is the batch.")
        names = self.keys or list(inspect.signature(task.forward).parameters)[: len(parts)]
        self.task, self.parts = task, [part.detach().cpu() for part in parts]
        outputs = self.call(self.raw(2))
        self.card: dict[str, Any] = {
            "leyden": cards.VERSION,
            "kind": "own",
            "inputs": {key: ["batch", *part.shape[1:]] for key, part in zip(names, self.parts, strict=True)},
            "outputs": {key: ["batch", *output.shape[1:]] for key, output in outputs.items()},
            "task": name,
        }

    def call(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        batch = [dict(zip(self.keys, inputs, strict=True))] if self.keys else inputs
        with torch.no_grad():
            found = self.task(*batch)
        several = list(found) if isinstance(found, list | tuple) else [found]
        named = found if isinstance(found, dict) else {f"output{i or ''}": part for i, part in enumerate(several)}
        if not named or not all(isinstance(part, Tensor) for part in named.values()):
            raise UserError(f"forward of {type(self.task).__name__} must give a tensor, several, or a dict of them.")
        return named

    def raw(self, count: int) -> tuple[Tensor, ...]:
        return tuple(part[torch.arange(count) % len(part)] for part in self.parts)

    def cases(self) -> list[Case]:
        batches = [self.raw(count) for count in BATCHES]
        return [Case(inputs, tuple(part.float() for part in self.call(inputs).values())) for inputs in batches]

    def graph(self, half: bool = False) -> nn.Module:
        if half:
            raise UserError("precision=fp16 is for the tasks of leyden; leave it out.")
        return Call(self.task, self.keys).eval()


def resized(image: Tensor, size: Any) -> Tensor:
    """Pictures of B x C x H x W as `leyden.data.decode` resizes them."""
    if list(image.shape[2:]) == list(size):
        return image
    return F.interpolate(image, tuple(size), mode="bilinear", antialias=True)


def stretched(batch: tuple[Tensor, ...], steps: int) -> tuple[Tensor, ...]:
    """Sequences whose last step is repeated, so that they are longer."""
    values, lengths = batch
    rows = torch.arange(len(values))
    more = torch.cat([values, values.new_zeros(len(values), steps, values.shape[2])], 1)
    for step in range(steps):
        more[rows, lengths + step] = values[rows, lengths - 1]
    return more, lengths + steps
