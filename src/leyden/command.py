"""From argv to a running function: which run, which directory, which ranks. The only place that catches UserError."""

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from leyden import UserError, overrides, ranks, runs
from leyden.help import show_help

CONF = runs.PROJECT / "conf"
SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")  # nothing runs
READERS = ("eval",)  # commands that start from the config of a run
KEPT = ("precision", "deterministic", "benchmark")  # of a run's trainer, in whatever trainer evaluates it


def launch(function: Callable[[DictConfig], Any], config: str) -> None:
    """Run one command: a mistake of the user's ends in a sentence and status 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here
    try:
        if ranks.entered():
            ranks.enter(function)
        elif any(flag in sys.argv[1:] for flag in ("--help", "-h")):
            print(show_help(config, CONF))
        else:
            run(function, config)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def run(function: Callable[[DictConfig], Any], config: str) -> None:
    """Check the command line, choose the directory, and hand over to Hydra."""
    line = overrides.split(sys.argv[1:], config)
    asked = overrides.take(line, "run") if config in READERS else {}
    tree = from_run(line, asked.get("run")) if config in READERS else overrides.check(line, CONF)
    config_path, config_name, settings = CONF, line.config, []
    if not any(flag in SHOWS for flag in line.flags):
        kind = "sweep" if line.multirun else {"train": "train"}.get(config, config)
        directory = runs.create(runs.in_project(tree.log_dir) / kind, None if line.multirun else tree.get("name"))
        settings = [f"hydra.{'sweep' if line.multirun else 'run'}.dir={quote(directory)}"]
        if config in READERS:
            OmegaConf.save(tree, directory / "config.yaml")
            config_path, config_name = directory, "config"
    sys.argv[1:] = [*line.flags, f"hydra.job.name={config}", "hydra/job_logging=none", *settings, *line.keys]

    mistakes: list[UserError] = []

    def job(cfg: DictConfig) -> Any:
        try:
            return start(function, cfg)
        except UserError as error:
            if line.multirun:  # fails this job only; Hydra raises it after the last one
                raise
            mistakes.append(error)  # past Hydra, which would add lines of its own

    hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)(job)()
    for mistake in mistakes:
        raise mistake


def from_run(line: overrides.Line, asked: str | None) -> DictConfig:
    """The tree of an old run, with what this command has of its own in place of the stored.

    Raises:
        UserError: there is no such run, it has no checkpoint, or an override does not fit its tree.
    """
    if not asked:
        raise UserError(
            f"Which run? Type run=<run directory, checkpoint or latest>; {CONF / line.config}.yaml has more."
        )
    chosen = [key for key in line.keys if (CONF / key.partition("=")[0]).is_dir()]
    line.keys = [key for key in line.keys if key not in chosen]
    folder = [key for key in line.keys if key.startswith("log_dir=")]
    own = overrides.check(replace(line, keys=chosen + folder), CONF)
    directory = runs.find(asked, runs.in_project(own.log_dir))
    checkpoint, tree = runs.checkpoint(asked, directory), runs.stored(directory)
    kept = {name: tree.trainer[name] for name in KEPT if name in tree.trainer}
    tree.threads = tree.threads or runs.read_json(directory / "run.json").get("threads")
    for name in ("callbacks", "profiler"):
        tree.pop(name, None)
    for key, value in own.items_ex(resolve=False):
        tree[key] = value
    tree.trainer.update(kept)
    if OmegaConf.select(tree, "model.weights"):  # the checkpoint has them
        tree.model.weights = None
    tree.run = str(checkpoint)
    overrides.check(line, CONF, tree)
    return tree


def quote(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def start(function: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """Run the function here, or in a process for each device."""
    directory = Path(HydraConfig.get().runtime.output_dir)
    cfg.run_dir = str(directory)
    for key in ("data.root", "data.path"):  # the user's own files count from where the command was typed
        if (path := OmegaConf.select(cfg, key)) and not OmegaConf.is_interpolation(cfg.data, key[5:]):
            OmegaConf.update(cfg, key, os.path.abspath(os.path.expanduser(path)))
    if cfg.seed is None:
        cfg.seed = secrets.randbelow(2**31)
    processes = 1 if ranks.outside() else ranks.count(cfg.trainer)
    if processes == 1:
        if cfg.trainer.strategy == "ddp" and not ranks.outside():
            cfg.trainer.update(
                strategy="auto", devices=1
            )  # one device: no process group that the next job would inherit
        return function(cfg)
    try:
        return ranks.start(function, cfg, directory, processes)
    except ranks.RankError as error:
        runs.update(directory, status="failed", reason=str(error), ended=runs.now())
        raise
