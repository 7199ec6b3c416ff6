"""Runs as a table, best first: what differs, and the mean and standard deviation over seeds and folds."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas
from tabulate import tabulate

from leyden import UserError
from leyden.report.results import FACTS, MISSING, curves, setting
from leyden.run.keys import direction, role
from leyden.run.run import Status

REPEATS = ("seed", "data.fold")  # keys of runs that are one row
NAMES = 10  # of runs, in one line
STYLES = {"text": "outline", "markdown": "github", "latex": "latex_booktabs"}  # of tabulate


@dataclass
class Table:
    """The rows of one metric."""

    metric: str
    mode: str | None  # min or max; None: unknown, and the rows are in the order of the runs
    settings: list[str]  # the columns of what differs
    rows: pandas.DataFrame  # settings value std epoch test test_std n seconds samples_per_second status runs


def tables(runs: pandas.DataFrame, metric: str | None = None) -> list[Table]:
    """A table for each objective, the most frequent first, or the one of a metric; UserError if no run knows it."""
    if metric is None:
        return [table(runs[runs.objective == name], name) for name in runs.objective.value_counts().index]
    if metric not in runs:
        known = [name for name in runs if "/" in name]
        near = get_close_matches(metric, known, 1) or known
        raise UserError(f"No run has the metric {metric}; what there is: {', '.join(near) or 'none yet'}.")
    return [table(runs, metric)]


def table(runs: pandas.DataFrame, metric: str) -> Table:
    """Rank the rows; runs that differ in the seed or the fold alone are one, the same run once more is another."""
    same = [str(monitor).rpartition("/")[2] == metric.rpartition("/")[2] for monitor in runs.monitor]
    typed = [mode for mode in runs[same].get("checkpoint.mode", []) if mode in ("min", "max")]
    mode, keys = (typed or [direction(metric)])[0], differing(runs)  # as the runs say, else by the name
    best = [best_of(run, metric, mode) for _, run in runs.iterrows()]
    runs = runs.assign(value=[value for value, _ in best], epoch=[epoch for _, epoch in best])
    test = None if metric.startswith("test/") else runs.get(test_of(metric))
    runs = runs.assign(test=test, finished=runs.status == Status.FINISHED, place=range(len(runs)))
    runs = runs.sort_values("finished", ascending=False, kind="stable")
    texts = runs[keys].map(str)
    copy = texts.groupby(keys).cumcount() if keys else runs.place
    settings = [key for key in keys if key not in REPEATS]
    groups = [group.sort_values("place") for _, group in runs.groupby([*(texts[key] for key in settings), copy])]
    if len(groups) < len(runs):
        keys = settings
    rows = pandas.DataFrame([{key: group[key].iloc[0] for key in keys} | aggregate(group) for group in groups])
    for key in classes(runs, keys):
        rows[key] = [setting(value).rpartition(".")[2] for value in rows[key]]
    rows["rank"] = rows.value * {"min": 1, "max": -1, None: 0}[mode]
    rows = rows.sort_values(["finished", "rank", "place"], ascending=[False, True, True], ignore_index=True)
    return Table(metric, mode, keys, rows.drop(columns=["finished", "rank", "place"]))


def best_of(run: pandas.Series, metric: str, mode: str | None) -> tuple[float | None, float | None]:
    """The value of a metric and its epoch: of the best weights if they know it, else the best, or the last one."""
    if metric.startswith("test/") or (metric in (run.monitor, run.objective) and run.best_epoch):
        return run.get(metric), run.best_epoch
    values = curve(run.path, metric)
    if values.empty:
        return None, None
    epoch = values.idxmin() if mode == "min" else values.idxmax() if mode == "max" else values.index[-1]
    return values[epoch], epoch


def curve(directory: Path | str, metric: str) -> pandas.Series:
    """The last number of a metric in each epoch, by epochs from 1."""
    logged = curves(directory).reindex(columns=["epoch", metric])
    return logged.groupby(logged.epoch + 1)[metric].last().dropna()


def aggregate(group: pandas.DataFrame) -> dict[str, Any]:
    """The row of some runs: mean and sample standard deviation (n - 1) of the finished ones, where there are any.

    A mean of which one has no number is none.
    """
    counted = group[group.finished] if group.finished.any() else group[group.value.notna()]
    numbers = counted[["value", "epoch", "test", "seconds", "samples_per_second"]].astype(float)
    mean, std = numbers.mean(skipna=False), numbers.where(numbers.abs() < math.inf).std(skipna=False)
    statuses = group.status.value_counts()
    status = ", ".join(f"{n} {status}" if len(statuses) > 1 else status for status, n in statuses.items())
    row = {"value": mean.value, "std": std.value, "epoch": mean.epoch, "test": mean.test, "test_std": std.test}
    row |= {"n": len(counted), "seconds": mean.seconds, "samples_per_second": mean.samples_per_second}
    row |= {"status": status, "runs": list(map(str, group.path))}
    return row | {"finished": group.finished.any(), "place": group.place.min()}


def differing(runs: pandas.DataFrame) -> list[str]:
    """Keys of which the runs have several values.

    Where the class differs, its own arguments do not say more: they count among runs of the same class, or when typed.
    """
    typed = {text.lstrip("+~").partition("=")[0] for overrides in runs.overrides for text in overrides}
    keys = [key for key in runs if key not in FACTS and "/" not in key and role(key) != "label"]
    texts = runs[keys].map(str)  # what is missing is a value, too
    keys = [key for key in keys if texts[key].nunique() > 1]
    above = {key: [name for name in classes(runs, keys) if key.startswith(f"{name}.")] for key in keys}
    return [key for key in keys if not above[key] or key in typed or texts.groupby(above[key])[key].nunique().max() > 1]


def classes(runs: pandas.DataFrame, keys: list[str]) -> list[str]:
    """Those of some keys that are classes: they have keys below them."""
    return [key for key in keys if any(name.startswith(f"{key}.") for name in runs)]


# what is printed


def written(made: list[Table], form: str) -> str:
    """Tables as text, markdown, latex, csv or json; the last two have all digits."""
    if form in STYLES:
        return "\n".join(titled(table, form) for table in made)
    whole = pandas.concat([table.rows.assign(metric=table.metric) for table in made], ignore_index=True)
    whole.insert(0, "metric", whole.pop("metric"))
    if form == "csv":
        return whole.assign(runs=whole.runs.map(" ".join)).to_csv(index=False)
    return whole.to_json(orient="records", indent=2, force_ascii=False, double_precision=15) + "\n"


def titled(table: Table, form: str) -> str:
    """A table, on the screen with a line above it."""
    content, title = cells(table), ""
    if form == "text":
        unknown = f"{table.metric}, not ranked: its name does not say which is better\n"
        title = f"best {table.metric} first ({table.mode})\n" if table.mode else unknown
    elif form == "markdown":
        content = content.map(lambda cell: cell.replace("|", "\\|"))
    sides = ["left" if name in ("run", "status", *table.settings) else "right" for name in content]
    return title + tabulate(content, "keys", STYLES[form], showindex=False, disable_numparse=True, colalign=sides)


def cells(table: Table) -> pandas.DataFrame:
    """The table as texts, without the columns that say nothing."""
    rows = table.rows
    folder = above([Path(run) for runs in rows.runs for run in runs])
    columns = {"run": [listed(map(Path, runs), folder) for runs in rows.runs]}
    columns |= {key: rows[key].map(setting) for key in table.settings}
    columns[table.metric] = list(map(mean_and_std, rows.value, rows["std"], rows.n))
    columns["epoch"] = rows.epoch.round(1).map(setting)
    if rows.test.notna().any():
        columns[test_of(table.metric)] = list(map(mean_and_std, rows.test, rows.test_std, rows.n))
    if (rows.n > 1).any():
        columns["n"] = rows.n.map(str)
    columns["seconds"] = rows.seconds.round(1).map(setting)
    columns["samples/s"] = rows.samples_per_second.round().map(setting)
    return pandas.DataFrame(columns | {"status": rows.status})


def test_of(metric: str) -> str:
    """The counterpart in the test of a metric."""
    return f"test/{metric.rpartition('/')[2]}"


def above(runs: Iterable[Path]) -> Path:
    """The folder that all runs have in common."""
    return Path(os.path.commonpath([run.parent for run in runs]))


def listed(runs: Iterable[Path], folder: Path) -> str:
    """The first ten runs, from a folder above them, and how many there are besides."""
    names = [run.relative_to(folder).as_posix() for run in runs]
    return ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES:,} more" if len(names) > NAMES else "")


def mean_and_std(mean: float, std: float, n: int) -> str:
    """Four decimals, or four digits where those would show none or too many; NaN of no run is no value."""
    if n == 0:
        return MISSING
    kind = ".4f" if mean == 0 or 1e-2 <= abs(mean) < 1e4 else ".4g"
    return f"{mean:{kind}}" if pandas.isna(std) else f"{mean:{kind}} ± {std:{kind}}"
