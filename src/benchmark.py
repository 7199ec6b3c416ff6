"""Measure a run against a bare PyTorch loop: where the time of a step goes, which key to change, and how it grows."""

import importlib.util
import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, open_dict

from leyden import UserError
from leyden.files import write_json
from leyden.launch.command import launch

log = logging.getLogger("leyden.benchmark")
MEASURED = {  # of the trainer, in place of the run's: epochs of training with a validation, which the stopwatch ends
    "max_epochs": 10**5, "min_epochs": 10**5, "max_steps": -1, "min_steps": None, "max_time": None,
    "check_val_every_n_epoch": 1, "val_check_interval": 1.0, "num_sanity_val_steps": 0, "overfit_batches": 0.0,
    "fast_dev_run": False, "reload_dataloaders_every_n_epochs": 0, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip
KEYS = {
    "compute": "trainer.precision, threads, data.augment or the model",
    "loading": "data.num_workers, or data.batch_size where the data is in memory",
    "Trainer": "data.batch_size, for fewer and larger steps, trainer.log_every_n_steps, logger or callbacks",
}
CURVES = {  # of `sizes`: what is typed for a value; {1} is the folder of the files
    "samples": "data.path='{1}/{0}'",
    "batch_size": "data.batch_size={0}",
    "workers": "data.num_workers={0}",
    "processes": "trainer.devices={0}",
    "width": "model.hidden=[{0},{0}]",
}
SCALED = ["name=scale", "data=arrays", "model=mlp", "trainer=ddp", "callbacks=[memory]", "logger=[]"]
MILLION = 10**6


def benchmark(cfg: DictConfig) -> float:
    """Time the steps of a run with the Trainer and without; returns the ratio Trainer/bare of training.

    With `op` it times an operator and its reference instead, and returns how many times faster the operator is; with
    `scale` whole runs of many sizes, and returns the samples per second of the largest data over those of the smallest.
    """
    from pandas import DataFrame

    from leyden.debug.timing import VALIDATION, Stopwatch
    from leyden.launch import ranks
    from leyden.run import build, process, record

    if ranks.outside() or ranks.count(cfg.trainer) > 1:
        raise UserError("A benchmark measures one process; start it without torchrun, with trainer.devices=1.")
    with process.restored(), record.recording(cfg) as run, TemporaryDirectory(dir=cfg.run_dir) as folder:
        # build; what the measured run writes goes into a folder that is deleted
        process.set_global_torch_flags(cfg)
        if cfg.op:
            return operator(cfg)
        if cfg.scale:
            return scale(cfg, Path(folder))
        datamodule, task = build.parts(cfg)
        tree, stopwatch = cfg.copy(), Stopwatch(cfg.rounds, cfg.steps)
        with open_dict(tree):
            tree.trainer.update(MEASURED | {"limit_train_batches": cfg.steps, "limit_val_batches": cfg.steps})
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
        where = max(shares, key=lambda name: shares[name])
        advice = f"The bottleneck is {where}, {shares[where]:.0%} of a Trainer's step; change {KEYS[where]}."
        ratios = {"ratio": (seconds["bare loop"] / seconds["Trainer"]).median()}
        if VALIDATION in seconds:
            ratios["validation_ratio"] = (seconds["bare validation"] / seconds[VALIDATION]).median()
        results = ratios | {"bottleneck": advice, "shares": shares, "seconds_per_step": seconds.to_dict("list")}
        write_json(Path(cfg.run_dir) / "benchmark.json", results)
        table = (1e6 * seconds).agg(["median", "min", "max"]).T
        log.info("us per batch\n%s", table.to_string(float_format="{:,.0f}".format))
        words = zip(("Trainer/bare", "of validation"), ratios.values(), strict=False)
        log.info("%s\n%s", advice, ", ".join(f"{word} {ratio:.2f}" for word, ratio in words))
        return ratios["ratio"]


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


def scale(cfg: DictConfig, folder: Path) -> float:
    """Train an MLP on random pictures in files, at each of `sizes` in turn, with the first value of all others.

    Prints a table, and writes it and a picture. Returns the samples/s of the most samples over those of the fewest.
    """
    import numpy
    from matplotlib.figure import Figure
    from pandas import DataFrame

    sizes = {name: list(cfg.sizes[name]) for name in CURVES}
    for count in sizes["samples"]:
        (folder / str(count)).mkdir()
        x = numpy.lib.format.open_memmap(folder / str(count) / "x.npy", "w+", "uint8", (count, 1, 8, 8))
        for start in range(0, count, MILLION):
            part = x[start : start + MILLION]
            part[:] = numpy.random.default_rng(start).integers(0, 256, part.shape, "uint8")
        numpy.save(folder / str(count) / "y.npy", numpy.arange(count) % 10)
    usual = {name: CURVES[name].format(values[0], folder) for name, values in sizes.items()}
    rows = []
    for name, value in [(name, value) for name, values in sizes.items() for value in sorted(values)]:
        typed = usual | {name: CURVES[name].format(value, folder)}
        rows.append({"changed": name, "to": value, **measured(cfg, folder, list(typed.values()))})
        log.info("%s %s: %s samples/s", name, f"{value:,}", f"{rows[-1]['samples/s']:,.0f}")
    table = DataFrame(rows)
    log.info("%s", table.to_string(index=False, float_format="{:,.1f}".format))
    table.to_csv(Path(cfg.run_dir) / "scale.csv", index=False)
    figure = Figure((3 * len(CURVES), 3), layout="constrained")
    for axes, (name, part) in zip(figure.subplots(1, len(CURVES)), table.groupby("changed", sort=False), strict=True):
        axes.plot(part["to"], part["samples/s"], "o-")
        axes.set(xlabel=name, ylabel="samples/s", xscale="symlog", ylim=(0, None))
    figure.savefig(Path(cfg.run_dir) / "scale.png")
    rates = table[table["changed"] == "samples"]["samples/s"]
    return float(rates.iloc[-1] / rates.iloc[0])


def measured(cfg: DictConfig, folder: Path, typed: list[str]) -> dict[str, float]:
    """What a run of train.py in a process of its own says of itself; UserError where it fails."""
    from pandas import read_csv

    script, started = Path(__file__).with_name("train.py"), time.perf_counter()
    with TemporaryDirectory(dir=folder) as logs:
        short = [
            f"trainer.max_epochs={cfg.rounds + 1}",
            f"trainer.limit_train_batches={cfg.steps}",
            f"log_dir='{logs}'",
        ]
        done = subprocess.run([sys.executable, script, *SCALED, *short, *typed], capture_output=True, text=True)
        spent, run = time.perf_counter() - started, Path(logs) / "train" / "scale"
        if done.returncode:
            raise UserError(f"train.py {' '.join(typed)} fails: {(done.stderr or done.stdout).strip()[-300:]}")
        rates = read_csv(run / "metrics.csv")["time/samples_per_second"].dropna()
        mib = re.findall(r"resident (\d+) MiB", (run / "train.log").read_text(encoding="utf-8"))[-1]
        seconds = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["seconds"]
    return {"samples/s": rates.iloc[1:].median(), "seconds besides": spent - seconds, "MiB": float(mib)}


if __name__ == "__main__":
    launch(benchmark, "benchmark")
