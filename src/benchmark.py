"""Measure a run against a bare PyTorch loop: where its time goes, which key to change, and how it grows."""

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from leyden import UserError, require
from leyden.files import write_json
from leyden.launch.command import launch

log = logging.getLogger("leyden.benchmark")
MEASURED = {"max_epochs": 10**5, "max_steps": -1, "val_check_interval": 1.0, "check_val_every_n_epoch": 1}
MEASURED |= {"num_sanity_val_steps": 0, "overfit_batches": 0.0, "enable_progress_bar": False}  # the stopwatch ends it
LIMITS = ("limit_train_batches", "limit_val_batches")
RATIOS = {"training": ("bare loop", "Trainer"), "validation": ("bare validation", "Trainer validation")}
SIZES = {  # what is typed for a size; {1} is the folder of the files
    "samples": "data.path='{1}/{0}'",
    "batch": "data.batch_size={0}",
    "workers": "data.num_workers={0}",
    "processes": "trainer.devices={0}",
    "width": "model.hidden=[{0},{0}]",
}
SMALL = ("data=arrays", "model=mlp", "trainer=ddp", "logger=[]", "test=false")


def benchmark(cfg: DictConfig) -> float:
    """Time a run with the Trainer and without, an operator (`op`), or runs of many sizes (`scale`)."""
    from pandas import DataFrame, read_csv

    from leyden.data.augment import whole
    from leyden.debug.timing import Stopwatch
    from leyden.launch import ranks
    from leyden.run import build, process, record

    alone = not ranks.outside() and ranks.count(cfg.trainer) == 1
    require(alone, "trainer.devices", "1, without torchrun", cfg.trainer.devices)
    with process.restored(), record.recording(cfg) as run, TemporaryDirectory(dir=cfg.run_dir) as folder:
        process.set_global_torch_flags(cfg)
        if cfg.op:
            return operator(cfg)
        if cfg.scale:
            return scale(cfg, Path(folder))

        for key in ("rounds", "steps"):
            whole(key, cfg[key], 1)
        datamodule, task = build.parts(cfg)
        stopwatch, limits = Stopwatch(cfg.rounds, cfg.steps), dict.fromkeys(LIMITS, cfg.steps)
        with open_dict(cfg):
            tree: Any = OmegaConf.merge(cfg, {"trainer": MEASURED | limits, "run_dir": folder, "profiler": None})
        trainer = build.trainer(tree, [stopwatch, *build.watchers(tree)])
        run.begin(task, trainer, datamodule)

        logging.disable(logging.WARNING)  # what it says of itself
        try:
            trainer.fit(task, datamodule=datamodule)
        finally:
            logging.disable(logging.NOTSET)

        seconds: Any = DataFrame(stopwatch.seconds[1:-1])  # of a batch, a row for each round
        seconds["Trainer"] = read_csv(Path(folder, "metrics.csv"))["time/step_seconds"].dropna().tolist()[-cfg.rounds :]
        ratio = {what: (seconds[a] / seconds[b]).median() for what, (a, b) in RATIOS.items() if a in seconds}
        advice = bottleneck(seconds.median(), getattr(trainer.train_dataloader, "num_workers", 0))
        found = {"ratio": ratio, "bottleneck": advice, "seconds_per_batch": seconds.to_dict("list")}
        write_json(run.directory / "benchmark.json", found)

        table = (1e6 * seconds).agg(["median", "min", "max"]).T.to_string(float_format="{:,.0f}".format)
        lines = [f"Trainer/bare, {what}: {value:.2f}" for what, value in ratio.items()]
        log.info("%s", "\n".join(["us per batch", table, advice, *lines]))
        return ratio["training"]


def bottleneck(seconds: Any, workers: int) -> str:
    """What takes most of a Trainer's step, and the keys to change."""
    compute = seconds["compute alone"]
    loading = max(0.0, seconds["data alone"] - (compute if workers else 0.0))  # workers load meanwhile
    parts = {
        compute: "compute; change trainer.precision, threads, data.augment or the model",
        loading: "loading; change data.num_workers, or data.batch_size where the data is in memory",
        seconds["Trainer"] - compute - loading: "Trainer; change data.batch_size, logger or callbacks",
    }
    return f"The bottleneck is {parts[max(parts)]}."


def operator(cfg: DictConfig) -> float:
    """Time an operator and its reference in plain PyTorch, forward and backward."""
    import torch
    from torch.utils.benchmark import Timer

    from leyden.ops import kernels

    homes = [home for own in cfg.own if importlib.util.find_spec(home := f"{own}.ops.{cfg.op}")]
    require(bool(homes), "op", "a module of the operators", cfg.op)
    module: Any = importlib.import_module(homes[0])
    kernels.load(cfg.op, Path(module.__file__).parent)

    x = torch.randn(1_000_000, device="cuda" if torch.cuda.is_available() else "cpu", requires_grad=True)
    seconds = {}
    for name, f in (("operator", getattr(torch.ops.leyden, cfg.op)), ("reference", module.reference)):
        given = {"grad": torch.autograd.grad, "f": f, "x": x, "g": torch.ones_like(x)}
        timer = Timer("grad(f(x), x, g)", globals=given, num_threads=torch.get_num_threads())
        seconds[name] = timer.blocked_autorange(min_run_time=0.2 * cfg.rounds).median
        log.info("%s: forward and backward of %s on %s take %.0f us", name, cfg.op, x.device, 1e6 * seconds[name])
    write_json(Path(cfg.run_dir) / "benchmark.json", {"seconds": seconds})
    return seconds["reference"] / seconds["operator"]


def scale(cfg: DictConfig, folder: Path) -> float:
    """Train an MLP at each of `sizes`, with the first of all others; returns how the most samples slow it."""
    import numpy
    from matplotlib.figure import Figure
    from pandas import read_csv

    for count in cfg.sizes.samples:  # zeros take no room on most disks
        (folder / str(count)).mkdir()
        numpy.lib.format.open_memmap(folder / str(count) / "x.npy", "w+", "uint8", (count, 1, 8, 8))
        numpy.save(folder / str(count) / "y.npy", numpy.arange(count) % 10)

    usual = {name: SIZES[name].format(sizes[0], folder) for name, sizes in cfg.sizes.items()}
    command = [sys.executable, str(Path(__file__).with_name("train.py")), *SMALL, f"threads={cfg.threads or 'null'}"]
    command += [f"trainer.max_epochs={cfg.rounds + 1}", *(f"trainer.{limit}={cfg.steps}" for limit in LIMITS)]

    figure, rates = Figure((3 * len(cfg.sizes), 3), layout="constrained"), dict[str, list[float]]()
    for number, (name, sizes) in enumerate(cfg.sizes.items(), 1):
        rates[name] = []
        for size in sorted(sizes):
            typed, logs = usual | {name: SIZES[name].format(size, folder)}, folder / f"{name}-{size}"
            done = subprocess.run([*command, *typed.values(), f"log_dir='{logs}'"], capture_output=True, text=True)
            if done.returncode:
                raise UserError(f"{' '.join(typed.values())} fails: {done.stderr.strip()}")
            (table,) = logs.glob("train/*/metrics.csv")
            epochs = read_csv(table)["time/samples_per_second"].dropna()[1:]  # the first one starts processes
            rates[name].append(epochs.median())
            log.info("%-10s %10d %10.0f samples/s", name, size, rates[name][-1])

        axes = figure.add_subplot(1, len(cfg.sizes), number)
        axes.plot(sorted(sizes), rates[name], "o-")
        axes.set(xlabel=name, ylabel="samples/s", xscale="symlog", ylim=(0, None))

    figure.savefig(Path(cfg.run_dir) / "scale.png")
    return rates["samples"][-1] / rates["samples"][0]


if __name__ == "__main__":
    launch(benchmark, "benchmark")
