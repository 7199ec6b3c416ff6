"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchvision.utils import make_grid

from leyden.lightning_internals import gather

COUNT, COLUMNS = 16, 4  # pictures, and those in a row
FEW = 40  # classes: of more, a matrix is a picture without numbers


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
                _, numbers, true, predicted, xs = zip(*rows, strict=True)
                pictures = [x.float() if len(x) == 3 else x.float().mean(0, keepdim=True) for x in xs]
                grid = make_grid(pictures, COLUMNS, normalize=True, scale_each=True)
                writer.add_image("test/most_wrong", enlarged(grid), trainer.global_step)
                names = [file("test", number) if callable(file) else str(number) for number in numbers]
                labels = ([task.classes[index] for index in part] for part in (true, predicted))
                text = markdown([("from left to right", "true", "predicted"), *zip(names, *labels, strict=True)])
                writer.add_text("test/most_wrong", text, trainer.global_step)
            if len(counts):
                shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
                blue = torch.stack([1 - shares, 1 - 0.7 * shares, 1 - 0.4 * shares])
                writer.add_image("test/confusion", enlarged(blue), trainer.global_step)
            if 0 < len(counts) <= FEW:
                lines = [(name, *map(str, row)) for name, row in zip(task.classes, counts.tolist(), strict=True)]
                text = markdown([("true / predicted", *task.classes), *lines])
                writer.add_text("test/confusion", text, trainer.global_step)


def enlarged(picture: Tensor) -> Tensor:
    """3 x H x W, so that single pixels are seen."""
    times = max(1, 600 // max(picture.shape))
    return picture.repeat_interleave(times, 1).repeat_interleave(times, 2)


def markdown(rows: list[tuple[str, ...]]) -> str:
    """A table; its first row is the head."""
    head, *rest = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join([head, " | ".join(["---"] * len(rows[0])), *rest])
