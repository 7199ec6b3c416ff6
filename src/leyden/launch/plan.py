"""What a command line means: which directory, which config, one run or many."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from leyden import UserError
from leyden.launch import overrides, ranks, stored, sweeps
from leyden.launch.line import Line, split
from leyden.launch.overrides import Composed
from leyden.run import configs, keys, paths
from leyden.run.run import Run, Status

SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")  # nothing runs
READERS = ("eval", "predict", "export")  # commands that start from the config of a run
ASKED = {  # overrides that are taken as they are typed
    "train": ("resume", "rerun", "sweep"),
    "eval": ("run",),
    "predict": ("run", "input", "output"),
    "export": ("run", "output"),
}
OURS = re.compile(r"\..*|run\.json|config\.yaml|train\.log|rank\d+\.log")  # in a run that had hardly begun
ALONE = ("predict", "export")  # commands of one process
OWN_DIRECTORY = ("hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=", "run_dir=")


@dataclass
class Start:
    """A command that is ready to run. `mode`: run, multirun (Hydra composes each job) or show (Hydra prints)."""

    mode: str
    line: Line
    directory: Path | None = None
    fresh: bool = False  # this command made the directory
    tree: DictConfig | None = None  # a run's, composed, with Hydra's node; the stored one that a sweep varies
    loader: ConfigLoader | None = None


def plan(argv: list[str], config: str) -> Start:
    """Read the command line, check it and choose the directory; leaves where the run is complete already.

    Raises:
        UserError: whatever is wrong with it, a line for each mistake.
    """
    line = split(argv, config)
    asked, sweep = line.take(*ASKED.get(config, ())), None
    if asked.get("sweep", "null") != "null":
        if other := next((name for name in ("resume", "rerun") if name in asked), None):
            raise UserError(f"sweep= and {other}= are two things to go on with; take one of them out.")
        sweep = sweeps.go_on(line, asked["sweep"], logs(line))
        asked = line.take(*ASKED["train"])
    if asked.get("resume", "null") != "null":
        return resume(line, asked["resume"])
    found = composed(line, config, asked)
    forbid(line)
    if any(flag in SHOWS for flag in line.flags):
        return Start("show", line, tree=found.base)
    if config in ALONE and (ranks.outside() or ranks.count(found.tree.trainer) > 1):
        raise UserError(f"{config}.py runs in one process, without torchrun; type trainer.devices=1.")
    folder = paths.in_project(found.tree.log_dir) / ("sweep" if line.multirun else config)
    if line.multirun:
        if found.tree.hydra.runtime.choices["hydra/sweeper"] == "basic":
            line.keys.append("hydra.sweeper._target_=hydra_plugins.search.Grid")
        return Start("multirun", line, sweep or paths.create(folder), sweep is None, found.base)
    name = None if config != "train" or found.tree.get("name") is None else str(found.tree.name)
    if name and (folder / name).exists():
        return go_on_with_name(line, folder / name, found)
    return Start("run", line, paths.create(folder, name), True, found.tree, found.loader)


def composed(line: Line, config: str, asked: dict[str, str]) -> Composed:
    """The tree of a new run, or of a command that starts from an old one.

    Raises:
        UserError: what is typed is wrong, or there is no such run.
    """
    if config in READERS:
        if not asked.get("run"):
            raise UserError(
                f"Which run? Type run=<run directory, checkpoint or latest>; {paths.CONF / line.config}.yaml has more."
            )
        run = paths.find(asked["run"], logs(line))
        found = stored.stored_config(line, run.directory, stored.READ)
        found.tree.run = str(run.checkpoint(asked["run"]))
        for name in {"input", "output"} & asked.keys():
            found.tree[name] = None if asked[name] == "null" else configs.literal(asked[name])
        return found
    if asked.get("rerun", "null") != "null":
        return stored.stored_config(line, paths.find(asked["rerun"], logs(line)).directory, stored.RERUN)
    return overrides.compose(line, paths.CONF)


def logs(line: Line) -> Path:
    """Where the runs are that a command line speaks of."""
    typed = [key.partition("=")[2].strip("'\"") for key in line.keys if key.startswith("log_dir=")]
    return paths.logs_folder(*typed[-1:])


def forbid(line: Line) -> None:
    """Raises UserError for what would make two runs share a directory, or cannot be both."""
    for key in line.keys:
        if key.lstrip("+").startswith(OWN_DIRECTORY):
            raise UserError(f"{key}: each run makes a directory of its own; type log_dir=<folder> or name=<name>.")
        if line.multirun and key.startswith("name="):
            raise UserError(f"{key}: a sweep has many runs, which cannot share a name; take it or -m out.")
    shown = [flag for flag in line.flags if flag in SHOWS]
    if shown and not {"-m", "--multirun"}.isdisjoint(line.flags):
        raise UserError(f"{shown[0]} shows one run; take -m out.")


# a run that is there already


def resume(line: Line, asked: str) -> Start:
    """Go on with a run in its own directory; leaves where it is complete.

    Raises:
        UserError: there is no such run, or what is typed does not go with it.
    """
    if line.multirun:
        raise UserError(f"resume={asked} goes on with one run; take -m out.")
    longer = any(stored.name_of(key) in keys.GROWTH for key in line.keys)
    run = paths.find(asked, logs(line), unfinished=not longer)
    run.check_free()
    if not longer:
        leave_if_complete(run)
    found = stored.stored_config(line, run.directory, stored.RESUME)
    checkpoint = run.checkpoints / Path(asked).name if asked.endswith(".ckpt") else run.directory
    return going_on(line, run, found, checkpoint)


def leave_if_complete(run: Run) -> None:
    """Raises SystemExit(0) where a run is finished."""
    if run.status == Status.FINISHED:
        where = paths.in_words(run.directory)
        print(f"The run {where} is complete; python src/eval.py run={run.directory} tests it again.")
        raise SystemExit(0)


def going_on(line: Line, run: Run, found: Composed, checkpoint: Path) -> Start:
    """Raises UserError for a run in a place that cannot be written."""
    directory = run.directory
    for path in (directory, run.checkpoints):
        if path.exists() and not os.access(path, os.W_OK):
            raise UserError(
                f"{path} cannot be written, so the run cannot go on there; type resume=<a copy of it>, or "
                f"init_from={directory} for a new run from its weights."
            )
    print(f"going on with {paths.in_words(directory)}")
    stored.set_resume_checkpoint(found.tree, run, str(checkpoint))
    return Start("run", line, directory, False, found.tree, found.loader)


def go_on_with_name(line: Line, directory: Path, found: Composed) -> Start:
    """A command with name= that is typed again: the run goes on, or starts where it was killed before its first step.

    Raises:
        UserError: the directory holds something else, or the run was started with other overrides.
    """
    foreign = [path.name for path in directory.iterdir() if not OURS.fullmatch(path.name)]
    if foreign and not (directory / "config.yaml").is_file():
        raise UserError(f"{directory} holds {foreign[0]}, which is of no run; type another name.")
    run = Run(directory)
    run.check_free()
    if not run.begun and run.status != Status.FINISHED:
        return Start("run", line, directory, False, found.tree, found.loader)  # no step of it is left
    before = split(shlex.split(run.record.get("command") or "")[2:], "train").keys
    if set(line.typed) != set(before):
        now, then = (
            " ".join(sorted(set(a) - set(b))) or "nothing" for a, b in ((line.typed, before), (before, line.typed))
        )
        raise UserError(
            f"There is a run {directory} of other overrides: now {now}, then {then}; type another name, or go on with "
            f"it by resume={directory}."
        )
    leave_if_complete(run)
    return going_on(line, run, stored.continued(directory, found), directory)
