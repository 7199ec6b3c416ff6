"""The config of an old run, with what is typed on top of it: to go on with it, or to repeat it."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.launch import overrides
from leyden.run import life, runs

OURS = re.compile(r"\..*|run\.json|config\.yaml|train\.log|rank\d+\.log")  # in a run that had hardly begun
PLACE = ("accelerator", "devices", "num_nodes", "strategy")  # of a trainer: where it runs
WHERE = ("trainer", "logger", "profiler", "callbacks")  # groups that may change while a run goes on
WHOLE = ("experiment", "debug", "local", "search")  # groups that speak of the whole config
WATCHERS = {"gradients", "finite", "memory"}  # callbacks that only look
PACKAGES = ("own", "trusted")  # keys that say which packages a stored config may build from
GROWING = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time")  # what a longer run has more of
HARMLESS = (  # keys that change no number of a run that goes on
    *GROWING, "trainer.log_every_n_steps", "trainer.enable", "trainer.num_sanity_val_steps", "data.num_workers",
    "data.pin_memory", "data.root", "data.path", "data_dir", "log_dir", "checkpoint.every_n_steps", "tags", "note",
    "own", "trusted", "exact", "logger", "profiler",
)  # fmt: skip


def name_of(key: str) -> str:
    return key.lstrip("+~").partition("=")[0]


def again(line: overrides.Line, directory: Path, allowed: tuple[str, ...] | None = None) -> DictConfig:
    """The tree of a run with the groups that are typed in place of its own; `line` keeps its other keys, unchecked.

    Raises:
        UserError: the run cannot be read, or a group is none of those allowed.
    """
    tree = runs.stored(directory)
    usual = overrides.check(replace(line, keys=[key for key in line.keys if name_of(key) in PACKAGES]), runs.CONF)
    tree.update({name: usual[name] for name in PACKAGES})  # never what is stored
    chosen = [key for key in line.keys if (runs.CONF / name_of(key)).is_dir()]
    for key in chosen:
        if name_of(key) in WHOLE or (allowed and name_of(key) not in allowed):
            choice = f"any group but {', '.join(WHOLE)}" if allowed is None else ", ".join(allowed)
            raise UserError(f"{key} cannot be chosen for a run that is there already; what can: {choice}.")
        if line.multirun and "," in key and "[" not in key:
            raise UserError(f"{key}: a sweep of an old run varies keys, not groups; take the comma out.")
    if chosen:
        typed = overrides.check(replace(line, keys=chosen), runs.CONF)
        for name in map(name_of, chosen):
            node = OmegaConf.select(typed, name.replace("/", "."))
            if name == "trainer":  # what the option says; epochs and the like stay those of the run
                node = {key: typed.trainer[key] for key in typed.trainer
                        if key in PLACE or typed.trainer[key] != usual.trainer.get(key)}  # fmt: skip
            if node is None:
                tree.pop(name, None)
            else:
                OmegaConf.update(tree, name.replace("/", "."), node, merge=name == "trainer", force_add=True)
    line.keys = [key for key in line.keys if key not in chosen]
    return tree


def to_rerun(line: overrides.Line, directory: Path) -> DictConfig:
    """The tree for a new run that repeats an old one."""
    fresh = OmegaConf.create({"name": None, "rerun": str(directory), "log_dir": "logs", "exact": True})
    tree = again(line, directory)
    missing = dict.fromkeys(key for key in ("resume", "init_from") if key not in tree)
    parts = [tree.items_ex(resolve=False), missing.items(), fresh.items_ex(resolve=False)]
    return OmegaConf.create({str(key): value for part in parts for key, value in part})


def to_resume(line: overrides.Line, directory: Path, checkpoint: str) -> DictConfig:
    """The tree for a run that goes on.

    Raises:
        UserError: what is typed cannot be changed in a run, or only without being exact.
    """
    before = set(runs.stored(directory).get("callbacks") or {})
    tree = again(line, directory, WHERE)
    tree.exact = True  # unless it is typed again
    typed = overrides.check(line, runs.CONF, tree)
    for key in line.keys:
        if OmegaConf.select(typed, name_of(key)) == OmegaConf.select(tree, name_of(key)):
            continue
        if name_of(key).startswith(("optimizer", "scheduler")):
            raise UserError(
                f"{key}: this is in the checkpoint; for a new run from its weights type init_from={directory}."
            )
        if typed.exact and not name_of(key).startswith(HARMLESS):
            raise UserError(
                f"{key}: the run would come to other numbers than without a stop; type exact=false to go on all the "
                f"same, or init_from={directory} for a new run from its weights."
            )
    changed = before ^ set(tree.get("callbacks") or {})
    if typed.exact and changed - WATCHERS:
        raise UserError(f"callbacks ({', '.join(sorted(changed))}) would change the run; type exact=false to go on so.")
    point(tree, directory, checkpoint)
    return tree


def point(tree: DictConfig, directory: Path, checkpoint: str) -> None:
    """Let a tree go on from a checkpoint of a run, or from its newest."""
    tree.resume = checkpoint
    whole = (directory / "checkpoints" / "last.ckpt").is_file()  # best.ckpt alone may be of before any other
    if OmegaConf.select(tree, "model.weights") and whole:  # the checkpoint has them
        tree.model.weights = None


def is_stored(tree: DictConfig) -> bool:
    """Whether a config comes from a run, and not from conf/ and the command line."""
    return any(tree.get(key) for key in ("resume", "rerun", "run"))


def packages(tree: DictConfig) -> list[str]:
    """The user's packages that a config may build from; one that does not come from a run, from all that it names."""
    found = {package for name in PACKAGES for package in tree.get(name) or ()}
    if not is_stored(tree):
        found.update(re.findall(r"_target_: (\w+)\.", OmegaConf.to_yaml(tree)))
    return sorted(found)


def begun(directory: Path) -> bool:
    return any((directory / "checkpoints").glob("*.ckpt"))


def typed_before(directory: Path) -> list[str]:
    """The overrides that a run was started with."""
    command = runs.read_json(directory / "run.json").get("command") or ""
    return overrides.split(shlex.split(command)[2:], "train").keys


def complete(directory: Path, line: overrides.Line) -> bool:
    """Whether a run is finished, and nothing that is typed would make it longer."""
    finished = runs.read_json(directory / "run.json").get("status") == "finished"
    return finished and not any(name_of(key) in GROWING for key in line.keys)


def go_on(line: overrides.Line, run: str, logs: Path) -> tuple[Path, DictConfig]:
    """The directory and the tree of a run that goes on; leaves where it is complete.

    Raises:
        UserError: there is no such run, or what is typed does not go with it.
    """
    if line.multirun:
        raise UserError(f"resume={run} goes on with one run; take -m out.")
    longer = any(name_of(key) in GROWING for key in line.keys)
    directory = runs.find(run, logs, unfinished=not longer)
    if complete(directory, line):
        print(f"The run {runs.in_words(directory)} is complete; python src/eval.py run={directory} tests it again.")
        raise SystemExit(0)
    if locked := [
        path for path in (directory, directory / "checkpoints") if path.exists() and not os.access(path, os.W_OK)
    ]:
        raise UserError(
            f"{locked[0]} cannot be written, so the run cannot go on there; type resume=<a copy of it>, or "
            f"init_from={directory} for a new run from its weights."
        )
    checkpoint = directory / "checkpoints" / Path(run).name if run.endswith(".ckpt") else directory
    print(f"going on with {runs.in_words(directory)}")
    return directory, to_resume(line, directory, str(checkpoint))


def go_on_with_name(line: overrides.Line, directory: Path, tree: DictConfig) -> tuple[Path, DictConfig] | None:
    """As `go_on`, for a command that is typed again; None for a run that was killed before it had begun.

    The packages that the command itself builds from may be trusted.

    Raises:
        UserError: the run was started with other overrides.
    """
    foreign = [path.name for path in directory.iterdir() if not OURS.fullmatch(path.name)]
    if foreign and not (directory / "config.yaml").is_file():
        raise UserError(f"{directory} holds {foreign[0]}, which is of no run; type another name.")
    record = runs.read_json(directory / "run.json")
    if not begun(directory) and record.get("status") != "finished" and not life.alive(record):
        return None  # no step of it is left
    if set(typed := line.typed) != set(before := typed_before(directory)):
        now, then = (" ".join(sorted(set(a) - set(b))) or "nothing" for a, b in ((typed, before), (before, typed)))
        raise UserError(
            f"There is a run {directory} of other overrides: now {now}, then {then}; type another name, or go on with "
            f"it by resume={directory}."
        )
    line.keys = []
    directory, old = go_on(line, str(directory), directory.parent)
    old.update({"own": [], "trusted": packages(tree)})
    return directory, old
