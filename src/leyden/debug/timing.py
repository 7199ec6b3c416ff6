"""How long a batch takes without a Trainer: in a bare loop, and data and computation alone."""

from itertools import chain, count, repeat
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.benchmark import Timer, timer

from leyden.tasks.supervised import Supervised

ALONE = {"bare loop": "step(ready(next(batches)))", "data alone": "next(batches)", "compute alone": "step(ready(one))"}
CHECKED = {"bare validation": "check(ready(next(batches)))"}


class Stopwatch(Callback):
    """Measures validations, and after each of `rounds` + 1 epochs what needs no Trainer."""

    def __init__(self, rounds: int, steps: int):
        self.rounds, self.steps = rounds, steps
        self.seconds: list[dict[str, float]] = [{}]  # of a batch, in each round

    def on_validation_epoch_start(self, *_: Any) -> None:
        self.started = timer()

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        self.seconds[-1]["Trainer validation"] = (timer() - self.started) / sum(trainer.num_val_batches)

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        vars(task).update(dict.fromkeys(("log", "log_dict"), lambda *_, **__: None))  # a user's own step logs
        self.measure(trainer, task, trainer.datamodule.train_dataloader(), ALONE)
        if len(trainer.num_val_batches) == 1 and all(trainer.num_val_batches):
            task.eval()
            trainer.validating = True  # so that the data is not augmented
            self.measure(trainer, task, trainer.datamodule.val_dataloader(), CHECKED)
            trainer.training = True
            task.train()
        del task.log, task.log_dict

        trainer.should_stop = len(self.seconds) > self.rounds
        self.seconds.append({})

    def measure(self, trainer: Trainer, task: LightningModule, loader: Any, lines: dict) -> None:
        """Note the seconds that each line of code takes."""
        convert, batches = trainer.precision_plugin.convert_input, chain.from_iterable(repeat(loader))

        def check(batch: Any) -> None:
            with torch.no_grad(), trainer.precision_plugin.forward_context():
                task.step(batch) if isinstance(task, Supervised) else task.validation_step(batch, 0)

        given = {"batches": batches, "one": next(batches), "step": bare_step(trainer, task), "check": check}
        given["ready"] = lambda batch: trainer.strategy.batch_to_device(convert(batch), dataloader_idx=0)

        for name, line in lines.items():
            watch = Timer(line, globals=given, num_threads=torch.get_num_threads())
            self.seconds[-1][name] = watch.timeit(self.steps).mean


def bare_step(trainer: Trainer, task: LightningModule) -> Any:
    """A step of training as one writes it; of a known kind of task it counts nothing."""
    optimizer, precision, every = trainer.optimizers[0], trainer.precision_plugin, trainer.accumulate_grad_batches
    scaler = getattr(precision, "scaler", None) or torch.amp.GradScaler(enabled=False)
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

        scaler.scale(loss / every).backward()
        if number % every:
            return
        if trainer.gradient_clip_val:
            scaler.unscale_(optimizer)
            task.clip_gradients(optimizer)
        scaler.step(optimizer)
        scaler.update()
        for scheduler in schedulers:
            scheduler.step()
        optimizer.zero_grad()

    return step
