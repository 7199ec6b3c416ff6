"""The config of an old run with what is typed on top of it: to go on with the run, to repeat it, or to read it."""

from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf, open_dict

from leyden import UserError
from leyden.launch import overrides
from leyden.launch.line import Line, name_of
from leyden.launch.overrides import Composed
from leyden.run import configs, keys, paths
from leyden.run.run import Run

RESUME, RERUN, READ = "resume", "rerun", "run"  # what is typed before an old run: what it is wanted for
GROUPS = {  # the groups that may then be typed, too; None: any of one part of the config
    RESUME: ("trainer", "logger", "profiler", "callbacks"),
    RERUN: None,
    READ: ("trainer", "logger"),
}
WHOLE = ("experiment", "debug", "local", "search")  # groups that speak of the whole config
PRECISION = ("precision", "deterministic", "benchmark")  # how a run's trainer makes numbers, in whatever evaluates it
WATCHERS = {"gradients", "finite", "memory"}  # callbacks that only look


def stored_config(line: Line, directory: Path, purpose: str) -> Composed:
    """The tree of a run with what is typed on top of it; what may be typed depends on the purpose.

    Raises UserError: the run cannot be read, or what is typed does not go with it.
    """
    old, groups = configs.stored(directory), GROUPS[purpose]
    chosen = [key for key in line.keys if (paths.CONF / name_of(key)).is_dir()]
    for key in chosen:
        if name_of(key) in WHOLE or (groups and name_of(key) not in groups):
            choice = ", ".join(groups or [f"any group but {', '.join(WHOLE)}"])
            raise UserError(f"{key} cannot be chosen for a run that is there already; what can: {choice}.")
        if line.multirun and "," in key and "[" not in key:
            raise UserError(f"{key}: a sweep of an old run varies keys, not groups; take the comma out.")

    def merge(composed: DictConfig, loader: ConfigLoader) -> DictConfig:
        tree = old.copy()
        OmegaConf.set_struct(tree, False)
        if purpose == READ:
            evaluate(tree, composed)
        else:
            for key in chosen:
                take_over(tree, composed, name_of(key), loader)
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


def take_over(tree: DictConfig, composed: DictConfig, name: str, loader: Any) -> None:
    """Put a typed group in the place of the run's; of a trainer what its file says, as epochs stay those of the run."""
    dotted = name.replace("/", ".")
    node = OmegaConf.select(composed, dotted)
    if node is None:
        tree.pop(name, None)
        return
    if name == "trainer":
        file = loader.repository.load_config(f"trainer/{composed.hydra.runtime.choices.trainer}")
        said = {*keys.PLACE, *(f"trainer.{key}" for key in file.config if file.defaults_list)}
        node = {key: node[key] for key in node if f"trainer.{key}" in said}
    OmegaConf.update(tree, dotted, node, merge=name == "trainer", force_add=True)


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


def continued(directory: Path, now: DictConfig) -> DictConfig:
    """The tree of a run that goes on by the command that started it, which may build what that command builds."""
    tree = configs.stored(directory)
    tree.update(own=[], trusted=configs.packages(now))
    tree.update({name: now[name] for name in ("log_dir", "exact", "hydra") if name in now})
    return tree


def set_resume_checkpoint(tree: DictConfig, run: Run, checkpoint: str) -> None:
    """Let a tree go on from a checkpoint of a run, or from its newest."""
    with open_dict(tree):
        tree.resume = checkpoint
    if OmegaConf.select(tree, "model.weights") and run.last.is_file():  # which has them
        tree.model.weights = None
