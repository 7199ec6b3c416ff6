"""How long a batch takes: with the Trainer, in a bare loop, of the data alone and of the computation alone."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import chain, count, islice, repeat
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.benchmark import Timer, timer

from leyden import UserError
from leyden.lightning_internals import EndFit
from leyden.tasks.supervised import Supervised

ALONE = {"bare loop": "step(ready(next(batches)))", "data alone": "next(batches)", "compute alone": "step(ready(one))"}


class Stopwatch(Callback):
    """Measures everything in turn during a fit, `rounds` times after one that is not counted, and ends it.

    Of the Trainer it takes whole epochs, from their start to their last step, and whole validations, from before their
    first batch to their metrics: no set-up and no checkpoints. It must be the first of the callbacks.
    """

    def __init__(self, rounds: int, steps: int):
        self.rounds, self.steps = rounds, steps
        self.seconds: list[dict[str, float]] = []  # of a batch, in each round

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        """Begin a round: measure what needs no Trainer. Raises UserError where the data has several loaders."""
        loader = trainer.datamodule.train_dataloader()  # apart from the Trainer's, which is in use
        if isinstance(loader, list | tuple | dict):
            raise UserError(f"A benchmark measures one loader, but the data gives a {type(loader).__name__} of them.")
        batches, convert = chain.from_iterable(repeat(loader)), trainer.precision_plugin.convert_input
        given = {"batches": batches, "one": next(batches), "step": bare_step(trainer, task)}
        given["ready"] = ready = lambda batch: trainer.strategy.batch_to_device(convert(batch), dataloader_idx=0)

        def seconds(code: str, times: int) -> float:
            return Timer(code, globals=given, num_threads=torch.get_num_threads()).timeit(times).mean

        vars(task).update(dict.fromkeys(("log", "log_dict"), lambda *_, **__: None))  # a user's own step logs
        self.seconds.append({name: seconds(code, self.steps) for name, code in ALONE.items()})
        size = int(sum(trainer.num_val_batches))
        if trainer.enable_validation and size and len(trainer.num_val_batches) == 1:
            held = trainer.datamodule.val_dataloader()
            given["validate"] = lambda: validate(trainer, task, map(ready, islice(held, size)))
            self.seconds[-1]["bare validation"] = seconds("validate()", math.ceil(self.steps / size)) / size
        del task.log, task.log_dict
        self.spent, self.done = defaultdict[str, float](float), Counter[str]()

    def on_validation_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.stop("Trainer", trainer.fit_loop.epoch_loop)

    def start(self, *_: Any) -> None:
        self.started = timer()

    on_train_epoch_start: Any = start
    on_validation_epoch_start: Any = start

    def on_validation_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.stop("Trainer validation", trainer.fit_loop.epoch_loop.val_loop)

    def stop(self, what: str, loop: Any) -> None:
        self.spent[what] += timer() - self.started
        self.done[what] += loop.batch_progress.current.ready

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        if "Trainer validation" not in self.done:  # which has stopped it already
            self.stop("Trainer", trainer.fit_loop.epoch_loop)
        if self.done["Trainer"] < self.steps:
            return
        self.seconds[-1] |= {what: self.spent[what] / batches for what, batches in self.done.items()}
        if len(self.seconds) > self.rounds:
            raise EndFit
        self.on_train_start(trainer, task)


def validate(trainer: Trainer, task: LightningModule, batches: Any) -> None:
    """A validation as one writes it without a Trainer."""
    modes = {module: module.training for module in task.modules()}
    task.eval()
    trainer.validating = True  # so that the data is not augmented
    with torch.no_grad(), trainer.precision_plugin.forward_context():
        for number, batch in enumerate(batches):
            task.step(batch) if isinstance(task, Supervised) else task.validation_step(batch, number)
    trainer.training = True
    for module, mode in modes.items():
        module.training = mode


def bare_step(trainer: Trainer, task: LightningModule) -> Callable[[Any], None]:
    """A step of training as one writes it without a Trainer; where the task is of a known kind, it counts nothing."""
    optimizer, precision, every = trainer.optimizers[0], trainer.precision_plugin, trainer.accumulate_grad_batches
    scaler = getattr(precision, "scaler", None) or torch.amp.GradScaler(enabled=False)
    clip, parameters = trainer.gradient_clip_val, list(task.parameters())
    clipping = nn.utils.clip_grad_value_ if trainer.gradient_clip_algorithm == "value" else nn.utils.clip_grad_norm_
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
    numbers = count(1)

    def step(batch: Any) -> None:
        number = next(numbers)
        with precision.forward_context():
            if isinstance(task, Supervised):
                loss, _, y = task.step(batch)
                loss = task.penalised(loss, len(y))
            else:
                output: Any = task.training_step(batch, number - 1)
                loss = output["loss"] if isinstance(output, dict) else output
        if not task.automatic_optimization:  # it has stepped by itself
            return
        scaler.scale(loss / every if every > 1 else loss).backward()
        if number % every:
            return
        if clip:
            scaler.unscale_(optimizer)
            clipping(parameters, clip)
        scaler.step(optimizer)
        scaler.update()
        for scheduler in schedulers:
            scheduler.step()
        optimizer.zero_grad()

    return step
