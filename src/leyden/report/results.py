"""Runs as a pandas frame: the status of each, the keys of its config, its metrics."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pandas import DataFrame, isna, read_csv

from leyden import UserError, listed, require
from leyden.run import paths
from leyden.run.keys import direction, role
from leyden.run.run import DONE, Run, Status, status_of

MISSING = "-"
# columns besides metrics and keys of the config
FACTS = ("run", "path", "status", "reason", "threads", "monitor", "best_epoch", "seconds", "samples_per_second")


def results(folder: Path | str, metric: str | None = None) -> DataFrame:
    """`leyden.results`: what `read_all` says; with a metric the best run first. UserError where there is none."""
    runs = read_all([folder], paths.logs_folder())
    if metric:
        found, mode = judged(runs, metric)
        runs[metric] = found.value
        runs = runs.sort_values(metric, ascending=mode == "min", ignore_index=True) if mode else runs
    return runs.infer_objects()


def curves(run: Path | str) -> DataFrame:
    """`leyden.curves`: the metrics.csv of what `run=` takes."""
    return logged(paths.find(str(run), paths.logs_folder()).directory)


def read_all(places: Iterable[Path | str], logs: Path) -> DataFrame:
    """The runs in folders and below, each once; a folder may be one of the project, or a name=. UserError without any.

    Columns are FACTS, keys of the config but for references, and metrics: the objective's best value, others' last.
    """
    folders: dict[Path, None] = {}
    for place in places:
        near = Path(place).expanduser(), paths.in_project(place), logs / "train" / place
        if not (found := [path for path in near if path.is_dir()]):
            raise UserError(f"{place} is no folder; type a run, or a folder of runs, as logs/train.")
        folders |= dict.fromkeys(run_folders(found[0]))
    if len(folders) > 1000:  # takes over 2 s
        print(f"reading {len(folders):,} runs", file=sys.stderr)
    rows = [row for row in map(read, folders) if row]
    if not rows:
        raise UserError(f"There is no run in {listed(places)}.")
    above = os.path.commonpath([row["path"].parent for row in rows])
    return DataFrame(rows, dtype=object).assign(run=[row["path"].relative_to(above).as_posix() for row in rows])


def run_folders(place: Path, depth: int = 4) -> Iterator[Path]:
    """The runs in a folder and below, 2 before 10."""
    if (place / "run.json").exists():
        yield place.resolve()
    elif depth and place.is_dir():
        for child in sorted(place.iterdir(), key=lambda path: (len(path.name), path.name)):
            yield from run_folders(child, depth - 1)


def read(directory: Path) -> dict[str, Any]:
    """The row of a run; empty for an evaluation, an export or a benchmark."""
    run = Run(directory)
    record, metrics = run.record, run.metrics
    row = load(run.config_file) or load(directory / ".hydra" / "config.yaml")  # of one that never began
    if "run" in row or "rounds" in row:
        return {}

    status, best = status_of(record), metrics.get("best", {})
    status = Status.UNKNOWN if status in DONE and not row else status
    objective = row.get("objective") or best.get("monitor")
    for split in ("train", "val", "test"):
        row |= {name: value for name, value in metrics.get(split, {}).items() if "/" in name}
    if best:
        row |= {objective: best.get("objective"), best["monitor"]: best["value"]}
    reason = "its files cannot be read" if status == Status.UNKNOWN else record.get("reason") or ""
    return row | {
        "path": directory,
        "status": str(status),
        "reason": " ".join(reason.split()),
        "objective": objective,
        "monitor": best.get("monitor", objective),
        "best_epoch": best["epoch"] + 1 if best else None,
        **{key: (record | metrics).get(key) for key in ("threads", "seconds", "samples_per_second")},
    }


def load(file: Path) -> dict[str, Any]:
    """Dotted key -> value of a YAML file; empty where it cannot be read."""
    try:
        sections = re.split(r"\n(?=[^\s-])", file.read_text(encoding="utf-8"))
        return {key: value for text in sections for key, value in section(text).items()}
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return {}


@lru_cache(10_000)
def section(text: str) -> dict[str, Any]:
    """The same of a top-level key; what many runs share is parsed once."""
    return flat(yaml.load(text, yaml.CSafeLoader) or {})


def flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, without references; a class is the value of its node."""
    dotted: dict[str, Any] = {}
    for name, child in node.items():
        key = prefix.removesuffix(".") if name == "_target_" and prefix else f"{prefix}{name}"
        if isinstance(child, dict) and child:
            dotted |= flat(child, f"{key}.")
        elif not str(child).startswith("${"):
            dotted[key] = child
    return dotted


def is_setting(column: str) -> bool:
    """Whether a column tells runs apart, as a key of the config."""
    return column not in FACTS and "/" not in column and role(column) != "label"


def judged(runs: DataFrame, metric: str) -> tuple[DataFrame, str | None]:
    """The runs with `value` and `epoch` of a metric; min, max or None. UserError where no run has it."""
    if metric not in {*runs, *runs.objective}:
        known = [name for name in runs if "/" in name]
        near = get_close_matches(metric, known, 1) or known
        raise UserError(f"No run has the metric {metric}; what there is: {listed(near) or 'none yet'}.")
    name = metric.rpartition("/")[2]
    same = runs[[str(monitor).rpartition("/")[2] == name for monitor in runs.monitor]]
    mode = next((mode for mode in same.get("checkpoint.mode", []) if mode in ("min", "max")), direction(metric))
    best = (runs.monitor == metric) | (runs.objective == metric) | metric.startswith("test/")
    return runs.assign(value=runs.get(metric), epoch=runs.best_epoch.where(best)), mode


def logged(directory: Path | str, **options: Any) -> DataFrame:
    """The metrics.csv of a run; without rows where it cannot be read."""
    try:
        return read_csv(Path(directory) / "metrics.csv", **options)
    except (OSError, ValueError):
        return DataFrame({"epoch": [], "step": []})


def where(runs: DataFrame, condition: str) -> DataFrame:
    """The runs with key=value or group=option; UserError where none has the key."""
    key, equals, text = condition.partition("=")
    group = key.replace(".", "/")
    named = (paths.CONF / group / f"{text}.yaml").is_file()
    good = bool(equals) and (named or key in runs)
    require(good, "--where", "a key of the runs and its value, as optimizer.lr=<value>", condition)
    values = list(runs.get(key, [MISSING] * len(runs)))
    for row, run in enumerate(map(Run, runs.path if named else ())):
        if not run.record.get("rerun"):  # which notes only what is new
            choices = load(run.directory / ".hydra" / "hydra.yaml")
            values[row] = choices.get(f"hydra.runtime.choices.{group}", values[row])
    return runs[[matches(value, text) for value in values]]


def matches(value: Any, text: str) -> bool:
    """Whether a value is what was typed, or a class of that name."""
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        name = str(value).rpartition(".")[2].lower()
        return setting(value) == text.replace(", ", ",") or name == text.replace("_", "").lower()


def setting(value: Any) -> str:
    """A value of a config as one types it."""
    if isinstance(value, float):
        return MISSING if isna(value) else f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
