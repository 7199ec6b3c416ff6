"""Runs as a pandas frame, a row for each: its status, the keys of its config, its metrics."""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas
import yaml

from leyden import UserError, require
from leyden.run.configs import NEEDED
from leyden.run.run import Run, Status

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times faster
MISSING = "-"
# columns of `results` that are neither metrics nor keys of the config
FACTS = ["path", "status", "reason", "damaged", "monitor", "best_epoch", "seconds", "samples_per_second", "overrides"]


def results(*places: Path | str) -> pandas.DataFrame:
    """The runs in folders and the folders below, each once.

    Columns are FACTS; the keys of the config, with interpolations as they are written; and the metrics, such as
    `val/acc`: of the objective and of what was monitored the best value, of others the last.

    Raises:
        UserError: a place is no folder, or there is no run in any.
    """
    folders: dict[Path, None] = {}
    for place in map(Path, places):
        if not place.is_dir():
            raise UserError(f"{place} is no folder; type a run, a sweep, or a folder of them, such as logs/train.")
        folders |= dict.fromkeys(run_folders(place))
    rows = [row for folder in folders if (row := read(folder))]
    if not rows:
        raise UserError(f"There is no run in {' or '.join(map(str, places))}; python src/train.py makes one.")
    return pandas.DataFrame(rows, dtype=object)


def run_folders(place: Path, depth: int = 4) -> Iterator[Path]:
    """The run directories in a folder and those below it, 2 before 10."""
    if (place / "run.json").exists():
        yield place.resolve()
    elif depth and place.is_dir():
        for child in sorted(place.iterdir(), key=lambda path: (len(path.name), path.name)):
            yield from run_folders(child, depth - 1)


def read(directory: Path) -> dict[str, Any]:
    """The row of a run, whatever state it is in; empty for an evaluation, an export or a benchmark."""
    run = Run(directory)
    record, metrics, status = run.record, run.metrics, run.status
    tree = load(run.config_file) or load(directory / ".hydra" / "config.yaml")  # of a run that ended before it began
    if "run" in tree or "rounds" in tree:
        return {}
    row, best = flat(tree), metrics.get("best", {})
    objective = row.get("objective") or best.get("monitor")
    for split in ("train", "val", "test"):
        row |= {name: value for name, value in metrics.get(split, {}).items() if "/" in name}
    if best:
        row |= {objective: best.get("objective"), best["monitor"]: best["value"]}
    good = {"run.json": record, "metrics.json": metrics or status != Status.FINISHED}
    good["config.yaml"] = all(key in tree for key in NEEDED)
    row |= {"path": directory, "status": str(status), "reason": " ".join(str(record.get("reason") or "").split())}
    row |= {"damaged": " and ".join(name for name, content in good.items() if not content)}
    row |= {"objective": objective, "monitor": best.get("monitor", objective)}
    row |= {"best_epoch": best["epoch"] + 1 if best else None}  # as people count
    row |= {key: metrics.get(key) for key in ("seconds", "samples_per_second")}
    return row | {"overrides": record.get("overrides") or []}


def load(file: Path) -> dict[str, Any]:
    """The content of a YAML file; empty where it is none."""
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of nested dicts; a class is the value of its node, and lists are values."""
    dotted: dict[str, Any] = {}
    for name, child in node.items():
        key = prefix.removesuffix(".") if name == "_target_" and prefix else f"{prefix}{name}"
        dotted |= flat(child, f"{key}.") if isinstance(child, dict) and child else {key: child}
    return dotted


def curves(directory: Path | str, **options: Any) -> pandas.DataFrame:
    """The metrics.csv of a run, with options of `pandas.read_csv`; without rows where it cannot be read."""
    try:
        return pandas.read_csv(Path(directory) / "metrics.csv", **options)
    except (OSError, ValueError):  # it is not there, or no table
        return pandas.DataFrame({"epoch": [], "step": []})


def where(runs: pandas.DataFrame, condition: str) -> pandas.DataFrame:
    """The runs that have key=value, of any column; UserError where no run has the key, or it is no condition."""
    key, equals, text = condition.partition("=")
    near = get_close_matches(key, list(runs), 1) or ["optimizer.lr"]
    must = f"a key of the runs and its value, as {near[0]}=<value>"
    require(bool(equals) and key in runs, "--where", must, condition)
    return runs[[matches(value, text) for value in runs[key]]]


def matches(value: Any, text: str) -> bool:
    """Whether a value of a config is what was typed: a number, a list, a text, or the name of a class or its file."""
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        names = str(value).lower().split(".")[-2:] if "." in str(value) else []
        return setting(value) == text.replace(", ", ",") or text.lower().replace("_", "") in names


def setting(value: Any) -> str:
    """A value of a config as one types it."""
    if isinstance(value, float):
        return MISSING if pandas.isna(value) else f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
