"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image, ImageChops, ImageDraw, ImageOps
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchvision.transforms.functional import pil_to_tensor, to_pil_image
from torchvision.utils import make_grid

from leyden.lightning_internals import gather

COUNT, COLUMNS = 16, 4  # pictures, and those in a row
SIDE, TEXT = 160, 60  # pixels of a picture, and below it of its text
FEW = 40  # classes: of more, a matrix has neither names nor numbers


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
        details = getattr(task, "details", None)
        counts = torch.tensor(details.get("confusion", []) if isinstance(details, dict) else [])
        file, found = getattr(trainer.datamodule, "name", None), dict[str, Image.Image]()
        if rows and trainer.is_global_zero:
            found["test/most_wrong"] = sheet([(x, caption(task.classes, file, *row)) for _, *row, x in rows])
        if len(counts) and trainer.is_global_zero:
            found["test/confusion"] = matrix(counts, task.classes)
        for tag, picture in found.items():
            for writer in self.writers:
                writer.add_image(tag, pil_to_tensor(picture), trainer.global_step)


def caption(classes: list[str], file: Any, number: int, true: int, predicted: int) -> str:
    name = file("test", number) if callable(file) else f"sample {number}"
    return f"{name}\ntrue: {classes[true]}\npredicted: {classes[predicted]}"


def sheet(rows: list[tuple[Tensor, str]]) -> Image.Image:
    """The pictures, each with its text below."""
    whole = Image.new("RGB", (COLUMNS * SIDE, -(-len(rows) // COLUMNS) * (SIDE + TEXT)), "white")
    for place, (x, text) in enumerate(rows):
        left, top = place % COLUMNS * SIDE + 4, place // COLUMNS * (SIDE + TEXT) + 4
        x = x.float() if len(x) == 3 else x.float().mean(0, keepdim=True)
        picture = to_pil_image(make_grid(x, normalize=True))
        whole.paste(ImageOps.contain(picture, (SIDE - 8, SIDE - 8), Image.Resampling.NEAREST), (left, top))
        ImageDraw.Draw(whole).text((left, top + SIDE - 4), text, "black", font_size=11)
    return whole


def matrix(counts: Tensor, classes: list[str]) -> Image.Image:
    """A row for each true class, a column for each predicted one, the darker the larger its share of the row."""
    few, size = len(counts) <= FEW, len(counts)
    cell, margin = (48, 120) if few else (max(1, 1000 // size), 20)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    names = Image.new("RGB", (2 * margin + cell * size,) * 2, "white")
    for place, name in enumerate(classes if few else []):
        ImageDraw.Draw(names).text(
            (margin - 4, margin + cell * (place + 0.5)), name, "black", anchor="rm", font_size=12
        )
    whole = ImageChops.darker(names, names.rotate(90))  # those of the columns below
    cells = to_pil_image(torch.stack([1 - shares, 1 - 0.7 * shares, 1 - 0.4 * shares]))
    whole.paste(cells.resize((cell * size,) * 2, Image.Resampling.NEAREST), (margin, margin))
    draw = ImageDraw.Draw(whole)
    draw.text((margin, 4), "rows: true, columns: predicted", "black", font_size=12)
    for row, column in counts.nonzero().tolist() if few else []:
        place, colour = (
            (margin + cell * (column + 0.5), margin + cell * (row + 0.5)),
            "white" if shares[row, column] > 0.5 else "black",
        )
        draw.text(place, str(int(counts[row, column])), colour, anchor="mm", font_size=12)
    return whole
