"""Callbacks that watch a run: gradients, memory, one batch by heart, the worst mistakes."""

import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from tabulate import tabulate
from torch import Tensor, cuda, nn
from torchvision.utils import make_grid

from leyden import listed
from leyden.lightning_internals import gather

log = logging.getLogger(__name__)
SMALL, LARGE = 1e-4, 100.0  # norms, alone and over the others, that vanish or explode
MIB = 2**20
COUNT = 16  # pictures
EPOCHS = 5  # of growth in a row, by over 1 MiB each, that are no accident


class Gradients(Callback):
    """Logs, of each matrix and kernel, norm and zeros of the gradient before clipping, and how much a step changes."""

    def __init__(self, every_n_steps: int = 50, histograms_every: int = 10):
        self.every_n_steps, self.histograms_every = every_n_steps, histograms_every
        self.before: dict[str, Tensor] = {}  # the weights of a step that is measured
        self.found: dict[str, Tensor] = {}  # what is to be logged of it
        self.small = Counter[str]()  # measurements in a row in which a gradient was small
        self.named: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Any) -> None:
        step = trainer.global_step // len(trainer.optimizers)  # which step in turn
        measured, left = divmod(step + 1, self.every_n_steps)
        if left and step > 0:
            return

        mine = {weight for group in optimizer.param_groups for weight in group["params"]}
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        late = scaler and getattr(optimizer, "_step_supports_amp_scaling", False)  # fused: it unscales later
        drawn = self.histograms_every and measured % self.histograms_every == 0
        boards = [x.experiment for x in trainer.loggers if drawn and isinstance(x, TensorBoardLogger)]

        for name, weight in task.named_parameters():
            if weight.grad is None or weight.dim() < 2 or weight not in mine:
                continue
            grad = whole(weight.grad) / (scaler.get_scale() if late else 1)
            self.before[name] = whole(weight).clone()
            self.found |= {f"norm/{name}": grad.norm(), f"zeros/{name}": (grad == 0).float().mean()}
            for board in boards if grad.isfinite().all() else []:
                board.add_histogram(f"gradients/{name}", grad.cpu(), trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        if not self.before:
            return
        for name, before in self.before.items():
            change = whole(task.get_parameter(name)) - before
            self.found[f"update_ratio/{name}"] = change.norm() / before.norm().clamp(min=1e-30)

        step, norms = trainer.global_step, {name: float(self.found[f"norm/{name}"]) for name in self.before}
        for logger in trainer.loggers:
            logger.log_metrics({f"gradients/{name}": float(value) for name, value in self.found.items()}, step)
        self.before, self.found = {}, {}
        least, most = min(norms.values()), max(norms.values())
        log.info("gradients at step %d: norms from %.3g to %.3g", step, least, most)

        small = [name for name, norm in norms.items() if norm < SMALL and norm <= SMALL * most]
        self.small = Counter({name: self.small[name] + 1 for name in small})  # zeros may pass
        vanish = [name for name in small if self.small[name] > 2 or (step == 1 and norms[name] > 0)]
        explode = [name for name, norm in norms.items() if not norm <= max(LARGE, LARGE * least)]

        for what, names in ("vanish", vanish), ("explode", explode):
            if new := [f"{name} ({norms[name]:.1e})" for name in names if name not in self.named]:
                log.warning("Gradients %s in %s at step %d.", what, listed(new), step)
            self.named |= {*names}


def whole(tensor: Any) -> Tensor:
    """With the parts that FSDP keeps on other ranks."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().to_dense().float()


class Overfit(Callback):
    """Compares the first loss of one batch with the last; `share` of it is close enough to zero."""

    def __init__(self, share: float = 0.05):
        self.share, self.losses = share, list[Tensor]()  # the first and the last

    def on_before_backward(self, trainer: Trainer, task: LightningModule, loss: Tensor) -> None:
        self.losses = [*self.losses[:1], loss.detach()]

    def on_train_end(self, trainer: Trainer, task: LightningModule) -> None:
        if not self.losses:  # of a task that goes backward by itself
            return
        first, last = float(self.losses[0]), float(self.losses[-1])
        fell = f"the loss of one batch went from {first:.4g} to {last:.4g} in {trainer.global_step} steps"
        if last <= self.share * first:
            return log.info("overfit: passed, %s.", fell)

        cause = "a wrong optimizer.lr, too few steps, dropout, augmentation, or targets of other inputs"
        if idle := [name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()]:
            cause = f"{idle[0]} (of {len(idle)} parameters) has no gradient: frozen, detached or unused"
        log.warning("overfit: NOT passed, %s. Likely causes: %s.", fell, cause)


class Memory(Callback):
    """Logs MiB: resident on the host; of a GPU allocated, and the peak so far."""

    def __init__(self, empty_cache: bool = False):
        self.empty_cache = empty_cache
        self.last, self.grown = torch.inf, 0  # MiB after the last epoch, epochs of growth in a row

    def measure(self, trainer: Trainer, *_: Any) -> float:
        """Log the numbers of now; returns what the run's device holds."""
        stage, found = trainer.state.stage.dataloader_prefix, {"resident": resident()}
        if trainer.strategy.root_device.type == "cuda":
            found |= {"allocated": cuda.memory_allocated() / MIB, "peak": cuda.max_memory_allocated() / MIB}
        if not trainer.sanity_checking:
            log.info("memory, %s: %s", stage, ", ".join(f"{name} {mib:.0f} MiB" for name, mib in found.items()))
            for logger in trainer.loggers:
                logger.log_metrics({f"memory/{stage}_{name}": mib for name, mib in found.items()}, trainer.global_step)
        return found.get("allocated", found["resident"])

    on_validation_epoch_end: Any = measure
    on_test_epoch_end: Any = measure

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        held = self.measure(trainer)
        self.last, self.grown = held, self.grown + 1 if held > self.last + 1 else 0
        if self.grown == EPOCHS:
            log.warning("Memory grew %d epochs in a row, to %.0f MiB; use loss.detach() in lists.", EPOCHS, held)
        if self.empty_cache:
            cuda.empty_cache()

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, torch.OutOfMemoryError):
            log.warning("When it was full, memory held:\n%s", cuda.memory_summary())


def resident() -> float:
    """MiB of this process in memory; nan where the system has no /proc."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB if file.exists() else torch.nan


class Mistakes(Callback):
    """Shows the wrongly classified pictures of the largest loss, and the confusion, of a task with `classes`."""

    def on_test_start(self, trainer: Trainer, *_: Any) -> None:
        self.seen = 0
        self.worst: list = []  # minus the loss, number of the sample, true and predicted class, picture
        self.board: Any = next((x.experiment for x in trainer.loggers if isinstance(x, TensorBoardLogger)), None)

    def on_test_batch_end(self, trainer: Trainer, task: Any, outputs: Any, batch: Any, *_: Any) -> None:
        match batch:
            case [Tensor(ndim=4) as x, Tensor(ndim=1) as y] if self.board and isinstance(outputs, Tensor):
                if outputs.shape == (len(y), len(getattr(task, "classes", None) or ())):
                    self.keep(trainer, outputs.float(), x, y)

    def keep(self, trainer: Trainer, logits: Tensor, x: Tensor, y: Tensor) -> None:
        """Note the worst of a batch."""
        loss, preds = nn.functional.cross_entropy(logits, y, reduction="none").nan_to_num(torch.inf), logits.argmax(1)
        wrong = (preds != y).nonzero().flatten()
        top = wrong[loss[wrong].topk(min(COUNT, len(wrong))).indices]
        numbers = (self.seen + top) * trainer.world_size + trainer.global_rank  # in the whole test
        new = zip(*(part.tolist() for part in (-loss[top], numbers, y[top], preds[top])), x[top].cpu(), strict=True)
        self.worst = sorted([*self.worst, *new])[:COUNT]
        self.seen += len(y)

    def on_test_end(self, trainer: Trainer, task: Any) -> None:
        rows = sorted(row for part in gather(trainer, self.worst) for row in part)[:COUNT]
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
            table = [("true / predicted", *task.classes), *lines] if len(lines) <= 40 else []  # too large to read
            self.show(trainer, "confusion", 1 - torch.stack([shares, 0.7 * shares, 0.4 * shares]), table)

    def show(self, trainer: Trainer, what: str, picture: Tensor, table: list) -> None:
        """A picture of 3 x H x W, large enough to see pixels, and a table below its head."""
        times = max(1, 600 // max(picture.shape))
        large = picture.repeat_interleave(times, 1).repeat_interleave(times, 2)
        self.board.add_image(f"test/{what}", large, trainer.global_step)
        if table:
            text = tabulate(table, "firstrow", "github", disable_numparse=True)
            self.board.add_text(f"test/{what}", text, trainer.global_step)
