"""The tree of a command that starts from a run."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.launch import overrides
from leyden.run import runs

CONF = runs.CONF
KEPT = ("precision", "deterministic", "benchmark")  # of a run's trainer, in whatever trainer evaluates it


def from_run(line: overrides.Line, asked: str | None) -> DictConfig:
    """The tree of an old run, with what this command has of its own in place of the stored; keys are not yet checked.

    Raises:
        UserError: there is no such run, or it has no checkpoint.
    """
    if not asked:
        raise UserError(
            f"Which run? Type run=<run directory, checkpoint or latest>; {CONF / line.config}.yaml has more."
        )
    own = owned(line)
    directory = runs.find(asked, Path(own.log_dir))
    checkpoint, tree = runs.checkpoint(asked, directory), runs.stored(directory)
    kept = {name: tree.trainer[name] for name in KEPT if name in tree.trainer}
    for name in ("callbacks", "profiler", "logger"):
        tree.pop(name, None)
    tree = DictConfig({**dict(tree.items_ex(resolve=False)), **dict(own.items_ex(resolve=False))})
    tree.trainer.update(kept)
    if OmegaConf.select(tree, "model.weights"):  # the checkpoint has them
        tree.model.weights = None
    tree.run = str(checkpoint)
    return tree


def owned(line: overrides.Line) -> DictConfig:
    """What a command has of its own, with the groups that may be chosen; those leave the line."""
    chosen = [key for key in line.keys if (CONF / key.partition("=")[0]).is_dir()]
    line.keys = [key for key in line.keys if key not in chosen]
    folder = [key for key in line.keys if key.startswith("log_dir=")]
    for key in chosen:
        if key.partition("=")[0] not in ("trainer", "logger"):
            raise UserError(f"{key}: this comes from the run; only trainer and logger can be chosen here.")
    own = overrides.check(replace(line, keys=chosen + folder), CONF)
    own.log_dir = str(logs(line))  # conf/local may say where
    return own


def literal(value: Any) -> Any:
    """A text, or each one in dicts and lists, as OmegaConf leaves it as it is."""
    if type(value) in (list, tuple):
        return [literal(part) for part in value]
    if isinstance(value, dict):
        return {name: literal(part) for name, part in value.items()}
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def logs(line: overrides.Line) -> Path:
    """Where the runs are that a command line speaks of."""
    folder = [key for key in line.keys if key.startswith("log_dir=")]
    return runs.in_project(overrides.check(replace(line, config="train", keys=folder), CONF).log_dir)
