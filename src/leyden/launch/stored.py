"""The config of an old run with what is typed on top of it: to go on with the run, to repeat it, or to read it."""

from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf, open_dict

from leyden import UserError
from leyden.launch import overrides
from leyden.launch.line import Line
from leyden.launch.overrides import Composed
from leyden.run import configs, keys, paths
from leyden.run.run import Run

WHOLE = ("experiment", "debug", "local", "search")  # groups that speak of the whole config
KEPT = ("precision", "deterministic", "benchmark")  # of a run's trainer, in whatever trainer evaluates it
WATCHERS = {"gradients", "finite", "memory"}  # callbacks that only look


# What an old run is wanted for, and which groups may be typed on top of its config; None: all but WHOLE.
RESUME, RERUN, READ = "resume", "rerun", "read"
GROUPS = {RESUME: ("trainer", "logger", "profiler", "callbacks"), RERUN: None, READ: ("trainer", "logger")}


def stored_config(line: Line, directory: Path, purpose: str) -> Composed:
    """The tree of a run with what is typed on top of it; what may be typed depends on the purpose.

    Raises:
        UserError: the run cannot be read, or what is typed does not go with it.
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
        if purpose == READ:  # the command has keys of its own
            replace(tree, composed)
        for key in chosen if purpose != READ else ():
            take_over(tree, composed, name_of(key), loader)
        tree.update({name: composed.get(name) for name in ("trusted", "own", "hydra")})  # never what is stored
        if purpose == RERUN:
            tree.update({"name": None, "rerun": str(directory), "log_dir": composed.log_dir})
        if purpose != READ:  # exact, unless it is typed again
            tree.update({"resume": None, "init_from": tree.get("init_from"), "exact": True})
        OmegaConf.set_struct(tree, True)
        return tree

    found = overrides.compose(line, paths.CONF, merge)
    if purpose == RESUME:
        check_resumable(line, old, found.tree, directory)
    return found


def continued(directory: Path, found: Composed) -> Composed:
    """The tree of a run that goes on by the command that started it, which may build what that command builds."""
    tree = configs.stored(directory)
    tree.update({"exact": True, "own": [], "trusted": configs.packages(found.tree), "hydra": found.tree.hydra})
    return found._replace(tree=tree)


def name_of(key: str) -> str:
    return key.lstrip("+~").partition("=")[0]


def replace(tree: DictConfig, composed: DictConfig) -> None:
    """Put the keys that a command has of its own in the place of the run's; the trainer keeps how numbers are made."""
    kept = {name: tree.trainer[name] for name in KEPT if name in tree.trainer}
    for name in ("callbacks", "profiler", "logger"):
        tree.pop(name, None)
    for key, node in composed.items_ex(resolve=False):
        tree[str(key)] = node
    tree.trainer.update(kept)
    if OmegaConf.select(tree, "model.weights"):  # the checkpoint has them
        tree.model.weights = None


def take_over(tree: DictConfig, composed: DictConfig, name: str, loader: Any) -> None:
    """Put a typed group in the place of the run's; of a trainer what its file says, as epochs stay those of the run."""
    dotted = name.replace("/", ".")
    node = OmegaConf.select(composed, dotted)
    if name == "trainer":
        option = composed.hydra.runtime.choices.trainer
        said = loader.repository.load_config(f"trainer/{option}")
        own = set(said.config) if said.defaults_list else set()
        node = {key: node[key] for key in node if f"trainer.{key}" in keys.PLACE or key in own}
    if node is None:
        tree.pop(name, None)
    else:
        OmegaConf.update(tree, dotted, node, merge=name == "trainer", force_add=True)


def check_resumable(line: Line, old: DictConfig, tree: DictConfig, directory: Path) -> None:
    """Raises UserError for what cannot be changed while a run goes on, or only without being exact."""
    for key in line.keys:
        name = name_of(key)
        if (paths.CONF / name).is_dir() or OmegaConf.select(tree, name) == OmegaConf.select(old, name):
            continue
        if name.startswith(("optimizer", "scheduler")):
            raise UserError(
                f"{key}: this is in the checkpoint; for a new run from its weights type init_from={directory}."
            )
        if tree.exact and keys.role(name) not in keys.RESUMABLE:
            raise UserError(
                f"{key}: the run would come to other numbers than without a stop; type exact=false to go on all the "
                f"same, or init_from={directory} for a new run from its weights."
            )
    changed = set(old.get("callbacks") or {}) ^ set(tree.get("callbacks") or {})
    if tree.exact and changed - WATCHERS:
        raise UserError(f"callbacks ({', '.join(sorted(changed))}) would change the run; type exact=false to go on so.")


def set_resume_checkpoint(tree: DictConfig, run: Run, checkpoint: str) -> None:
    """Let a tree go on from a checkpoint of a run, or from its newest."""
    with open_dict(tree):
        tree.resume = checkpoint
    # best.ckpt alone may be of before any other
    if OmegaConf.select(tree, "model.weights") and run.last.is_file():  # the checkpoint has them
        tree.model.weights = None
