"""What a command line means: which directory, one run or many, and the config, with an old run in it or not."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from leyden import UserError, require
from leyden.launch import cluster, overrides, ranks, sweeps
from leyden.launch.line import Line, name_of, split, value_of
from leyden.launch.overrides import Composed
from leyden.run import configs, keys, paths
from leyden.run.run import Run, Status

SHOWS = {"--cfg", "--info", "--hydra-help", "--version", "--shell-completion"}  # flags with which nothing runs
ASKED = {  # overrides that are taken as they are typed
    "train": ("resume", "rerun", "sweep"),
    "eval": ("run",),
    "predict": ("run", "input", "output"),
    "export": ("run", "output"),
}
TAKEN = {  # overrides that are the machine's own -> what to type
    **dict.fromkeys(
        ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "run_dir"), "log_dir=<folder> or name=<name>"
    ),
    "hydra.searchpath": "--config-dir <folder>",
}
NAME = r"(?![.-])(?!latest$)(?!.*\.ckpt$)[\w.+@-]{1,100}"  # of a run
RESUME, RERUN, READ = "resume", "rerun", "run"  # what is typed before an old run: what it is wanted for
GROUPS = {  # the groups that may then be typed, too
    RESUME: ("trainer", "logger", "profiler", "callbacks"),
    RERUN: ("model", "data", "task", "optimizer", "scheduler", "trainer", "callbacks", "logger", "profiler", "hydra"),
    READ: ("trainer", "logger"),
}
PRECISION = ("precision", "deterministic", "benchmark")  # how a run's trainer makes numbers, in whatever evaluates it
WATCHERS = {"gradients", "finite", "memory"}  # callbacks that only look


@dataclass
class Start:
    """A command that is ready to run. `mode`: run, multirun (Hydra composes each job) or show (Hydra prints)."""

    mode: str
    line: Line
    config: Composed
    directory: Path = Path()
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
    if SHOWS & line.flags.keys():
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
    before = folder / config / name if name else cluster.requeued(folder / config)
    if before and before.exists():
        return go_on_with_name(line, Run(before), found)
    return Start("run", line, found, paths.create(folder / config, name), True)


def composed(line: Line, config: str, asked: dict[str, str], logs: Path) -> tuple[Composed, Run | None]:
    """The config of a command, and the old run that it starts from or goes on with."""
    purpose = next((name for name in GROUPS if name in asked), "")
    if not purpose and "run" in ASKED.get(config, ()):
        raise UserError(f"Which run? Type run=<run>: a directory, checkpoint or latest; see {config}.py --help.")
    if not purpose:
        return overrides.compose(line, paths.CONF), None
    run = paths.find(asked[purpose], logs, unfinished=purpose == RESUME and not is_longer(line))
    if purpose == RESUME:
        require(not line.multirun, "resume", "typed without -m, as it goes on with one run", asked[RESUME])
        run.check_free()
    found = stored_config(line, run.directory, purpose)
    if purpose == READ:
        found.tree.update({name: configs.literal(value) for name, value in asked.items()})
        found.tree.run = str(run.checkpoint(asked["run"]))
    return found, run


def stored_config(line: Line, directory: Path, purpose: str) -> Composed:
    """The tree of a run with what is typed on top of it; UserError for what does not go with the purpose."""
    old = configs.stored(directory)
    chosen = [key for key in line.keys if (paths.CONF / name_of(key)).is_dir()]
    for key in chosen:
        if name_of(key).split("/")[0] not in GROUPS[purpose]:
            what = ", ".join(GROUPS[purpose])
            raise UserError(f"{key} cannot be chosen for a run that is there already; what can: {what}.")
        if line.multirun and "," in key and "[" not in key:
            raise UserError(f"{key}: a sweep of an old run varies keys, not groups; take the comma out.")

    def merge(composed: DictConfig) -> DictConfig:
        tree = old.copy()
        OmegaConf.set_struct(tree, False)
        if purpose == READ:
            evaluate(tree, composed)
        else:
            for key in chosen:
                take_over(tree, composed, name_of(key))
            tree.update(resume=None, exact=True, init_from=tree.get("init_from"))  # unless it is typed again
        if purpose == RERUN:
            tree.update(name=None, rerun=str(directory), log_dir=composed.log_dir)
        tree.update({name: composed.get(name) for name in ("trusted", "own", "hydra")})  # never what is stored
        OmegaConf.set_struct(tree, True)
        return tree

    found = overrides.compose(line, paths.CONF, merge)
    for key in line.keys if purpose == RESUME else ():
        check_resumable(key, old, found.tree, directory)
    return found


def evaluate(tree: DictConfig, composed: DictConfig) -> None:
    """Put what an evaluation has of its own in the place of the run's; the trainer keeps how numbers are made."""
    kept = {name: tree.trainer[name] for name in PRECISION if name in tree.trainer}
    for name in ("callbacks", "profiler", "logger"):
        tree.pop(name, None)
    tree.update(dict(composed.items_ex(resolve=False)))
    tree.trainer.update(kept)
    if OmegaConf.select(tree, "model.weights"):  # the checkpoint has them
        tree.model.weights = None


def take_over(tree: DictConfig, composed: DictConfig, group: str) -> None:
    """Put a typed group in the place of the run's; of a trainer what its file says, as epochs stay those of the run."""
    name = group.replace("/", ".")
    node = OmegaConf.select(composed, name)
    if group == "trainer":
        repository = GlobalHydra.instance().config_loader().repository
        file = repository.load_config(f"trainer/{composed.hydra.runtime.choices.trainer}")
        said = {*keys.PLACE, *(f"trainer.{key}" for key in file.config if file.defaults_list)}
        node = {key: node[key] for key in node if f"trainer.{key}" in said}
    OmegaConf.update(tree, name, node, merge=name == "trainer", force_add=True)


def check_resumable(key: str, old: DictConfig, tree: DictConfig, directory: Path) -> None:
    """Raises UserError for what cannot be changed while a run goes on, or only without being exact."""
    name, new = name_of(key), f"init_from={directory} for a new run from its weights"
    then, now = (OmegaConf.select(each, name) for each in (old, tree))
    watched = name == "callbacks" and set(then or ()) ^ set(now or ()) <= WATCHERS
    if then == now or watched or name == "trainer":  # how many processes it makes, the checkpoint knows
        return
    if name.startswith(("optimizer", "scheduler")):
        raise UserError(f"{key}: this is in the checkpoint; type {new}.")
    if tree.exact and keys.role(name) not in keys.RESUMABLE:
        raise UserError(f"{key} would change the numbers; type exact=false to go on all the same, or {new}.")


def forbid(line: Line) -> None:
    """Raises UserError for what would make two runs share a directory, or cannot be both."""
    for key in line.keys:
        if (name := name_of(key)) in TAKEN:
            raise UserError(f"{key}: the command sets this by itself; type {TAKEN[name]}.")
        if name == "name" and line.multirun:
            raise UserError(f"{key}: a sweep has many runs, which cannot share a name; take it or -m out.")
    if len(({"--multirun"} | SHOWS) & line.flags.keys()) > 1:
        raise UserError("--cfg and --info show one run, one at a time; take -m or the other flag out.")
    if line.multirun and ranks.outside():
        raise UserError("torchrun and srun start one run; type python in their place, or -m hydra/launcher=slurm.")


def is_longer(line: Line) -> bool:
    """Whether a run is to go on for longer than it was meant to."""
    return any(name_of(key) in keys.GROWTH for key in line.keys)


def go_on_with_name(line: Line, run: Run, found: Composed) -> Start:
    """A command with name= that is typed again: it goes on, or starts where it was killed before its first step."""
    run.check_free()
    ours = r"\..*|config\.yaml|train\.log|rank\d+\.log"  # what a run leaves that was killed before its run.json
    foreign = [path.name for path in run.directory.iterdir() if not re.fullmatch(ours, path.name)]
    if foreign and run.status == Status.UNKNOWN:
        raise UserError(f"{run.directory} holds {foreign[0]}, which is of no run; type another name.")
    if not run.begun and run.status != Status.FINISHED:
        return Start("run", line, found, run.directory)
    then = split(shlex.split(run.record.get("command") or "")[2:], "train").typed
    if apart := " ".join(sorted({*line.typed} ^ {*then})):
        do = f"type another name, or resume={run.directory}"
        raise UserError(f"{run.directory} was started with other overrides ({apart}); {do}.")
    found.tree = configs.continued(run.directory, found.tree)
    return going_on(line, run, found)


def going_on(line: Line, run: Run, found: Composed, asked: str = "", longer: bool = False) -> Start:
    """A start that goes on from a checkpoint of a run, or from its newest; leaves where the run is complete."""
    where = paths.in_words(run.directory)
    if run.status == Status.FINISHED and not longer:
        print(f"The run {where} is complete; python src/eval.py run={run.directory} tests it again.")
        raise SystemExit(0)
    print(f"going on with {where}")
    checkpoint = run.checkpoints / Path(asked).name if asked.endswith(".ckpt") else run.directory
    configs.set_resume_checkpoint(found.tree, run, str(checkpoint))
    return Start("run", line, found, run.directory)
