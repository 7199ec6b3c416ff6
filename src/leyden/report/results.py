"""Runs as a pandas frame, a row for each: its status, the keys of its config, its metrics."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas
import yaml

from leyden import UserError, listed, require
from leyden.run import paths
from leyden.run.configs import NEEDED
from leyden.run.keys import direction, role
from leyden.run.run import Run, Status, status_of

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times faster
MISSING = "-"
# columns that are neither metrics nor keys of the config
FACTS = ["path", "status", "reason", "damaged", "monitor", "best_epoch", "seconds", "samples_per_second"]


def results(folder: Path | str, metric: str | None = None) -> pandas.DataFrame:
    """`leyden.results`: the rows of `read_all`; with a metric its best value of each run, and the best run first.

    Raises UserError where there is no run, or none has the metric.
    """
    runs = read_all([folder], paths.logs_folder())
    if metric:
        check_metric(runs, metric)
        mode = mode_of(runs, metric)
        runs[metric] = with_best(runs, metric, mode).value
        runs = runs.sort_values(metric, ascending=mode == "min", ignore_index=True) if mode else runs
    return runs.infer_objects()


def curves(run: Path | str) -> pandas.DataFrame:
    """`leyden.curves`: the metrics.csv of what `run=` takes, a row for each step or epoch. Raises UserError."""
    return logged(paths.find(str(run), paths.logs_folder()).directory)


def read_all(places: Iterable[Path | str], logs: Path) -> pandas.DataFrame:
    """The runs in folders and the folders below, each once; a folder may be typed from the project, or as a name=.

    Columns are FACTS; the keys of the config, with interpolations as they are written; and the metrics, such as
    `val/acc`: of the objective and of what was monitored the best value, of others the last. Raises UserError where
    there is no such folder, or no run.
    """
    folders: dict[Path, None] = {}
    for place in places:
        near = Path(place).expanduser(), paths.in_project(place), logs / "train" / place
        if not (found := [path for path in near if path.is_dir()]):
            raise UserError(f"{place} is no folder; type a run, a sweep, or a folder of them, such as logs/train.")
        folders |= dict.fromkeys(run_folders(found[0]))
    rows = [row for row in map(read, folders) if row]
    if not rows:
        raise UserError(f"There is no run in {listed(places)}; python src/train.py makes one.")
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
    record, metrics = run.record, run.metrics
    row = load(run.config_file) or load(directory / ".hydra" / "config.yaml")  # of a run that ended before it began
    if "run" in row or "rounds" in row:
        return {}
    status, whole, best = status_of(record), row.keys() >= set(NEEDED), metrics.get("best", {})
    good = {"run.json": record, "metrics.json": metrics or status != Status.FINISHED, "config.yaml": whole}
    objective = row.get("objective") or best.get("monitor")
    for split in ("train", "val", "test"):
        row |= {name: value for name, value in metrics.get(split, {}).items() if "/" in name}
    if best:
        row |= {objective: best.get("objective"), best["monitor"]: best["value"]}
    return row | {
        "path": directory,
        "status": str(status),
        "reason": " ".join(str(record.get("reason") or "").split()),
        "damaged": " and ".join(name for name, content in good.items() if not content),
        "objective": objective,
        "monitor": best.get("monitor", objective),
        "best_epoch": best["epoch"] + 1 if best else None,  # as people count
        "seconds": metrics.get("seconds"),
        "samples_per_second": metrics.get("samples_per_second"),
    }


def load(file: Path) -> dict[str, Any]:
    """Dotted key -> value of a YAML file; empty where it is none."""
    row: dict[str, Any] = {}
    with suppress(OSError, ValueError, yaml.YAMLError):
        for text in re.split(r"\n(?=[^\s-])", file.read_text(encoding="utf-8")):
            row |= section(text)
        return row
    return {}


@lru_cache(maxsize=10_000)
def section(text: str) -> dict[str, Any]:
    """Dotted key -> value of one key of a config with all below it; what many runs share is read once."""
    tree = yaml.load(text, LOADER)
    return flat(tree) if isinstance(tree, dict) else {}


def flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of nested dicts; a class is the value of its node, and lists are values."""
    dotted: dict[str, Any] = {}
    for name, child in node.items():
        key = prefix.removesuffix(".") if name == "_target_" and prefix else f"{prefix}{name}"
        dotted |= flat(child, f"{key}.") if isinstance(child, dict) and child else {key: child}
    return dotted


def is_setting(column: str) -> bool:
    """Whether a column is a key of the config, and not one that only labels a run."""
    return column not in FACTS and "/" not in column and role(column) != "label"


# metrics


def check_metric(runs: pandas.DataFrame, metric: str) -> None:
    """Raises UserError where no run has the metric."""
    if metric not in runs:
        known = [name for name in runs if "/" in name]
        near = get_close_matches(metric, known, 1) or known
        raise UserError(f"No run has the metric {metric}; what there is: {listed(near) or 'none yet'}.")


def mode_of(runs: pandas.DataFrame, metric: str) -> str | None:
    """min or max, as the runs say of what they monitor, else as its name does; None: unknown."""
    same = [str(monitor).rpartition("/")[2] == metric.rpartition("/")[2] for monitor in runs.monitor]
    typed = [mode for mode in runs[same].get("checkpoint.mode", []) if mode in ("min", "max")]
    return (typed or [direction(metric)])[0]


def with_best(runs: pandas.DataFrame, metric: str, mode: str | None) -> pandas.DataFrame:
    """The runs with `value` of a metric and its `epoch`: of the best weights, else the best, or the last."""
    judged = (runs.monitor == metric) | (runs.objective == metric)
    known = (judged & runs.best_epoch.notna()) | metric.startswith("test/")
    runs = runs.assign(value=runs[metric].where(known) if metric in runs else None, epoch=runs.best_epoch.where(known))
    for row, path in runs.path[~known].items():
        values = curve(path, metric)
        if not values.empty:
            epoch = values.idxmin() if mode == "min" else values.idxmax() if mode == "max" else values.index[-1]
            runs.at[row, "value"], runs.at[row, "epoch"] = values[epoch], epoch
    return runs


def curve(directory: Path | str, metric: str) -> pandas.Series:
    """The last number of a metric in each epoch, by epochs from 1."""
    points: dict[int, float] = {}
    with suppress(OSError, ValueError, csv.Error):  # it is not there, or no table
        for row in csv.DictReader((Path(directory) / "metrics.csv").read_text(encoding="utf-8").splitlines()):
            if not math.isnan(value := float(row.get(metric) or "nan")):
                points[int(row["epoch"]) + 1] = value
    return pandas.Series(points, dtype=float)  # ten times as fast as by pandas


def logged(directory: Path | str, **options: Any) -> pandas.DataFrame:
    """The metrics.csv of a run, with options of `pandas.read_csv`; without rows where it cannot be read."""
    try:
        return pandas.read_csv(Path(directory) / "metrics.csv", **options)
    except (OSError, ValueError):  # it is not there, or no table
        return pandas.DataFrame({"epoch": [], "step": []})


# values as they are typed


def where(runs: pandas.DataFrame, condition: str) -> pandas.DataFrame:
    """The runs that have key=value; UserError where no run has the key, or it is no condition."""
    key, equals, text = condition.partition("=")
    near, *_ = [*get_close_matches(key, list(runs), 1), "optimizer.lr"]
    require(bool(equals) and key in runs, "--where", f"a key of the runs and its value, as {near}=<value>", condition)
    return runs[[matches(value, text) for value in runs[key]]]


def matches(value: Any, text: str) -> bool:
    """Whether a value is what was typed: a number, a list, a text, or the name of a class or its file."""
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
