"""Runs as rows of a table, best first: what differs, the mean and standard deviation over seeds and folds."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from leyden import UserError
from leyden.results import Run, number, part

REPEATS = ("seed", "data.fold")  # keys of runs that are one row
SILENT = (  # keys that change no number, or say only which run it is
    "facts", "run_dir", "log_dir", "data_dir", "name", "tags", "note", "resume", "rerun", "own", "trusted", "threads",
    "exact", "logger", "profiler", "sweep", "objective",
    "retry_failed", "max_failures", "stop_on_failure",
)  # fmt: skip
MISSING = "-"


@dataclass
class Row:
    """Runs that differ only in seed or fold; numbers are means over the finished ones."""

    runs: list[Run]
    settings: dict[str, Any]  # column -> value
    n: int = 0  # runs that are counted
    value: float | None = None
    std: float | None = None  # of a sample: n - 1
    epoch: float | None = None
    test: float | None = None
    test_std: float | None = None
    seconds: float | None = None
    rate: float | None = None  # training samples per second

    @property
    def status(self) -> str:
        counts = Counter(run.status for run in self.runs)
        return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {name}" for name, n in counts.items())


@dataclass
class Table:
    """The rows of one metric."""

    metric: str
    mode: str | None  # min or max; None: unknown, and the rows are in the order of the runs
    columns: list[str]  # keys that differ
    rows: list[Row] = field(default_factory=list)

    @property
    def test(self) -> str | None:
        """The metric's counterpart in the test."""
        return None if self.metric.startswith("test/") else f"test/{self.metric.rpartition('/')[2]}"


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
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.status != "finished"):
        settings = str([run.get(key, MISSING) for key in keys if key not in REPEATS])
        group, repeat = groups.setdefault(settings, []), [run.get(key) for key in REPEATS]
        while any([other.get(key) for key in REPEATS] == repeat for other in group):  # the same run once more
            group = groups.setdefault(settings := settings + "+", [])
        group.append(run)
    if any(len(group) > 1 for group in groups.values()):
        keys = [key for key in keys if key not in REPEATS]
    made = Table(metric, mode, [key.removesuffix("._target_") for key in keys])
    order = {id(run): place for place, run in enumerate(runs)}
    groups = {name: sorted(group, key=lambda run: order[id(run)]) for name, group in groups.items()}
    made.rows = [row(group, keys, made) for group in groups.values()]
    made.rows.sort(key=lambda row: (rank(row, mode), order[id(row.runs[0])]))
    return made


def row(runs: list[Run], keys: list[str], made: Table) -> Row:
    """The means over the finished runs that have a value; where none is finished, over those that have one."""
    valued = [(run, *run.value(made.metric)) for run in runs]
    valued = [entry for entry in valued if entry[1] is not None]
    counted = [entry for entry in valued if entry[0].status == "finished"] or valued
    settings = {key.removesuffix("._target_"): shown(runs[0], key) for key in keys}
    tests = [part(run.metrics, "test").get(made.test or "") for run, *_ in counted]
    whole = [run for run, *_ in counted] or runs
    value, std = spread(value for _, value, _ in counted)
    test, test_std = spread(map(number, tests))
    return Row(
        runs, settings, len(counted), value, std, spread(epoch for *_, epoch in counted)[0], test, test_std,
        *(spread(number(run.metrics.get(name)) for run in whole)[0] for name in ("seconds", "samples_per_second")),
    )  # fmt: skip


def spread(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation, divided by n - 1; of one value it has none."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    mean = sum(known) / len(known)
    if len(known) == 1 or mean - mean != 0:  # a NaN or an infinity among them
        return mean, None
    return mean, statistics.stdev(known)


def rank(row: Row, mode: str | None) -> tuple[bool, bool, float]:
    """Finished rows first, then by value if it is known which is better, those without one last."""
    lost = row.value is None or row.value != row.value
    finished = any(run.status == "finished" for run in row.runs)
    return not finished, lost, 0.0 if lost else (row.value or 0.0) * {"min": 1, "max": -1, None: 0}[mode]


# what differs


def differing(runs: list[Run]) -> list[str]:
    """Keys of which the runs have several values.

    Where the class differs, its own arguments do not say more: they count among runs of the same class, or when typed.
    """
    typed = {key for run in runs for key in run.overrides}
    keys = dict.fromkeys(key for run in runs for key in run.config if key.split(".")[0] not in SILENT)
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
