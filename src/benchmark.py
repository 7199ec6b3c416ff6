"""Measure a run against a bare PyTorch loop: where the time of a step goes, and which key to change."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.command import launch

log = logging.getLogger("leyden.benchmark")
MEASURED = {  # of the trainer, in place of the run's: whole epochs of training only, ended by the stopwatch
    "min_epochs": None, "max_steps": -1, "min_steps": None, "max_time": None, "num_sanity_val_steps": 0,
    "val_check_interval": 1.0, "overfit_batches": 0.0, "fast_dev_run": False, "reload_dataloaders_every_n_epochs": 0,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
KEYS = {
    "compute": "trainer.precision, threads, data.augment or the model",
    "loading": "data.num_workers, or data.batch_size where the data is in memory",
    "loop": "data.batch_size, for fewer and larger steps",
    "logging": "trainer.log_every_n_steps, logger or callbacks",
}


def benchmark(cfg: DictConfig) -> float:
    """Time the steps of a run with the Trainer and without; returns the ratio Trainer/bare of training."""
    from leyden import build, ranks, record, runs, timing

    if ranks.outside() or ranks.count(cfg.trainer) > 1:
        raise UserError("A benchmark measures one process; start it without torchrun, with trainer.devices=1.")
    with record.recording(cfg):
        # build
        build.switches(cfg)
        datamodule = build.data(cfg)
        build.facts(cfg, datamodule)
        record.begin(cfg, **build.summary(build.task(cfg), build.trainer(cfg, []), datamodule))

        # measure everything in turn; the first round warms up
        rounds = []
        for number in range(cfg.rounds + 1):
            plain, whole = measure(cfg, datamodule, "plain"), measure(cfg, datamodule, "trainer")
            seconds = {split: plain.found[split] | whole.found[split] for split in ("train", "val")}
            rounds += [seconds] if number else []
            ratio = seconds["train"]["bare"] / seconds["train"]["trainer"]
            log.info("%s: Trainer/bare %.2f", f"round {number} of {cfg.rounds}" if number else "warm-up", ratio)

        # tell
        splits = [split for split in ("train", "val") if rounds[0][split]]
        found = {
            split: timing.summary([seconds[split] for seconds in rounds], plain.samples[split], plain.workers)
            for split in splits
        }
        where, share = max(found["train"]["shares"].items(), key=lambda item: item[1])
        advice = f"The bottleneck of training is {where}, {share:.0%} of a step; change {KEYS[where]}."
        results = {"ratio": found["train"]["ratio"], "bottleneck": advice, **found}
        runs.write_json(Path(cfg.run_dir) / "benchmark.json", results)
        for split in splits:
            log.info("\n%s", timing.table(split, found[split]))
        log.info(
            "\n%s\nSet-up and what follows an epoch's last batch, such as checkpoints, are not in the times.", advice
        )
        return results["ratio"]


def measure(cfg: DictConfig, datamodule: Any, name: str) -> Any:
    """A stopwatch after one run: of the Trainer as configured, or plain, of one without callbacks and loggers.

    What the run writes goes into a folder that is deleted.
    """
    from lightning.pytorch.utilities.model_helpers import is_overridden

    from leyden import build, timing

    build.switches(cfg)  # the same weights each time
    with TemporaryDirectory(dir=cfg.run_dir) as folder, quiet():
        tree = cfg.copy()
        OmegaConf.set_struct(tree, False)
        epochs = 3 * (cfg.steps + 1)  # more than bare loop, computation and Trainer can take; the schedule needs an end
        limits = {"limit_train_batches": cfg.steps, "limit_val_batches": cfg.steps}
        tree.trainer.update(MEASURED | limits | {"max_epochs": epochs, "check_val_every_n_epoch": epochs + 1})
        tree.update(run_dir=folder, profiler=None)
        if name == "plain":
            tree.update(callbacks=None, logger=None)
        stopwatch = timing.Stopwatch(name, cfg.steps, alone=name == "plain")
        trainer = build.trainer(tree, [stopwatch, *(build.watchers(tree) if name == "trainer" else [])])
        task = build.task(tree)
        trainer.fit(task, datamodule=datamodule)
        if is_overridden("validation_step", task) and is_overridden("val_dataloader", datamodule):
            for _ in range(cfg.steps):
                trainer.validate(task, datamodule=datamodule, verbose=False)
                if not 0 < stopwatch.batches["val"] < cfg.steps:
                    break
    return stopwatch


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the measured runs say of themselves off the screen."""
    callbacks = logging.getLogger("leyden.callbacks")
    callbacks.setLevel(logging.ERROR)
    try:
        yield
    finally:
        callbacks.setLevel(logging.NOTSET)


if __name__ == "__main__":
    launch(benchmark, "benchmark")
