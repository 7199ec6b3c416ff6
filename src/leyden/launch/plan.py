"""What a command line means: a config, with an old run in it or not, and a directory."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from leyden import UserError, require
from leyden.launch import cluster, ranks, sweeps
from leyden.launch.line import Line, name_of, split, value_of
from leyden.launch.overrides import Composed, compose
from leyden.run import configs, keys, paths
from leyden.run.run import Run, Status

# overrides taken as typed
ASKED = {"train": "resume rerun sweep", "eval": "run", "predict": "run input output", "export": "run output"}
OURS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "run_dir", "hydra.searchpath")  # not to be typed
NAME = r"|(?![.-])(?!latest$)(?!.*\.ckpt$)[\w.+@-]{1,100}"  # of a run, or none
GROUPS = {  # what an old run is for -> the groups that may be typed, too
    "resume": ("trainer", "logger", "profiler", "callbacks"),
    "rerun": ("model", "data", "task", "optimizer", "scheduler", "trainer", "callbacks", "logger", "profiler", "hydra"),
    "run": ("trainer", "logger"),
}


@dataclass
class Start:
    """A command that is ready to run. `mode`: run, multirun or show (Hydra prints)."""

    mode: str
    config: Composed
    directory: Path = Path()
    fresh: bool = False  # this command made the directory


def plan(argv: list[str], config: str) -> Start:
    """Read the command line, check it, choose the directory; leaves where the run is complete."""
    line, names = split(argv, config), ASKED.get(config, "").split()
    typed = {name_of(key): value_of(key) for key in line.keys}
    logs, longer = paths.logs_folder(typed.get("log_dir")), not typed.keys().isdisjoint(keys.GROWTH)
    asked = {name: value for name, value in line.take(*names).items() if value not in ("", "null")}
    if config == "train" and len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} exclude each other; type one of them.")

    again = cluster.requeued(logs / "sweep")
    if again and line.multirun and not asked:
        asked["sweep"] = str(again)
    sweep = sweeps.go_on(line, asked["sweep"], logs) if "sweep" in asked else None
    asked = line.take("rerun") if sweep else asked

    # the config, of an old run or of conf/
    purpose = next((name for name in GROUPS if name in asked), "")
    if "run" in names and not purpose:
        raise UserError("Which run? Type run=<run>: a directory, checkpoint or latest.")
    run = paths.find(asked[purpose], logs, purpose == "resume" and not longer) if purpose else None
    found = stored_config(line, run, purpose, asked) if run else compose(line, paths.CONF)
    for key in line.keys:
        if name_of(key) in OURS or (name_of(key) == "name" and line.multirun):
            raise UserError(f"{key} cannot be set; type log_dir=, --config-dir, or name= without -m.")
    if line.multirun and ranks.outside():
        raise UserError("torchrun and srun start one run; type python, or -m hydra/launcher=slurm.")
    if {"--cfg", "--info", "--hydra-help", "--version", "--shell-completion"} & line.flags.keys():  # nothing runs
        return Start("show", found)
    tree, folder = found.tree, paths.in_project(found.tree.log_dir)
    if config in ("predict", "export") and (ranks.outside() or ranks.count(tree.trainer) > 1):
        raise UserError(f"{config}.py runs in one process, without torchrun; type trainer.devices=1.")

    # the directory
    if line.multirun:
        return Start("multirun", found, sweep or paths.create(folder / "sweep"), sweep is None)
    if run and purpose == "resume":
        return going_on(run, found, asked["resume"], longer)
    name = str(tree.name) if config == "train" and tree.name is not None else ""
    require(bool(re.fullmatch(NAME, name)), "name", "letters, digits, . + - _ or @, and not latest", name)
    before = folder / config / name if name else cluster.requeued(folder / config)
    if before and before.exists():
        return go_on_with_name(Run(before), found)
    return Start("run", found, paths.create(folder / config, name), True)


def stored_config(line: Line, run: Run, purpose: str, asked: dict[str, str]) -> Composed:
    """The config of a run with what is typed on top; UserError for what does not go with the purpose."""
    if purpose == "resume":
        require(not line.multirun, "resume", "typed without -m", asked["resume"])
        run.check_free()

    old = configs.stored(run.directory)
    chosen = [key for key in line.keys if (paths.CONF / name_of(key)).is_dir()]
    for key in chosen:
        if name_of(key).split("/")[0] not in GROUPS[purpose]:
            raise UserError(f"{key} cannot be chosen for a run that exists; what can: {', '.join(GROUPS[purpose])}.")

    def merge(composed: DictConfig) -> DictConfig:
        tree = old.copy()
        if purpose == "run":
            evaluate(tree, composed)
            tree.update({name: configs.literal(value) for name, value in asked.items()})
            tree.run = str(run.checkpoint(asked["run"]))
        else:
            for key in chosen:
                take_over(tree, composed, name_of(key).replace("/", "."))
            tree.update(resume=None, exact=True, init_from=tree.get("init_from"))  # unless it is typed again
        if purpose == "rerun":
            tree.update(name=None, rerun=str(run.directory), log_dir=composed.log_dir)
        tree.update({name: composed.get(name) for name in ("trusted", "own", "hydra")})  # never what is stored
        OmegaConf.set_struct(tree, True)
        return tree

    found = compose(line, paths.CONF, merge)
    for key in line.keys if purpose == "resume" else ():
        check_resumable(key, old, found.tree, run)
    return found


def evaluate(tree: DictConfig, composed: DictConfig) -> None:
    """Put an evaluation's own settings in a run's config, but for how numbers are made."""
    kept = {name: tree.trainer.get(name) for name in ("precision", "deterministic", "benchmark")}
    tree.update(callbacks={}, profiler=None, logger={})
    tree.update(dict(composed.items_ex(resolve=False)))
    tree.trainer.update(kept)


def take_over(tree: DictConfig, composed: DictConfig, group: str) -> None:
    """Put a typed group in the place of the run's; a trainer says only where to compute."""
    for key in [key for key in keys.PLACE if key.startswith(f"{group}.")] or [group]:
        OmegaConf.update(tree, key, OmegaConf.select(composed, key), merge=False, force_add=True)


def check_resumable(key: str, old: DictConfig, tree: DictConfig, run: Run) -> None:
    """UserError for what cannot be changed while a run goes on."""
    name, new = name_of(key), f"init_from={run.directory} for a new run"
    then, now = (OmegaConf.select(each, name) for each in (old, tree))
    changed = set(then or ()) ^ set(now or ()) if name == "callbacks" else {name}
    if then == now or changed <= {"gradients", "finite", "memory", "trainer"}:  # whose place is in the checkpoint
        return

    if name.startswith(("optimizer", "scheduler")):
        raise UserError(f"{key}: this is in the checkpoint; type {new}.")
    if tree.exact and keys.role(name) not in keys.RESUMABLE:
        raise UserError(f"{key} would change the numbers; type exact=false, or {new}.")


def go_on_with_name(run: Run, found: Composed) -> Start:
    """Go on with a command that is typed again, or start it where it was killed before a step."""
    run.check_free()
    if not run.begun and run.status != Status.FINISHED:
        return Start("run", found, run.directory)
    then = split(shlex.split(run.record.get("command") or "")[2:], "train").typed
    if apart := " ".join(sorted({*found.line.typed} ^ {*then})):
        raise UserError(f"{run.directory} had other overrides ({apart}); type another name, or resume={run.directory}.")

    found.tree = configs.continued(run.directory, found.tree)
    return going_on(run, found)


def going_on(run: Run, found: Composed, asked: str = "", longer: bool = False) -> Start:
    """Go on from a run's checkpoint, or its newest; leaves where the run is complete."""
    where = paths.in_words(run.directory)
    if run.status == Status.FINISHED and not longer:
        print(f"The run {where} is complete; python src/eval.py run={where} tests it again.")
        raise SystemExit(0)
    print(f"going on with {where}")
    checkpoint = run.checkpoints / Path(asked).name if asked.endswith(".ckpt") else run.directory
    configs.set_resume_checkpoint(found.tree, run, str(checkpoint))
    return Start("run", found, run.directory)
