"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

import warnings
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.nn.functional import cross_entropy

from leyden.lightning_internals import gather

COLUMNS, NAMED = 4, 40  # pictures in a row; classes of which the names still fit


class Mistakes(Callback):
    """Keeps, of the test's wrongly classified pictures, the `count` of the largest loss; nothing is kept of other data.

    It knows a task that classifies by its `classes`, and its `details["confusion"]`, a matrix of counts.
    """

    def __init__(self, count: int = 16):
        self.count = count

    def on_test_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.seen = 0
        self.worst: list[Tensor] = []  # loss, number of the sample in this process, true and predicted class, picture
        self.writers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]

    def on_test_batch_end(self, trainer: Trainer, task: LightningModule, outputs: Any, batch: Any, *_: Any) -> None:
        if not (self.writers and classified(task, outputs, batch)):
            return
        x, y = batch
        loss, predicted = cross_entropy(outputs.float(), y, reduction="none"), outputs.argmax(1)
        loss = torch.where(predicted == y, -1.0, loss.nan_to_num(torch.inf, posinf=torch.inf))
        top = loss.topk(min(self.count, len(loss))).indices  # so that few pictures are copied
        new = [loss[top], self.seen + top, y[top], predicted[top], x[top]]
        both = [torch.cat(pair) for pair in zip(self.worst, new, strict=True)] if self.worst else new
        keep = both[0].topk(min(self.count, len(both[0]))).indices
        self.worst, self.seen = [part[keep] for part in both], self.seen + len(y)

    def on_test_end(self, trainer: Trainer, task: Any) -> None:
        if not self.writers:
            return
        found = self.gathered(trainer)
        if not trainer.is_global_zero:
            return
        names = getattr(trainer.datamodule, "name", None)
        captions = [
            [names("test", i) if callable(names) else f"sample {i}", *(task.classes[int(label)] for label in labels)]
            for _, i, *labels, _ in found
        ]
        details = getattr(task, "details", None)
        counts = details.get("confusion") if isinstance(details, dict) else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # which the font does not have, and shows as a box
            for writer in (logger.experiment for logger in self.writers):
                if found:
                    lines = ["| file | true | predicted | loss |", "|---|---|---|---|"]
                    cells = [[*words, f"{row[0]:.2f}"] for words, row in zip(captions, found, strict=True)]
                    lines += [
                        " | ".join(["", *(cell.replace("|", "\\|") for cell in row), ""]).strip() for row in cells
                    ]
                    writer.add_text("test/most_wrong", "\n".join(lines), trainer.global_step)
                    pictures = [shown(row[-1]) for row in found]
                    writer.add_figure("test/most_wrong", tiles(pictures, captions), trainer.global_step)
                if counts:
                    figure = matrix(np.array(counts), task.classes)
                    writer.add_figure("test/confusion", figure, trainer.global_step)

    def gathered(self, trainer: Trainer) -> list[tuple[Any, ...]]:
        """The worst of all processes, the worst first, with the number that a sample has in the whole test."""
        rank, world = trainer.global_rank, trainer.world_size
        parts = [part.detach().cpu() for part in self.worst]
        mine = [(float(row[0]), int(row[1]) * world + rank, *row[2:]) for row in zip(*parts, strict=True)]
        found = [row for rows in gather(trainer, mine) for row in rows if row[0] >= 0]
        return sorted(found, key=lambda row: (-row[0], row[1]))[: self.count]


def classified(task: Any, outputs: Any, batch: Any) -> bool:
    """Whether these are pictures, their classes and the outputs for each of the task's classes."""
    if not (isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(outputs, Tensor) and outputs.dim() == 2):
        return False
    x, y = batch
    pictures = isinstance(x, Tensor) and x.dim() == 4 and isinstance(y, Tensor) and y.shape == outputs.shape[:1]
    return pictures and outputs.shape[1] == len(getattr(task, "classes", None) or ())


def shown(x: Tensor) -> np.ndarray:
    """A picture of C x H x W as H x W x 3 in 0..1; what is not in 0..1 is spread over it."""
    x = x.float()
    if x.min() < 0 or x.max() > 1:
        x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-12)
    x = x if len(x) == 3 else x.mean(0, keepdim=True).expand(3, -1, -1)
    return x.permute(1, 2, 0).numpy()


def tiles(pictures: list[np.ndarray], captions: list[list[str]]) -> Any:
    """A figure of the pictures in rows, each with its file and its true and predicted class."""
    from matplotlib.figure import Figure

    rows = -(-len(pictures) // COLUMNS)
    figure = Figure((2.2 * COLUMNS, 2.6 * rows), layout="constrained")
    for number, (picture, (file, true, predicted)) in enumerate(zip(pictures, captions, strict=True), 1):
        axes = figure.add_subplot(rows, COLUMNS, number)
        axes.imshow(picture, interpolation="nearest")
        words = f"{file[-24:]}\ntrue: {true[:20]}\npredicted: {predicted[:20]}".replace("$", r"\$")
        axes.set_title(words, fontsize=7)
        axes.set_axis_off()
    return figure


def matrix(counts: np.ndarray, names: list[str]) -> Any:
    """A figure of counts of true classes (rows) and predicted ones (columns), darker by their share of the row."""
    from matplotlib.figure import Figure

    named = len(names) <= NAMED
    side = 2 + 0.3 * len(names) if named else 8
    figure = Figure((side, side), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    if named:
        labels = [name[:20].replace("$", r"\$") for name in names]
        axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), labels, fontsize=7)
        for row, column in np.argwhere(counts):
            dark = counts[row, column] > counts[row].sum() / 2
            axes.text(
                column, row, counts[row, column], ha="center", va="center", fontsize=6, color="w" if dark else "k"
            )
    return figure
