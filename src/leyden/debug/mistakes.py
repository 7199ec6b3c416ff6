"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image, ImageChops, ImageDraw, ImageFont, ImageOps
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchvision.transforms.functional import pil_to_tensor, to_pil_image
from torchvision.utils import make_grid

from leyden.lightning_internals import gather

COUNT, COLUMNS = 16, 4  # pictures, and those in a row
SIDE, TEXT = 160, 60  # pixels of a picture, and below it of its text
FEW = 40  # classes: of more, a matrix has neither names nor numbers
FONT = "mpl-data/fonts/ttf/DejaVuSans.ttf"  # of matplotlib, which is not imported; that of Pillow lacks many letters


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
                writer.add_image("test/confusion", matrix(counts, task.classes), trainer.global_step)


def sheet(rows: list[tuple[Any, ...]], classes: list[str], file: Any) -> Tensor:
    """The pictures, each with its file and its true and predicted class: uint8, 3 x H x W."""
    whole = Image.new("RGB", (COLUMNS * SIDE, -(-len(rows) // COLUMNS) * (SIDE + TEXT)), "white")
    for place, (_, number, true, predicted, x) in enumerate(rows):
        left, top = place % COLUMNS * SIDE + 4, place // COLUMNS * (SIDE + TEXT) + 4
        x = x.float() if len(x) == 3 else x.float().mean(0, keepdim=True)
        picture = to_pil_image(make_grid(x, normalize=True))
        whole.paste(ImageOps.contain(picture, (SIDE - 8, SIDE - 8), Image.Resampling.NEAREST), (left, top))
        name = file("test", number) if callable(file) else f"sample {number}"
        lines = name[-22:], f"true: {classes[true]}"[:22], f"predicted: {classes[predicted]}"[:22]
        write(whole, (left, top + SIDE - 4), "\n".join(lines), "la")
    return pil_to_tensor(whole)


def matrix(counts: Tensor, classes: list[str]) -> Tensor:
    """A row for each true class, a column for each predicted one, the darker the larger its share: 3 x H x W."""
    size, few = len(counts), len(counts) <= FEW
    cell, margin = (48, 120) if few else (max(1, 1000 // size), 20)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    names = Image.new("RGB", (2 * margin + cell * size,) * 2, "white")
    for place, name in enumerate(classes if few else []):
        write(names, (margin - 4, margin + cell * (place + 0.5)), name[:16], "rm")
    whole = ImageChops.darker(names, names.rotate(90))  # those of the columns stand below
    cells = to_pil_image(torch.stack([1 - shares, 1 - 0.7 * shares, 1 - 0.4 * shares]))
    whole.paste(cells.resize((cell * size,) * 2, Image.Resampling.NEAREST), (margin, margin))
    write(whole, (margin, 4), "rows: true, columns: predicted", "la")
    for row, column in counts.nonzero().tolist() if few else []:
        place = margin + cell * (column + 0.5), margin + cell * (row + 0.5)
        write(whole, place, str(int(counts[row, column])), "mm", "white" if shares[row, column] > 0.5 else "black")
    return pil_to_tensor(whole)


def write(picture: Image.Image, place: tuple[float, float], text: str, anchor: str, colour: str = "black") -> None:
    spec = find_spec("matplotlib")
    font = ImageFont.truetype(Path(spec.origin).parent / FONT, 11) if spec and spec.origin else None
    ImageDraw.Draw(picture).text(place, text, colour, font, anchor)
