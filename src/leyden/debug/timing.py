"""How long a step takes: with the Trainer, in a bare loop, of the loader alone and of the computation alone."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
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

WARM = 3  # steps before a measurement, which make an optimizer's state and start a loader's workers
ROWS = {
    "bare": "bare loop", "trainer": "Trainer", "plain": "Trainer, no callbacks, no loggers",
    "loader": "loader alone", "compute": "compute alone",
}  # fmt: skip
Batches = Callable[[], Iterable]  # each call starts another epoch


class Stopwatch(Callback):
    """Times the steps of a Trainer in whole epochs, but for a fit's first, and ends the fit after `steps` of them.

    With `alone` it measures the same work without the Trainer before. What comes before an epoch's start or after its
    last step, such as set-up and checkpoints, is not in the times.
    """

    def __init__(self, name: str, steps: int, alone: bool):
        self.name, self.steps, self.alone = name, steps, alone
        self.found: dict[str, dict[str, float]] = {"train": {}, "val": {}}  # seconds of a step
        self.exactness = 0.0  # seconds of a step that seeds take
        self.samples: dict[str, float | None] = {}  # of a step, mean over the epoch; None: the loader does not say
        self.spent, self.done, self.workers = {"train": 0.0, "val": 0.0}, {"train": 0, "val": 0}, 0

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for config in trainer.lr_scheduler_configs:
            config.strict = False  # nothing is validated here that a plateau could watch
        if self.alone:
            self.measure("train", trainer, task, int(trainer.num_training_batches))

    def on_validation_start(self, trainer: Trainer, task: LightningModule) -> None:
        if self.alone and not self.found["val"]:
            self.measure("val", trainer, task, int(sum(trainer.num_val_batches)))

    def measure(self, split: str, trainer: Trainer, task: LightningModule, count: int) -> None:
        """The bare loop, the loader and the computation, of so many batches.

        Raises:
            UserError: the data has several loaders.
        """
        data = trainer.datamodule
        loader = getattr(data, f"{split}_dataloader")()  # apart from the Trainer's, which is in use
        if isinstance(loader, list | tuple | dict):
            raise UserError(f"A benchmark measures one loader, but the data gives a {type(loader).__name__} of them.")
        held = data.splits[split] if isinstance(data, DataModule) else None
        whole, single = batches(split, trainer, held, loader, count)
        loop = partial(train if split == "train" else evaluate, trainer, task)
        vars(task).update(log=silent, log_dict=silent)  # a task of another kind logs in its step
        for name, body, source in (
            ("bare", loop, whole), ("compute", loop, single), ("loader", drain, lambda: islice(loader, count)),
        ):  # fmt: skip
            self.found[split][name] = per_step(body, source, self.steps, task.device)
        del task.log, task.log_dict
        size: Any = getattr(loader, "batch_size", None)
        self.workers = getattr(loader, "num_workers", 0)
        self.samples[split] = min(size, len(held) / count) if held else size

    def on_train_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.started = now(task.device)

    def on_validation_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.started = now(task.device)

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.current_epoch > 0:
            self.stop("train", trainer.fit_loop.epoch_loop.batch_progress.current.ready, task.device)
        trainer.should_stop = self.done["train"] >= self.steps

    def on_validation_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.stop("val", trainer.validate_loop.batch_progress.current.ready, task.device)

    def stop(self, split: str, steps: int, device: torch.device) -> None:
        self.spent[split] += now(device) - self.started
        self.done[split] += steps
        self.found[split][self.name] = self.spent[split] / self.done[split]


def per_call(function: Callable[[], Any], calls: int = 1000) -> float:
    """Seconds that a call takes, mean over so many."""
    started = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - started) / calls


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def per_step(body: Callable[[Iterable], int], source: Batches, steps: int, device: torch.device) -> float:
    """Seconds of a step, over at least so many in whole epochs."""
    body(islice(source(), WARM))
    done, started = 0, now(device)
    while done < steps and (more := body(source())):
        done += more
    return (now(device) - started) / done


def silent(*_: Any, **__: Any) -> None:
    """Logs nothing."""


# the same work without the Trainer


def batches(
    split: str, trainer: Trainer, held: Tensors | Sequences | None, loader: Iterable, count: int
) -> tuple[Batches, Batches]:
    """An epoch of batches that come from memory, and one batch repeated as often; ready for the task's step.

    Samples of one shape are indexed, made float and augmented batch by batch; of other data whole batches are held.
    """
    data, device, convert = trainer.datamodule, trainer.strategy.root_device, trainer.precision_plugin.convert_input
    if not isinstance(held, Tensors) or held.transforms or not isinstance(held.x, Tensor):
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


def train(trainer: Trainer, task: LightningModule, batches: Iterable) -> int:
    """The training loop as one writes it without a Trainer; returns its number of batches."""
    optimizer, precision, every = trainer.optimizers[0], trainer.precision_plugin, trainer.accumulate_grad_batches
    scaler = getattr(precision, "scaler", None) or torch.amp.GradScaler(enabled=False)
    clip, parameters = trainer.gradient_clip_val, list(task.parameters())
    clipping = nn.utils.clip_grad_value_ if trainer.gradient_clip_algorithm == "value" else nn.utils.clip_grad_norm_
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
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


def loss_of(task: LightningModule, batch: Any, number: int) -> Tensor:
    """What is to be minimised; where the task is of a known kind, nothing is counted."""
    if isinstance(task, Supervised):
        loss, _, y = task.step(batch)
        return task.penalised(loss, len(y))
    output: Any = task.training_step(batch, number - 1)
    return output["loss"] if isinstance(output, dict) else output


def evaluate(trainer: Trainer, task: LightningModule, batches: Iterable) -> int:
    """The validation loop, with the task's own metrics."""
    number = 0
    for number, batch in enumerate(batches, 1):
        with trainer.precision_plugin.forward_context():
            task.validation_step(batch, number - 1)
    return number


def drain(batches: Iterable) -> int:
    return sum(1 for _ in batches)


# what came out


def summary(rounds: list[dict[str, float]], samples: float | None, workers: int = 0) -> dict[str, Any]:
    """Medians and spread of the seconds of a step, by what was measured, and the shares of a Trainer's step.

    Loader processes work beside the computation: only what they take longer is waited for.
    """
    middle = {name: median(seconds[name] for seconds in rounds) for name in ROWS}
    parts = {"compute": middle["compute"], "loading": max(0, middle["loader"] - bool(workers) * middle["compute"])}
    parts["loop"] = max(0, middle["plain"] - sum(parts.values()))
    parts["logging"] = max(0, middle["trainer"] - middle["plain"])
    us = {name: [1e6 * how(seconds[name] for seconds in rounds) for how in (median, min, max)] for name in ROWS}
    return {
        "ratio": round(median(seconds["bare"] / seconds["trainer"] for seconds in rounds), 4),
        "shares": {name: round(part / sum(parts.values()), 4) for name, part in parts.items()},
        "us_per_step": {name: dict(zip(("median", "min", "max"), values, strict=True)) for name, values in us.items()},
        "samples_per_second": {name: samples / middle[name] for name in ROWS} if samples else {},
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
