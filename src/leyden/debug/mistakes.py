"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from heapq import nsmallest
from itertools import chain
from operator import itemgetter
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
WORST = itemgetter(0, 1)  # of a row: minus the loss, number of the sample


class Mistakes(Callback):
    """Keeps, of the test's wrongly classified pictures, those of the largest loss; nothing is kept of other data.

    It knows a task that classifies by its `classes`, and its `details["confusion"]`, a matrix of counts.
    """

    def on_test_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.seen = 0
        self.worst: list[Any] = []  # minus the loss, number of the sample, true and predicted class, picture
        boards = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        self.board: Any = boards[0] if boards else None

    def on_test_batch_end(self, trainer: Trainer, task: Any, outputs: Any, batch: Any, *_: Any) -> None:
        match batch:
            case [Tensor(ndim=4) as x, Tensor() as y] if self.board and isinstance(outputs, Tensor):
                if outputs.shape == (len(y), len(getattr(task, "classes", None) or ())):
                    self.keep(trainer, outputs.float(), x, y)

    def keep(self, trainer: Trainer, logits: Tensor, x: Tensor, y: Tensor) -> None:
        loss, preds = cross_entropy(logits, y, reduction="none").nan_to_num(torch.inf), logits.argmax(1)
        top = loss.masked_fill(preds == y, -1).topk(min(COUNT, len(y))).indices
        top = top[preds[top] != y[top]]
        numbers = (self.seen + top) * trainer.world_size + trainer.global_rank  # in the whole test
        new = zip(*(part.tolist() for part in (-loss[top], numbers, y[top], preds[top])), x[top].cpu(), strict=True)
        self.worst = nsmallest(COUNT, [*self.worst, *new], WORST)
        self.seen += len(y)

    def on_test_end(self, trainer: Trainer, task: Any) -> None:
        rows = nsmallest(COUNT, chain(*gather(trainer, self.worst)), WORST)
        details = getattr(task, "details", None)
        counts = torch.tensor(details.get("confusion", []) if isinstance(details, dict) else [])
        if rows and self.board:
            pictures = [x.float() if len(x) == 3 else x.float().mean(0, keepdim=True) for *_, x in rows]
            name = getattr(trainer.datamodule, "name", None)
            table: list[tuple[str, ...]] = [("from left to right", "true", "predicted")]
            for _, number, true, predicted, _ in rows:
                file = name("test", number) if callable(name) else str(number)
                table.append((file, task.classes[true], task.classes[predicted]))
            grid = make_grid(pictures, COLUMNS, normalize=True, scale_each=True)
            self.show("test/most_wrong", grid, table, trainer.global_step)
        if len(counts) and self.board:
            shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
            blue = torch.stack([1 - shares, 1 - 0.7 * shares, 1 - 0.4 * shares])
            lines = [(name, *map(str, row)) for name, row in zip(task.classes, counts.tolist(), strict=True)]
            table = [("true / predicted", *task.classes), *lines] if len(counts) <= FEW else []
            self.show("test/confusion", blue, table, trainer.global_step)

    def show(self, tag: str, picture: Tensor, table: list[tuple[str, ...]], step: int) -> None:
        """A picture of 3 x H x W, so large that single pixels are seen, and a table below its head."""
        times = max(1, 600 // max(picture.shape))
        self.board.add_image(tag, picture.repeat_interleave(times, 1).repeat_interleave(times, 2), step)
        if table:
            lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in table]
            lines.insert(1, " | ".join(["---"] * len(table[0])))
            self.board.add_text(tag, "\n".join(lines), step)
