"""Runs as rows of a table, best first: what differs, the mean and standard deviation over seeds and folds."""

from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pandas

from leyden import UserError
from leyden.report.results import Run, number, part
from leyden.run.keys import role

REPEATS = ("seed", "data.fold")  # keys of runs that are one row
MEASURED = ["value", "epoch", "test", "seconds", "samples_per_second"]
MISSING = "-"


@dataclass
class Table:
    """The rows of one metric: two frames with the same index."""

    metric: str
    mode: str | None  # min or max; None: unknown, and the rows are in the order of the runs
    settings: pandas.DataFrame  # a column for each key that differs
    results: pandas.DataFrame  # value std epoch test test_std n seconds samples_per_second status runs

    @property
    def test(self) -> str | None:
        return test_of(self.metric)


def test_of(metric: str) -> str | None:
    """A metric's counterpart in the test."""
    return None if metric.startswith("test/") else f"test/{metric.rpartition('/')[2]}"


def tables(runs: list[Run], metric: str | None = None) -> list[Table]:
    """A table for each objective among the runs, the most frequent first, or the one of a metric.

    Raises:
        UserError: no run knows the metric.
    """
    if metric is None:
        names = [name for name, _ in Counter(run.objective for run in runs).most_common()]
        return [table([run for run in runs if run.objective == name], name) for name in names]
    known = list(dict.fromkeys(name for run in runs for name in run.names()))
    if metric not in known and not any(run.curve(metric) for run in runs):
        near = get_close_matches(metric, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none yet'}."
        raise UserError(f"No run has the metric {metric}; {hint}")
    return [table(runs, metric)]


def table(runs: list[Run], metric: str) -> Table:
    mode = next(filter(None, (run.mode(metric) for run in runs)), None)
    keys = differing(runs)
    frame = pandas.DataFrame({"run": runs, "status": [run.status for run in runs]})
    frame["finished"] = frame.status == "finished"
    frame["setting"] = [str([run.get(key, MISSING) for key in keys if key not in REPEATS]) for run in runs]
    frame["repeat"] = [str([run.get(key) for key in REPEATS]) for run in runs]
    ordered = frame.sort_values("finished", ascending=False, kind="stable")
    frame["copy"] = ordered.groupby(["setting", "repeat"]).cumcount()  # the same run once more is a row of its own
    frame["row"] = frame.groupby(["setting", "copy"], sort=False).ngroup()
    if frame.row.duplicated().any():
        keys = [key for key in keys if key not in REPEATS]
    rows = frame.groupby("row")
    results = aggregate(frame, runs, metric)
    results["status"] = rows.status.agg(summary)
    results["runs"] = rows.run.agg(list)
    order = ranked(results.assign(finished=rows.finished.any()), mode)
    first = [results.runs[row][0] for row in order]
    columns = {key.removesuffix("._target_"): [shown(run, key) for run in first] for key in keys}
    settings = pandas.DataFrame(columns, index=range(len(first)), dtype=object)
    return Table(metric, mode, settings, results.loc[order].reset_index(drop=True))


def aggregate(frame: pandas.DataFrame, runs: list[Run], metric: str) -> pandas.DataFrame:
    """Means and sample standard deviations (n - 1) over the runs of a row that have a value.

    The finished ones count, where there are any. A mean of which one run has no number is NaN.
    """
    numbers = [measured(run, metric) for run in runs]
    values = pandas.DataFrame(numbers, columns=MEASURED, dtype=float)
    has_value = pandas.Series([value is not None for value, *_ in numbers])
    done = has_value & frame.finished
    counted = done | (has_value & ~done.groupby(frame.row).transform("any"))
    groups = values[counted].groupby(frame.row[counted])
    n = groups.size()
    means = groups.mean().where(groups.count().eq(n, axis=0))
    found = means.assign(std=groups.value.std(), test_std=groups.test.std()).reindex(range(frame.row.max() + 1))
    found["n"] = n.reindex(found.index, fill_value=0)
    return found[["value", "std", "epoch", "test", "test_std", "n", "seconds", "samples_per_second"]]


def measured(run: Run, metric: str) -> list[float | None]:
    """What MEASURED names."""
    test = part(run.metrics, "test").get(test_of(metric) or "")
    rest = [test, *(run.metrics.get(name) for name in ("seconds", "samples_per_second"))]
    return [*run.value(metric), *map(number, rest)]


def summary(statuses: pandas.Series) -> str:
    counts = Counter(statuses)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


def ranked(results: pandas.DataFrame, mode: str | None) -> list[int]:
    """Finished rows first, then by value if it is known which is better, those without one last."""
    keys = {"late": ~results.finished, "value": results.value * {"min": 1, "max": -1, None: 0}[mode]}
    frame = pandas.DataFrame({**keys, "empty": results.n == 0, "place": results.index})
    return frame.sort_values(list(frame)).place.tolist()


# what differs


def differing(runs: list[Run]) -> list[str]:
    """Keys of which the runs have several values.

    Where the class differs, its own arguments do not say more: they count among runs of the same class, or when typed.
    """
    typed = {key for run in runs for key in run.overrides}
    keys = dict.fromkeys(key for run in runs for key in run.config if role(key) != "label")
    targets = sorted({key for key in keys if key.endswith("_target_")})
    found = []
    for key in keys:
        values = [(run.config.get(key, MISSING), run) for run in runs]
        if all(value == values[0][0] for value, _ in values):  # a quick look at what stands there
            continue
        above = [t for t in targets if t != key and key.startswith(t.removesuffix("_target_"))]
        kinds: dict[str, set[str]] = {}
        for _, run in values:
            kind = "" if key in typed else str([run.config.get(target) for target in above])
            kinds.setdefault(kind, set()).add(str(run.get(key, MISSING)))
        if any(len(kind) > 1 for kind in kinds.values()):
            found.append(key)
    return found


def shown(run: Run, key: str) -> Any:
    """A value; of a class the option that was typed for it, or else its name as options are written."""
    value, node = run.get(key, MISSING), key.removesuffix("._target_")
    if node == key or not isinstance(value, str):
        return value
    return run.overrides.get(node.replace(".", "/"), value.rpartition(".")[2].lower())
