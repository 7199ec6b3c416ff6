"""Measure a run against a bare PyTorch loop: where the time of a step goes, and which key to change."""

import importlib.util
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, open_dict

from leyden import UserError
from leyden.files import write_json
from leyden.launch.command import launch

log = logging.getLogger("leyden.benchmark")
MEASURED = {  # of the trainer, in place of the run's: only epochs of training, which the stopwatch ends
    "max_epochs": 10**5, "min_epochs": None, "max_steps": -1, "min_steps": None, "max_time": None,
    "check_val_every_n_epoch": 10**6, "num_sanity_val_steps": 0, "overfit_batches": 0.0, "fast_dev_run": False,
    "reload_dataloaders_every_n_epochs": 0, "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
KEYS = {
    "compute": "trainer.precision, threads, data.augment or the model",
    "loading": "data.num_workers, or data.batch_size where the data is in memory",
    "Trainer": "data.batch_size, for fewer and larger steps, trainer.log_every_n_steps, logger or callbacks",
}


def benchmark(cfg: DictConfig) -> float:
    """Time the steps of a run with the Trainer and without; returns the ratio Trainer/bare.

    With `op` it times an operator and its reference instead, and returns how many times faster the operator is.
    """
    from pandas import DataFrame

    from leyden.debug.timing import Stopwatch
    from leyden.launch import ranks
    from leyden.run import build, process, record

    if ranks.outside() or ranks.count(cfg.trainer) > 1:
        raise UserError("A benchmark measures one process; start it without torchrun, with trainer.devices=1.")
    with process.restored(), record.recording(cfg) as run, TemporaryDirectory(dir=cfg.run_dir) as folder:
        # build; what the measured run writes goes into a folder that is deleted
        process.set_global_torch_flags(cfg)
        if cfg.op:
            return operator(cfg)
        datamodule, task = build.parts(cfg)
        tree, stopwatch = cfg.copy(), Stopwatch(cfg.rounds, cfg.steps)
        with open_dict(tree):
            tree.trainer.update(MEASURED | {"limit_train_batches": cfg.steps})
            tree.update({"run_dir": folder, "profiler": None})
        trainer = build.trainer(tree, [stopwatch, *build.watchers(tree)])
        run.begin(task, trainer, datamodule)

        # measure
        logging.disable(logging.WARNING)  # what the run says of itself
        try:
            trainer.fit(task, datamodule=datamodule)
        finally:
            logging.disable(logging.NOTSET)

        # tell
        seconds = DataFrame(stopwatch.seconds[1:])  # of a step, a row for each round
        middle = seconds.median()
        rest = middle["data alone"] - middle["compute alone"] * bool(stopwatch.workers)  # which work beside it
        parts = {"compute": middle["compute alone"], "loading": max(0.0, rest)}
        parts["Trainer"] = max(0.0, middle["Trainer"] - sum(parts.values()))
        shares = {name: part / sum(parts.values()) for name, part in parts.items()}
        ratio, where = (seconds["bare loop"] / seconds["Trainer"]).median(), max(shares, key=lambda name: shares[name])
        advice = f"The bottleneck is {where}, {shares[where]:.0%} of a Trainer's step; change {KEYS[where]}."
        results = {"ratio": ratio, "bottleneck": advice, "shares": shares, "seconds_per_step": seconds.to_dict("list")}
        write_json(Path(cfg.run_dir) / "benchmark.json", results)
        table = (1e6 * seconds).agg(["median", "min", "max"]).T
        log.info("us per step\n%s", table.to_string(float_format="{:,.0f}".format))
        log.info("%s\nTrainer/bare %.2f", advice, ratio)
        return ratio


def operator(cfg: DictConfig) -> float:
    """Time an operator and its reference in plain PyTorch, forward and backward, for a million numbers."""
    import torch
    from torch.utils.benchmark import Compare, Timer

    from leyden.ops import kernels

    home = next((name for own in cfg.own if importlib.util.find_spec(name := f"{own}.ops.{cfg.op}")), None)
    if home is None:
        raise UserError(f"`op` must be a module of the operators; got `{cfg.op}`.")
    module, function = importlib.import_module(home), getattr(torch.ops.leyden, cfg.op)
    if not kernels.load(cfg.op, Path(str(module.__file__)).parent):
        raise UserError(f"op={cfg.op} has no kernel here, so that there is nothing to measure.")
    gpu = torch.cuda.is_available() and cfg.trainer.accelerator in ("auto", "gpu", "cuda")
    x = torch.randn(1_000_000, device="cuda" if gpu else "cpu", requires_grad=True)
    found = []
    for name, f in (("operator", function), ("reference", module.reference)):
        given = {"torch": torch, "f": f, "x": x, "g": torch.ones_like(x)}
        options: Any = {"label": f"{cfg.op}, {x.device}", "sub_label": name, "description": "forward and backward"}
        timer = Timer("torch.autograd.grad(f(x), x, g)", globals=given, num_threads=torch.get_num_threads(), **options)
        found.append(timer.blocked_autorange(min_run_time=0.2 * cfg.rounds))
    log.info(str(Compare(found)))  # here, as logging would swallow its errors
    write_json(Path(cfg.run_dir) / "benchmark.json", {"seconds": {each.sub_label: each.median for each in found}})
    return found[1].median / found[0].median


if __name__ == "__main__":
    launch(benchmark, "benchmark")
