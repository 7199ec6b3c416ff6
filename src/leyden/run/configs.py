"""Configs: those of runs, text that is no config, and the resolvers that a YAML may use."""

import json
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from leyden import UserError
from leyden.run import paths
from leyden.run.keys import direction
from leyden.run.run import Run

NEEDED = ("data", "task", "trainer")  # in the config of a run


def stored(directory: Path) -> DictConfig:
    """The tree that a run was built from, with its interpolations; UserError if it cannot be read."""
    run = Run(directory)
    try:
        tree = OmegaConf.load(run.config_file)
    except Exception as error:  # of YAML and of OmegaConf alike
        raise UserError(f"{run.config_file} cannot be read ({str(error).splitlines()[0]}).") from error
    if not isinstance(tree, DictConfig) or not all(isinstance(tree.get(key), DictConfig) for key in NEEDED):
        raise UserError(f"{run.config_file} is no config of a run: it needs {', '.join(NEEDED)}.")
    for key in ("hydra", "defaults"):  # would be Hydra's own, which builds what they name
        tree.pop(key, None)
    tree.threads = tree.get("threads") or run.record.get("threads")
    return tree


def evaluated(asked: str, logs: Path, trusted: list[str], sweep: Path | None = None) -> DictConfig:
    """The tree of the run that is asked for, with its checkpoint as `run`; it may build from `trusted` packages."""
    run = paths.find(asked, logs, sweep=sweep)
    tree = stored(run.directory)
    tree.update(run=str(run.checkpoint(asked)), run_dir=None, own=[], trusted=trusted)
    return tree


def source(tree: DictConfig) -> Run | None:
    """The run that a config comes from; None where it comes from conf/ and the command line."""
    place = tree.get("run") or tree.get("resume") or tree.get("rerun")
    return paths.of(Path(place)) if place else None


def packages(tree: DictConfig) -> list[str]:
    """The user's packages that a config may build from; one that does not come from a run, from all that it names."""
    named = [] if source(tree) else re.findall(r"_target_: (\w+)\.", OmegaConf.to_yaml(tree))
    return sorted({*(tree.get("own") or ()), *(tree.get("trusted") or ()), *named})


def continued(directory: Path, now: DictConfig) -> DictConfig:
    """The tree of a run that goes on by the command that started it, which may build what that command builds."""
    tree = stored(directory)
    tree.update(own=[], trusted=packages(now))
    tree.update({name: now[name] for name in ("log_dir", "exact", "hydra") if name in now})
    return tree


def set_resume_checkpoint(tree: DictConfig, run: Run, checkpoint: str) -> None:
    """Let a tree go on from a checkpoint of a run, or from its newest."""
    with open_dict(tree):
        tree.resume = checkpoint
    if OmegaConf.select(tree, "model.weights") and run.last.is_file():  # which has them
        tree.model.weights = None


def unused_groups(tree: DictConfig, typed: str = "") -> list[str]:
    """The groups that neither the rest of a tree nor what is typed names, as a task of the user's own may not."""
    rest: Any = OmegaConf.to_container(tree, resolve=False)
    unused = []
    for name in ("scheduler", "optimizer", "model"):  # the first may name the next
        others = {key: node for key, node in rest.items() if key != name}
        if name in rest and not re.search(rf"\$\{{[^'\"]*\b{name}\b", f"{others}{typed}"):
            unused.append(name)
            rest = others
    return unused


def pin(tree: DictConfig, run: str) -> bool:
    """Store a run in the place of each `latest` in the groups of a tree; False where there is none."""
    count = 0
    for name, node in tree.items_ex(resolve=False):
        if OmegaConf.is_dict(node):
            text, found = re.subn("(?<=[:-] )latest$", json.dumps(run), OmegaConf.to_yaml(node), flags=re.M)
            if found:
                tree[name], count = OmegaConf.create(text), count + found
    return count > 0


def literal(value: Any) -> Any:
    """Each text in dicts and lists so that OmegaConf leaves it as it is."""
    if isinstance(value, list | tuple):
        return [literal(part) for part in value]
    if isinstance(value, dict):
        return {name: literal(part) for name, part in value.items()}
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def label(run_dir: str | None) -> str | None:
    """The name of a run, of a job of a sweep with the sweep's."""
    path = Path(run_dir or "")
    return (f"{path.parent.name}-{path.name}" if path.name.isdecimal() else path.name) or None


def mode(metric: str, monitor: str = "", mode_of_monitor: str | None = None) -> str | None:
    """`min` or `max`: the monitor's own where the metric is that one, else as the name says; None: unknown."""
    return mode_of_monitor if metric == monitor else direction(metric)


OmegaConf.register_new_resolver("direction", mode, replace=True)
OmegaConf.register_new_resolver("label", label, replace=True)
OmegaConf.register_new_resolver("in_project", paths.in_project, replace=True)
