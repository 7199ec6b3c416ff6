"""Configs: those of runs, text that is no config, and the resolvers of the YAML."""

import json
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from leyden import UserError, said
from leyden.run import keys, paths
from leyden.run.run import Run

NEEDED = ("data", "task", "trainer")  # in the config of a run


def stored(directory: Path) -> DictConfig:
    """The tree that a run was built from, with its interpolations; UserError where it cannot be read."""
    run = Run(directory)
    try:
        tree: Any = OmegaConf.load(run.config_file)
        tree.threads = tree.get("threads") or run.record.get("threads")
    except Exception as error:  # of YAML or OmegaConf
        raise UserError(f"{run.config_file} cannot be read ({said(error)}).") from error

    for key in ("hydra", "defaults"):  # Hydra builds what they name
        tree.pop(key, None)
    return tree


def source(tree: DictConfig) -> Run | None:
    """The run that a config comes from; None: conf/ and the command line."""
    place = tree.get("run") or tree.get("resume") or tree.get("rerun")
    return paths.of(Path(place)) if place else None


def packages(tree: DictConfig) -> list[str]:
    """The user's packages that a config may build from; of conf/ all that it names."""
    named = [] if source(tree) else re.findall(r"_target_: (\w+)\.", OmegaConf.to_yaml(tree))
    return sorted({*(tree.get("own") or ()), *(tree.get("trusted") or ()), *named})


def continued(directory: Path, now: DictConfig) -> DictConfig:
    """The tree of a run that goes on by the command that started it, and may build what that may."""
    tree = stored(directory)
    tree.update({name: now[name] for name in ("log_dir", "exact", "hydra") if name in now})
    tree.update(own=[], trusted=packages(now))
    return tree


def set_resume_checkpoint(tree: DictConfig, run: Run, checkpoint: str) -> None:
    """Let a tree go on from a checkpoint, or a run's newest."""
    with open_dict(tree):
        tree.resume = checkpoint
    if OmegaConf.select(tree, "model.weights") and run.last.is_file():  # which has them
        tree.model.weights = None


def unused_groups(tree: DictConfig, typed: str = "") -> list[str]:
    """The groups that neither the rest of a tree nor what is typed names."""
    rest: Any = OmegaConf.to_container(tree)
    unused = []

    for name in ("scheduler", "optimizer", "model"):  # the first may name the next
        others = {key: node for key, node in rest.items() if key != name}
        if name in rest and not re.search(rf"\$\{{[^'\"]*\b{name}\b", f"{others}{typed}"):
            unused.append(name)
            rest = others
    return unused


def pin(tree: DictConfig, run: str) -> bool:
    """Store a run in the place of each `latest` in the groups of a tree; False: there is none."""
    found, place = re.compile("^( .*[:-]) latest$", re.M), json.dumps(run)
    text, count = found.subn(lambda line: f"{line[1]} {place}", OmegaConf.to_yaml(tree))
    tree.merge_with(OmegaConf.create(text))
    return count > 0


def literal(value: Any) -> Any:
    """Texts, also in dicts and lists, so that OmegaConf leaves them as they are."""
    if isinstance(value, list | tuple):
        return [literal(part) for part in value]
    if isinstance(value, dict):
        return {name: literal(part) for name, part in value.items()}
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def label(run_dir: str | None) -> str | None:
    """The name of a run; of a job of a sweep the sweep's, too."""
    path = Path(run_dir or "")
    return (f"{path.parent.name}-{path.name}" if path.name.isdecimal() else path.name) or None


def mode(metric: str, monitor: str = "", mode_of_monitor: str | None = None) -> str | None:
    """`min` or `max`: the monitor's where the metric is that one, else as its name says; None: unknown."""
    return mode_of_monitor if metric == monitor else keys.direction(metric)


OmegaConf.register_new_resolver("direction", mode, replace=True)
OmegaConf.register_new_resolver("label", label, replace=True)
OmegaConf.register_new_resolver("in_project", paths.in_project, replace=True)
