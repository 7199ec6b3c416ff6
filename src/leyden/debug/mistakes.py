"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchvision.transforms.functional import pil_to_tensor, to_pil_image
from torchvision.utils import make_grid

from leyden.lightning_internals import gather

COUNT, COLUMNS = 16, 4  # pictures, and those in a row
SIDE, TEXT = 160, 50  # pixels of a picture, and of its text below
FEW = 40  # classes: of more, a matrix is a picture without numbers
FONT = "mpl-data/fonts/ttf/DejaVuSans.ttf"  # of matplotlib, which need not be imported; Pillow's lacks many letters


class Mistakes(Callback):
    """Keeps, of the test's wrongly classified pictures, those of the largest loss; nothing is kept of other data.

    It knows a task that classifies by its `classes`, and its `details["confusion"]`, a matrix of counts.
    """

    def on_test_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.seen = 0
        self.worst: list[Any] = []  # minus the loss, number of the sample, true and predicted class, picture
        self.writers = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]

    def on_test_batch_end(self, trainer: Trainer, task: Any, outputs: Any, batch: Any, *_: Any) -> None:
        classes = getattr(task, "classes", None)
        pair: Any = batch if isinstance(batch, list | tuple) and len(batch) == 2 else (None, None)
        x, y = pair
        if not (self.writers and classes and isinstance(x, Tensor) and x.dim() == 4 and isinstance(outputs, Tensor)):
            return
        if outputs.shape != (len(y), len(classes)):
            return
        loss, preds = cross_entropy(outputs.float(), y, reduction="none").nan_to_num(torch.inf), outputs.argmax(1)
        top = loss.masked_fill(preds == y, -1).topk(min(COUNT, len(y))).indices
        top = top[preds[top] != y[top]]
        numbers = (self.seen + top) * trainer.world_size + trainer.global_rank  # in the whole test
        new = zip(*(part.tolist() for part in (-loss[top], numbers, y[top], preds[top])), x[top].cpu(), strict=True)
        self.worst = sorted([*self.worst, *new], key=lambda row: row[:2])[:COUNT]
        self.seen += len(y)

    def on_test_end(self, trainer: Trainer, task: Any) -> None:
        rows = sorted((row for part in gather(trainer, self.worst) for row in part), key=lambda row: row[:2])[:COUNT]
        details, file = getattr(task, "details", None), getattr(trainer.datamodule, "name", None)
        counts = torch.tensor(details.get("confusion", []) if isinstance(details, dict) else [])
        for writer in self.writers if trainer.is_global_zero else []:
            if rows:
                writer.add_image("test/most_wrong", sheet(rows, task.classes, file), trainer.global_step)
            if len(counts):
                shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
                heat = torch.stack([1 - shares, 1 - 0.7 * shares, 1 - 0.4 * shares])  # blue where it is 1
                cell = max(1, 400 // len(counts))
                heat = heat.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
                writer.add_image("test/confusion", heat, trainer.global_step)
            if 0 < len(counts) <= FEW:
                writer.add_text("test/confusion", table(counts, task.classes), trainer.global_step)


def table(counts: Tensor, classes: list[str]) -> str:
    """A row for each true class, a column for each predicted one, in Markdown."""
    names = [name.replace("|", "\\|") for name in classes]
    rows = [["true / predicted", *names], ["---"] * (len(names) + 1)]
    rows += [[f"**{name}**", *map(str, line)] for name, line in zip(names, counts.tolist(), strict=True)]
    return "\n".join(" | ".join(row) for row in rows)


def sheet(rows: list[tuple[Any, ...]], classes: list[str], file: Any) -> Tensor:
    """The pictures, each with its file and its true and predicted class: uint8, 3 x H x W."""
    height, spec = SIDE + TEXT, find_spec("matplotlib")
    font = ImageFont.truetype(Path(spec.origin).parent / FONT, 11) if spec and spec.origin else None
    whole = Image.new("RGB", (COLUMNS * SIDE, -(-len(rows) // COLUMNS) * height), "white")
    for place, (_, number, true, predicted, x) in enumerate(rows):
        left, top = place % COLUMNS * SIDE, place // COLUMNS * height
        x = x.float() if len(x) == 3 else x.float().mean(0, keepdim=True)
        longest = max(x.shape[1:])
        size = [SIDE * side // longest for side in reversed(x.shape[1:])]
        picture = to_pil_image(make_grid(x, normalize=True)).resize(size, Image.Resampling.NEAREST)
        whole.paste(picture, (left, top))
        name = file("test", number) if callable(file) else f"sample {number}"
        text = f"{name[-22:]}\ntrue: {classes[true]}\npredicted: {classes[predicted]}"
        ImageDraw.Draw(whole).text((left, top + SIDE), text, "black", font)
    return pil_to_tensor(whole)
