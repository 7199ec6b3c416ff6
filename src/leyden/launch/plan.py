"""What a command line means: which directory, which config, one run or many."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from leyden import UserError, require
from leyden.launch import cluster, overrides, ranks, stored, sweeps
from leyden.launch.keys import elsewhere
from leyden.launch.line import Line, name_of, split, value_of
from leyden.launch.overrides import Composed
from leyden.run import configs, keys, paths
from leyden.run.run import Run, Status

SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")  # nothing runs
ASKED = {  # overrides that are taken as they are typed
    "train": ("resume", "rerun", "sweep"),
    "eval": ("run",),
    "predict": ("run", "input", "output"),
    "export": ("run", "output"),
}
OWN_DIRECTORY = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "run_dir")
OURS = r"\..*|config\.yaml|train\.log|rank\d+\.log"  # what a run leaves that was killed before it had a run.json
NAME = r"(?![.-])(?!latest$)(?!.*\.ckpt$)[\w.+@-]{1,100}"  # of a run


@dataclass
class Start:
    """A command that is ready to run. `mode`: run, multirun (Hydra composes each job) or show (Hydra prints)."""

    mode: str
    line: Line
    config: Composed
    directory: Path | None = None
    fresh: bool = False  # this command made the directory


def plan(argv: list[str], config: str) -> Start:
    """Read the command line, check it and choose the directory; leaves where the run is complete already.

    Raises UserError: whatever is wrong with it, a line for each mistake.
    """
    line = split(argv, config)
    logs = paths.logs_folder(*[value_of(key) for key in line.keys if name_of(key) == "log_dir"][-1:])
    asked = {name: value for name, value in line.take(*ASKED.get(config, ())).items() if value not in ("", "null")}
    if config == "train" and len(asked) > 1:
        raise UserError(f"{' and '.join(f'{name}=' for name in asked)} exclude each other; take one of them out.")
    again = cluster.requeued(logs / "sweep")
    if again and line.multirun and not asked:
        asked["sweep"] = str(again)
    sweep = sweeps.go_on(line, asked["sweep"], logs) if "sweep" in asked else None
    found, run = composed(line, config, line.take("rerun") if sweep else asked, logs)
    forbid(line)
    if not {*SHOWS}.isdisjoint(line.flags):
        return Start("show", line, found)
    tree, folder = found.tree, paths.in_project(found.tree.log_dir)
    if config in ("predict", "export") and (ranks.outside() or ranks.count(tree.trainer) > 1):
        raise UserError(f"{config}.py runs in one process, without torchrun; type trainer.devices=1.")
    if line.multirun:
        return Start("multirun", line, found, sweep or paths.create(folder / "sweep"), sweep is None)
    if run and "resume" in asked:
        return going_on(line, run, found, asked["resume"], is_longer(line))
    name = str(tree.name) if config == "train" and tree.name is not None else None
    require(not name or bool(re.fullmatch(NAME, name)), "name", "letters, digits, . + - _ or @, and not latest", name)
    if name and (folder / config / name).exists():
        return go_on_with_name(line, Run(folder / config / name), found)
    if not name and (before := cluster.requeued(folder / config)):
        return go_on_with_name(line, Run(before), found)
    return Start("run", line, found, paths.create(folder / config, name), True)


def composed(line: Line, config: str, asked: dict[str, str], logs: Path) -> tuple[Composed, Run | None]:
    """The config of a command, and the old run that it starts from or goes on with.

    Raises UserError: what is typed is wrong, or there is no such run.
    """
    purpose = next((name for name in stored.GROUPS if name in asked), "")
    if purpose == stored.RESUME and line.multirun:
        raise UserError(f"resume={asked['resume']} goes on with one run; take -m out.")
    if not purpose and "run" in ASKED.get(config, ()):
        answers = [answer for key in line.keys if (answer := elsewhere(name_of(key)))]
        which = f"Which run? Type run=<run directory, checkpoint or latest>; {config}.py --help has more."
        raise UserError([*answers, which][0])
    if not purpose:
        return overrides.compose(line, paths.CONF), None
    run = paths.find(asked[purpose], logs, unfinished=purpose == stored.RESUME and not is_longer(line))
    if purpose == stored.RESUME:
        run.check_free()
    found = stored.stored_config(line, run.directory, purpose)
    if purpose == stored.READ:
        found.tree.update({name: configs.literal(value) for name, value in asked.items()})
        found.tree.run = str(run.checkpoint(asked["run"]))
    return found, run


def forbid(line: Line) -> None:
    """Raises UserError for what would make two runs share a directory, or cannot be both."""
    for key in line.keys:
        name = name_of(key)
        if name in OWN_DIRECTORY:
            raise UserError(f"{key}: each run makes a directory of its own; type log_dir=<folder> or name=<name>.")
        if name == "name" and line.multirun:
            raise UserError(f"{key}: a sweep has many runs, which cannot share a name; take it or -m out.")
        if name == "hydra.searchpath":
            raise UserError(f"{key}: type --config-dir <folder> for configs from elsewhere.")
    if len({"-m", "--multirun", *SHOWS}.intersection(line.flags)) > 1:
        raise UserError("--cfg and --info show one run, one at a time; take -m or the other flag out.")


def is_longer(line: Line) -> bool:
    """Whether a run is to go on for longer than it was meant to."""
    return any(name_of(key) in keys.GROWTH for key in line.keys)


def go_on_with_name(line: Line, run: Run, found: Composed) -> Start:
    """A command with name= that is typed again: it goes on, or starts where it was killed before its first step."""
    run.check_free()
    foreign = [path.name for path in run.directory.iterdir() if not re.fullmatch(OURS, path.name)]
    if foreign and run.status == Status.UNKNOWN:
        raise UserError(f"{run.directory} holds {foreign[0]}, which is of no run; type another name.")
    if not run.begun and run.status != Status.FINISHED:
        return Start("run", line, found, run.directory)
    now, then = {*line.typed}, {*split(shlex.split(run.record.get("command") or "")[2:], "train").typed}
    if now != then:
        apart = {"only now": now - then, "only then": then - now}
        words = "; ".join(f"{when}: {' '.join(sorted(typed))}" for when, typed in apart.items() if typed)
        go_on = f"type another name, or go on with it by resume={run.directory}"
        raise UserError(f"The run {run.directory} was started with other overrides ({words}); {go_on}.")
    return going_on(line, run, found._replace(tree=stored.continued(run.directory, found.tree)))


def going_on(line: Line, run: Run, found: Composed, asked: str = "", longer: bool = False) -> Start:
    """A start that goes on from a checkpoint of a run, or from its newest; leaves where the run is complete."""
    where = paths.in_words(run.directory)
    if run.status == Status.FINISHED and not longer:
        print(f"The run {where} is complete; python src/eval.py run={run.directory} tests it again.")
        raise SystemExit(0)
    print(f"going on with {where}")
    checkpoint = run.checkpoints / Path(asked).name if asked.endswith(".ckpt") else run.directory
    stored.set_resume_checkpoint(found.tree, run, str(checkpoint))
    return Start("run", line, found, run.directory)
