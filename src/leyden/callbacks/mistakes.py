"""What the test got wrong, for TensorBoard: the pictures that it got most wrong, and the confusion matrix."""

from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.nn.functional import cross_entropy

from leyden.callbacks import drawing


class Mistakes(Callback):
    """Keeps, of the test's wrongly classified pictures, the `count` of the largest loss; nothing is kept of other data.

    It knows a task that classifies by its `classes`, and its `confusion`, a matrix of counts, where there is one.
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
        if found:
            self.show(trainer, task, found)
        details = getattr(task, "details", None)
        if counts := isinstance(details, dict) and details.get("confusion"):
            self.write("add_image", "test/confusion", drawing.matrix(np.array(counts), task.classes), trainer)

    def gathered(self, trainer: Trainer) -> list[tuple[Any, ...]]:
        """The worst of all processes, the worst first, with the number that a sample has in the whole test."""
        parts = [part.detach().cpu() for part in self.worst]
        mine = [row for row in zip(*parts, strict=True) if row[0] >= 0] if parts else []
        mine = [(float(row[0]), int(row[1]) * trainer.world_size + trainer.global_rank, *row[2:]) for row in mine]
        every = [mine]
        if trainer.world_size > 1:
            every = [[] for _ in range(trainer.world_size)]
            torch.distributed.all_gather_object(every, mine)
        return sorted((row for rows in every for row in rows), key=lambda row: (-row[0], row[1]))[: self.count]

    def show(self, trainer: Trainer, task: Any, found: list[tuple[Any, ...]]) -> None:
        name_of, captions, lines = getattr(trainer.datamodule, "name", None), [], []
        for number, (loss, index, true, predicted, _) in enumerate(found, 1):
            names = [task.classes[label] for label in (int(true), int(predicted))]
            file = name_of("test", index) if callable(name_of) else f"sample {index}"
            cells = [str(number), file, *names, f"{loss:.2f}"]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            right, wrong = (
                drawing.readable(n, f"#{int(i)}", 90) for n, i in zip(names, (true, predicted), strict=True)
            )
            captions.append([f"{number}. true: {right}", f"predicted: {wrong}"])
        head = "| picture | file | true | predicted | loss |\n|---|---|---|---|---|\n"
        self.write("add_text", "test/most_wrong", head + "\n".join(lines), trainer)
        self.write("add_image", "test/most_wrong", drawing.tiles([shown(row[4]) for row in found], captions), trainer)

    def write(self, how: str, tag: str, content: Any, trainer: Trainer) -> None:
        for logger in self.writers:
            options = {"dataformats": "HWC"} if how == "add_image" else {}
            getattr(logger.experiment, how)(tag, content, trainer.global_step, **options)


def classified(task: Any, outputs: Any, batch: Any) -> bool:
    """Whether these are pictures, their classes and the outputs for each of the task's classes."""
    if not (isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(outputs, Tensor) and outputs.dim() == 2):
        return False
    x, y = batch
    pictures = isinstance(x, Tensor) and x.dim() == 4 and isinstance(y, Tensor) and y.shape == outputs.shape[:1]
    return pictures and outputs.shape[1] == len(getattr(task, "classes", None) or ())


def shown(x: Tensor) -> np.ndarray:
    """A picture of C x H x W as H x W x 3 in uint8; what is not in 0..1 is spread over it."""
    x = x.float()
    if x.min() < 0 or x.max() > 1:
        x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-12)
    x = x if len(x) == 3 else x.mean(0, keepdim=True).expand(3, -1, -1)
    return (x * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
