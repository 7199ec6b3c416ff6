"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from itertools import chain
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from tabulate import tabulate
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchvision.utils import make_grid

from leyden.lightning_internals import gather

COUNT = 16  # pictures
FEW = 40  # classes: of more, a matrix is a picture without numbers


class Mistakes(Callback):
    """Keeps the wrongly classified pictures of the largest loss, of a task with `classes`; nothing of other data."""

    def on_test_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.seen = 0
        self.worst: list[Any] = []  # minus the loss, number of the sample, true and predicted class, picture
        boards = (logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger))
        self.board: Any = next(boards, None)

    def on_test_batch_end(self, trainer: Trainer, task: Any, outputs: Any, batch: Any, *_: Any) -> None:
        match batch:
            case [Tensor(ndim=4) as x, Tensor(ndim=1) as y] if self.board and isinstance(outputs, Tensor):
                if outputs.shape == (len(y), len(getattr(task, "classes", None) or ())):
                    self.keep(trainer, outputs.float(), x, y)

    def keep(self, trainer: Trainer, logits: Tensor, x: Tensor, y: Tensor) -> None:
        loss, preds = cross_entropy(logits, y, reduction="none").nan_to_num(torch.inf), logits.argmax(1)
        wrong = (preds != y).nonzero().flatten()
        top = wrong[loss[wrong].topk(min(COUNT, len(wrong))).indices]
        numbers = (self.seen + top) * trainer.world_size + trainer.global_rank  # in the whole test
        new = zip(*(part.tolist() for part in (-loss[top], numbers, y[top], preds[top])), x[top].cpu(), strict=True)
        self.worst = sorted([*self.worst, *new])[:COUNT]
        self.seen += len(y)

    def on_test_end(self, trainer: Trainer, task: Any) -> None:
        rows = sorted(chain(*gather(trainer, self.worst)))[:COUNT]
        if rows and self.board:
            pictures = [x.float() if len(x) == 3 else x.float().mean(0, keepdim=True) for *_, x in rows]
            name = getattr(trainer.datamodule, "name", None)
            table = [("from left to right", "true", "predicted")]
            for _, number, true, predicted, _ in rows:
                file = name("test", number) if callable(name) else str(number)
                table.append((file, task.classes[true], task.classes[predicted]))
            self.show(trainer, "most_wrong", make_grid(pictures, 4, normalize=True, scale_each=True), table)
        details = getattr(task, "details", None)
        if self.board and isinstance(details, dict) and "confusion" in details:
            counts = torch.tensor(details["confusion"])
            shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
            lines = [(name, *map(str, row)) for name, row in zip(task.classes, counts.tolist(), strict=True)]
            table = [("true / predicted", *task.classes), *lines] if len(lines) <= FEW else []
            self.show(trainer, "confusion", 1 - torch.stack([shares, 0.7 * shares, 0.4 * shares]), table)

    def show(self, trainer: Trainer, what: str, picture: Tensor, table: list[tuple[str, ...]]) -> None:
        """A picture of 3 x H x W, so large that single pixels are seen, and a table below its head."""
        times = max(1, 600 // max(picture.shape))
        large = picture.repeat_interleave(times, 1).repeat_interleave(times, 2)
        self.board.add_image(f"test/{what}", large, trainer.global_step)
        if table:
            text = tabulate(table, "firstrow", "github", disable_numparse=True)
            self.board.add_text(f"test/{what}", text, trainer.global_step)
