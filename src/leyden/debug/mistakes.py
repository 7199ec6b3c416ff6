"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.utilities.plot import plot_confusion_matrix
from torchvision.utils import make_grid

from leyden.lightning_internals import gather

COUNT, COLUMNS = 16, 4  # pictures, and those in a row


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
        for writer in self.writers if trainer.is_global_zero else []:
            with rc_context({"text.parse_math": False}):  # a pair of $ would be a formula
                if rows:
                    figure = pictures(rows, task.classes, getattr(trainer.datamodule, "name", None))
                    writer.add_figure("test/most_wrong", figure, trainer.global_step)
                if len(counts):
                    figure = Figure((max(6, min(30, len(counts))),) * 2, layout="constrained")
                    axes, few = figure.add_subplot(), len(counts) <= 40
                    plot_confusion_matrix(counts, axes, add_text=few, labels=task.classes, cmap="Blues")
                    writer.add_figure("test/confusion", figure, trainer.global_step)


def pictures(rows: list[tuple[Any, ...]], classes: list[str], file: Any) -> Figure:
    """Each with its file and its true and predicted class."""
    height = -(-len(rows) // COLUMNS)
    figure = Figure((2.4 * COLUMNS, 2.8 * height))
    for place, (_, number, true, predicted, x) in enumerate(rows, 1):
        axes = figure.add_subplot(height, COLUMNS, place, xticks=[], yticks=[], frame_on=False)
        x = x.float() if len(x) == 3 else x.float().mean(0, keepdim=True)
        axes.imshow(make_grid(x, normalize=True).permute(1, 2, 0))
        name = file("test", number) if callable(file) else f"sample {number}"
        axes.set_title(f"{name}\ntrue: {classes[true]}\npredicted: {classes[predicted]}", fontsize=6)
    return figure
