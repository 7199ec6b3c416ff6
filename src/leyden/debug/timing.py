"""How long a training step takes: with the Trainer, in a bare loop, of the data alone and of the computation alone."""

from collections.abc import Callable
from itertools import chain, count, repeat
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.benchmark import Timer, timer

from leyden import UserError
from leyden.tasks.supervised import Supervised

ALONE = {"bare loop": "step(ready(next(batches)))", "data alone": "next(batches)", "compute alone": "step(ready(one))"}


class Stopwatch(Callback):
    """Measures everything in turn during a fit, `rounds` times after one that is not counted, and ends it.

    The Trainer's steps are those of whole epochs, from their start to their last step: set-up, validation and
    checkpoints are not in the times.
    """

    def __init__(self, rounds: int, steps: int):
        self.rounds, self.steps = rounds, steps
        self.seconds: list[dict[str, float]] = []  # of a step, in each round
        self.workers = 0

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        """Begin a round: measure what needs no Trainer. Raises UserError where the data has several loaders."""
        for config in trainer.lr_scheduler_configs:
            config.strict = False  # nothing is validated here that a plateau could watch
        loader = trainer.datamodule.train_dataloader()  # apart from the Trainer's, which is in use
        if isinstance(loader, list | tuple | dict):
            raise UserError(f"A benchmark measures one loader, but the data gives a {type(loader).__name__} of them.")
        self.workers = getattr(loader, "num_workers", 0)
        vars(task).update(dict.fromkeys(("log", "log_dict"), lambda *_, **__: None))  # a user's own step logs
        batches, convert = chain.from_iterable(repeat(loader)), trainer.precision_plugin.convert_input
        given = {"batches": batches, "one": next(batches), "step": bare_step(trainer, task)}
        given["ready"] = lambda batch: trainer.strategy.batch_to_device(convert(batch), dataloader_idx=0)
        timers = {name: Timer(code, globals=given, num_threads=torch.get_num_threads()) for name, code in ALONE.items()}
        self.seconds.append({name: timer.timeit(self.steps).mean for name, timer in timers.items()})
        del task.log, task.log_dict
        self.spent, self.done = 0.0, 0

    def on_train_epoch_start(self, *_: Any) -> None:
        self.started = timer()

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.spent += timer() - self.started
        self.done += trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if self.done >= self.steps:
            self.seconds[-1]["Trainer"] = self.spent / self.done
            trainer.should_stop = len(self.seconds) > self.rounds
            if not trainer.should_stop:
                self.on_train_start(trainer, task)


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
