"""How long a step takes: with the Trainer, in a bare loop, of the loader alone and of the computation alone."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, repeat
from statistics import median
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.data.samples import Sequences, Tensors
from leyden.tasks.supervised import Supervised

WARM = 3  # steps before a measurement, which create an optimizer's state and start a loader's workers
ROWS = {
    "bare": "bare loop", "trainer": "Trainer", "plain": "Trainer, no callbacks, no loggers",
    "loader": "loader alone", "compute": "compute alone",
}  # fmt: skip
Batches = Callable[[], Iterable]  # each call starts another epoch


class Stopwatch(Callback):
    """Times the batches of a Trainer's epochs, but for a fit's first, and ends the fit after `steps` of them.

    With `alone` it measures the same work without the Trainer before. The step and the epoch's start are in the times;
    set-up and whatever comes after an epoch's last batch, validation and checkpoints, are not.
    """

    def __init__(self, name: str, steps: int, alone: bool):
        self.name, self.steps, self.alone = name, steps, alone
        self.found: dict[str, dict[str, float]] = {"train": {}, "val": {}}  # seconds of a step
        self.samples: dict[str, float | None] = {}  # of a batch, mean over the epoch; None: the loader does not say
        self.workers = 0
        self.spent, self.batches = {"train": 0.0, "val": 0.0}, {"train": 0, "val": 0}

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for config in trainer.lr_scheduler_configs:
            config.strict = False  # nothing validates here, so a plateau has no value to watch
        if self.alone:
            self.measure("train", trainer, task, trainer.train_dataloader, trainer.num_training_batches)

    def on_validation_start(self, trainer: Trainer, task: LightningModule) -> None:
        if self.alone and not self.found["val"]:
            self.measure("val", trainer, task, trainer.val_dataloaders, sum(trainer.num_val_batches))

    def measure(self, split: str, trainer: Trainer, task: LightningModule, loader: Any, count: int) -> None:
        """The bare loop, the loader and the computation.

        Raises:
            UserError: the data has several loaders.
        """
        if isinstance(loader, list | tuple | dict):
            raise UserError(
                f"A benchmark measures one loader, but this data gives {type(loader).__name__}s for {split}."
            )
        data = trainer.datamodule
        held = data.splits[split] if isinstance(data, DataModule) else None
        whole, single = batches(split, trainer, held, loader, count)
        loop = (train if split == "train" else evaluate)(trainer, task)
        with silent(task):
            for name, body, source in (
                ("bare", loop, whole), ("loader", drain, lambda: islice(loader, count)), ("compute", loop, single),
            ):  # fmt: skip
                self.found[split][name] = per_step(body, source, self.steps, task.device)
        size = getattr(loader, "batch_size", None)
        self.samples[split] = min(size, len(held) / count) if held else size
        self.workers = self.workers or getattr(loader, "num_workers", 0)

    def on_train_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.started = now(task.device)

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.current_epoch > 0:
            self.stop("train", trainer.fit_loop.epoch_loop.batch_progress.current.ready, task.device)
        trainer.should_stop = self.batches["train"] >= self.steps

    def on_validation_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.started = now(task.device)

    def on_validation_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.stop("val", trainer.validate_loop.batch_progress.current.ready, task.device)

    def stop(self, split: str, batches: int, device: torch.device) -> None:
        self.spent[split] += now(device) - self.started
        self.batches[split] += batches
        self.found[split][self.name] = self.spent[split] / self.batches[split]


def now(device: torch.device) -> float:
    """Seconds, after the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def per_step(body: Callable[[Iterable], int], source: Batches, steps: int, device: torch.device) -> float:
    """Seconds of a step: over at least so many, in whole epochs."""
    body(islice(source(), WARM))
    done, started = 0, now(device)
    while done < steps and (more := body(source())):
        done += more
    return (now(device) - started) / done


@contextmanager
def silent(task: LightningModule) -> Iterator[None]:
    """Let a task of another kind log to nowhere."""
    task.log = task.log_dict = lambda *_, **__: None
    try:
        yield
    finally:
        del task.log, task.log_dict


# the same work without the Trainer


def batches(
    split: str, trainer: Trainer, held: Tensors | Sequences | None, loader: Iterable, count: int
) -> tuple[Batches, Batches]:
    """An epoch of batches that come from memory, and one batch repeated as often; ready for the task's step.

    Samples of one shape are indexed, made float and augmented batch by batch; of other data whole batches are held.
    """
    data, device, convert = trainer.datamodule, trainer.strategy.root_device, trainer.precision_plugin.convert_input
    if not isinstance(held, Tensors) or held.transforms:
        ready = [trainer.strategy.batch_to_device(convert(raw), dataloader_idx=0) for raw in islice(loader, count)]
        return lambda: ready, lambda: repeat(ready[0], len(ready))

    def prepare(*raw: Tensor) -> Any:
        return data.on_after_batch_transfer(convert([part.to(device) for part in raw]), 0)

    def whole() -> Iterable:
        order = torch.randperm(len(held)) if split == "train" else torch.arange(len(held))
        for index in order.split(data.batch_size)[:count]:
            yield prepare(held.x[index], held.y[index], index)

    first = torch.arange(min(data.batch_size, len(held) // count))  # of the mean size
    raw = held.x[first], held.y[first], first
    return whole, lambda: (prepare(*raw) for _ in range(count))


def train(trainer: Trainer, task: LightningModule) -> Callable[[Iterable], int]:
    """The training loop as one writes it without a Trainer; it returns its number of batches."""
    optimizer, precision, every = trainer.optimizers[0], trainer.precision_plugin, trainer.accumulate_grad_batches
    scaler = getattr(precision, "scaler", None) or torch.amp.GradScaler(enabled=False)
    clip, parameters = trainer.gradient_clip_val, list(task.parameters())
    clipping = nn.utils.clip_grad_value_ if trainer.gradient_clip_algorithm == "value" else nn.utils.clip_grad_norm_
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]

    def loop(batches: Iterable) -> int:
        number = 0
        for number, batch in enumerate(batches, 1):
            with precision.forward_context():
                loss = loss_of(task, batch, number)
            if not task.automatic_optimization:  # it has stepped by itself
                continue
            scaler.scale(loss / every if every > 1 else loss).backward()
            if number % every:
                continue
            if clip:
                scaler.unscale_(optimizer)
                clipping(parameters, clip)
            scaler.step(optimizer)
            scaler.update()
            for scheduler in schedulers:
                scheduler.step()
            optimizer.zero_grad()
        return number

    return loop


def loss_of(task: LightningModule, batch: Any, number: int) -> Tensor:
    """What is to be minimised; nothing is counted nor logged where the task's kind is known."""
    if isinstance(task, Supervised):
        loss, _, y = task.step(batch)
        return task.penalised(loss, len(y))
    output = task.training_step(batch, number - 1)
    return output["loss"] if isinstance(output, dict) else output


def evaluate(trainer: Trainer, task: LightningModule) -> Callable[[Iterable], int]:
    """The validation loop, with the task's own metrics."""

    def loop(batches: Iterable) -> int:
        number = 0
        for number, batch in enumerate(batches, 1):
            with trainer.precision_plugin.forward_context():
                task.validation_step(batch, number - 1)
        return number

    return loop


def drain(batches: Iterable) -> int:
    return sum(1 for _ in batches)


# what it says


def summary(rounds: list[dict[str, float]], samples: float | None, workers: int = 0) -> dict[str, Any]:
    """Medians and spread of the seconds of a step, by what was measured, and the shares of a Trainer's step.

    Loader processes work beside the computation: only what they take longer than that is waited for.
    """
    middle = {name: median(seconds[name] for seconds in rounds) for name in ROWS}
    waiting = max(0, middle["loader"] - middle["compute"]) if workers else middle["loader"]
    parts = {
        "compute": middle["compute"],
        "loading": waiting,
        "loop": max(0, middle["plain"] - middle["compute"] - waiting),
        "logging": max(0, middle["trainer"] - middle["plain"]),
    }
    return {
        "ratio": round(median(seconds["bare"] / seconds["trainer"] for seconds in rounds), 4),
        "shares": {name: round(part / sum(parts.values()), 4) for name, part in parts.items()},
        "us_per_step": {
            name: {how.__name__: round(1e6 * how(seconds[name] for seconds in rounds), 1) for how in (median, min, max)}
            for name in ROWS
        },
        "samples_per_second": {name: round(samples / middle[name]) for name in ROWS} if samples else {},
        "seconds_per_step": rounds,
    }


def table(split: str, found: dict[str, Any]) -> str:
    """The measurements of a split, a plain line each."""
    lines = [f"{split:<36}{'samples/s':>12}{'us/step':>12}{'min':>12}{'max':>12}"]
    for name, title in ROWS.items():
        numbers = [found["samples_per_second"].get(name, math.nan), *found["us_per_step"][name].values()]
        lines.append(f"{title:<36}" + "".join(f"{number:>12,.0f}" for number in numbers))
    shares = ", ".join(f"{name} {share:.1%}" for name, share in found["shares"].items())
    return "\n".join([*lines, f"shares of a Trainer's step: {shares}", f"Trainer/bare {found['ratio']:.2f}"])
