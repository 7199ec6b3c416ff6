"""Measure a run against a bare PyTorch loop: where the time of a step goes, and which key to change."""

import importlib.util
import logging
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.files import write_json
from leyden.launch.command import launch

log = logging.getLogger("leyden.benchmark")
MEASURED = {  # of the trainer, in place of the run's: only epochs of training, which the stopwatch ends
    "max_epochs": 10**5, "min_epochs": None, "max_steps": -1, "min_steps": None, "max_time": None,
    "val_check_interval": 1.0, "check_val_every_n_epoch": 10**6, "num_sanity_val_steps": 0, "overfit_batches": 0.0,
    "fast_dev_run": False, "reload_dataloaders_every_n_epochs": 0, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip
KEYS = {
    "compute": "trainer.precision, threads, data.augment or the model",
    "loading": "data.num_workers, or data.batch_size where the data is in memory",
    "loop": "data.batch_size, for fewer and larger steps",
    "logging": "trainer.log_every_n_steps, logger or callbacks",
}


def benchmark(cfg: DictConfig) -> float:
    """Time the steps of a run with the Trainer and without; returns the ratio Trainer/bare of training.

    With `op` it times an operator and its reference instead, and returns how many times faster the operator is.
    """
    from leyden.debug import timing
    from leyden.launch import ranks
    from leyden.run import build, process, record

    if ranks.outside() or ranks.count(cfg.trainer) > 1:
        raise UserError("A benchmark measures one process; start it without torchrun, with trainer.devices=1.")
    with process.restored(), record.recording(cfg) as run:
        # build
        process.set_global_torch_flags(cfg)
        if cfg.op:
            return operator(cfg)
        datamodule = build.data(cfg)
        build.facts(cfg, datamodule)
        run.begin(build.task(cfg), build.trainer(cfg, []), datamodule)

        # measure everything in turn; the first round warms up
        rounds = []
        for number in range(cfg.rounds + 1):
            plain, whole = measure(cfg, datamodule, plain=True), measure(cfg, datamodule, plain=False)
            seconds = {split: plain.found[split] | whole.found[split] for split in plain.samples}
            rounds += [seconds] if number else []
            ratio = seconds["train"]["bare"] / seconds["train"]["trainer"]
            log.info("%s: Trainer/bare %.2f", f"round {number} of {cfg.rounds}" if number else "warm-up", ratio)

        # tell
        found = {
            split: timing.summary([seconds[split] for seconds in rounds], samples, plain.workers)
            for split, samples in plain.samples.items()
        }
        where, share = max(found["train"]["shares"].items(), key=lambda item: item[1])
        advice = f"The bottleneck of training is {where}, {share:.0%} of a step; change {KEYS[where]}."
        results = {"ratio": found["train"]["ratio"], "bottleneck": advice, "exactness": whole.exactness, **found}
        write_json(Path(cfg.run_dir) / "benchmark.json", results)
        for split in found:
            log.info("\n%s", timing.table(split, found[split]))
        log.info("exactness: %.1f us of a training step, for its seeds", 1e6 * whole.exactness)
        log.info("\n%s\nSet-up, and what follows the last step of an epoch, are not in the times.", advice)
        log.info("%s", Path(cfg.run_dir, "benchmark.json"))
        return results["ratio"]


def operator(cfg: DictConfig) -> float:
    """Time an operator and its reference in plain PyTorch, forward and backward, for a million numbers.

    Returns how many times faster the operator is.
    """
    import torch
    from torch.utils.benchmark import Compare, Timer

    from leyden.ops import kernels
    from leyden.run import process

    homes = [f"{package}.ops.{cfg.op}" for package in (*cfg.own, "leyden")]
    home = next((name for name in homes if importlib.util.find_spec(name)), None)
    if home is None:
        raise UserError(f"`op` must be a module of the operators; got `{cfg.op}`, but there is no {homes[0]}.")
    module, function = importlib.import_module(home), getattr(torch.ops.leyden, cfg.op)
    if not kernels.load(cfg.op, Path(str(module.__file__)).parent):
        raise UserError(f"op={cfg.op} has no kernel here, so that there is nothing to measure.")
    gpu = torch.cuda.is_available() and cfg.trainer.accelerator in ("auto", "gpu", "cuda")
    x = torch.randn(1_000_000, device="cuda" if gpu else "cpu", requires_grad=True)
    found = []
    for threads in [1] if gpu else sorted({1, process.threads(cfg)}):
        for name, f in (("operator", function), ("reference", module.reference)):
            given = {"torch": torch, "f": f, "x": x, "g": torch.ones_like(x)}
            timer = Timer("torch.autograd.grad(f(x), x, g)", globals=given, label=f"{cfg.op}, {x.device}",
                          sub_label=name, num_threads=threads)  # fmt: skip
            found.append(timer.blocked_autorange(min_run_time=0.2 * cfg.rounds))
    log.info("\n%s", Compare(found))
    seconds = {f"{each.sub_label}, threads {each.num_threads}": each.median for each in found}
    write_json(Path(cfg.run_dir) / "benchmark.json", {"seconds": seconds})
    return found[1].median / found[0].median


def measure(cfg: DictConfig, datamodule: Any, plain: bool) -> Any:
    """The stopwatch of one run: with the callbacks and loggers of the config, or plain, without them.

    What the run writes goes into a folder that is deleted.
    """
    from leyden.debug import timing
    from leyden.run import build, process

    process.set_global_torch_flags(cfg)  # the same weights each time
    with TemporaryDirectory(dir=cfg.run_dir) as folder, ExitStack() as after:
        logging.disable(logging.WARNING)  # what the run says of itself
        after.callback(logging.disable, logging.NOTSET)
        tree = cfg.copy()
        OmegaConf.set_struct(tree, False)
        tree.trainer.update(MEASURED | {"limit_train_batches": cfg.steps, "limit_val_batches": cfg.steps})
        tree.update({"run_dir": folder, "profiler": None, "logger": None if plain else tree.get("logger")})
        stopwatch = timing.Stopwatch("plain" if plain else "trainer", cfg.steps, alone=plain)
        keeper, *others = build.watchers(tree)
        trainer = build.trainer(tree, [stopwatch, *([] if plain else [keeper, *others])])
        task = build.task(tree)
        trainer.fit(task, datamodule=datamodule)
        if not plain:
            stopwatch.exactness = timing.per_call(lambda: keeper.reseed(trainer))
        for _ in range(cfg.steps if trainer.enable_validation else 0):
            trainer.validate(task, datamodule=datamodule, verbose=False)
            if not 0 < stopwatch.done["val"] < cfg.steps:
                break
    return stopwatch


if __name__ == "__main__":
    launch(benchmark, "benchmark")
