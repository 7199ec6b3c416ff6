"""Runs as a table, best first: what differs, mean and deviation over seeds and folds."""

from dataclasses import dataclass

from pandas import DataFrame, concat, isna
from tabulate import tabulate

from leyden import listed
from leyden.report.results import MISSING, is_setting, judged, setting
from leyden.run.run import Status

REPEATS = ("seed", "data.fold")  # keys of one row
NUMBERS = ["value", "epoch", "test", "seconds", "samples_per_second"]  # of a row
STYLES = {"text": "outline", "markdown": "github", "latex": "latex_booktabs"}  # of tabulate


@dataclass
class Table:
    """The rows of one metric."""

    metric: str
    mode: str | None  # min, max, or None: they are not ranked
    settings: list[str]  # what differs
    rows: DataFrame  # run, settings, NUMBERS, std test_std n status runs


def tables(runs: DataFrame, metric: str | None = None) -> list[Table]:
    """A table for each objective, or of a metric; UserError where no run has it."""
    if metric:
        return [table(runs, metric)]
    return [table(runs[runs.objective == name], name) for name in runs.objective.value_counts().index]


def table(runs: DataFrame, metric: str) -> Table:
    """Rank the rows; runs that differ in the seed or the fold alone are one, the same run once more is another.

    A row has mean and deviation (n - 1) of its finished runs, or of all where none has finished, if all have numbers.
    """
    keys, (runs, mode) = differing(runs), judged(runs, metric)
    settings = [key for key in keys if key not in REPEATS]
    test = runs.get(test_of(metric))
    runs = runs.assign(test=test, finished=runs.status == Status.FINISHED, runs=runs.path.map(str))
    runs = runs.sort_values("finished", ascending=False, kind="stable")

    texts = runs[keys].map(str).assign(all="")
    texts["copy"] = texts.groupby(list(texts)).cumcount()
    runs["row"] = texts.groupby([*settings, "copy"], sort=False).ngroup()

    groups = runs.groupby("row")
    counted = runs[runs.finished | (~groups.finished.transform("any") & runs.value.notna())]
    numbers = counted[NUMBERS].astype(float).groupby(counted.row)
    whole = numbers.count().eq(numbers.size(), axis=0)
    means, deviations = numbers.mean().where(whole), numbers.std().where(whole)
    rows = groups.agg({"run": listed, "runs": list, "finished": "any"})
    rows["status"] = groups.status.unique().map(", ".join)
    rows = rows.join(means.assign(std=deviations.value, test_std=deviations.test, n=numbers.size()))
    rows["n"] = rows.n.fillna(0).astype(int)

    keys = settings if len(rows) < len(runs) else keys
    rows = rows.join(runs.drop_duplicates("row").set_index("row")[keys])
    for key in classes(runs, keys):
        rows[key] = [setting(value).rpartition(".")[2] for value in rows[key]]
    rows["rank"] = rows.value * {"min": 1, "max": -1, None: 0}[mode]
    rows = rows.sort_values(["finished", "rank"], ascending=[False, True], ignore_index=True)
    return Table(metric, mode, keys, rows[["run", *keys, *NUMBERS, "std", "test_std", "n", "status", "runs"]])


def differing(runs: DataFrame) -> list[str]:
    """Keys with several values; those of a class are compared among runs of that class."""
    texts = runs[list(filter(is_setting, runs))].map(str)
    keys = [key for key in texts if texts[key].nunique() > 1]
    above = {key: [name for name in classes(runs, keys) if key.startswith(f"{name}.")] for key in keys}
    return [key for key in keys if not above[key] or texts.groupby(above[key])[key].nunique().max() > 1]


def classes(runs: DataFrame, keys: list[str]) -> list[str]:
    """Keys that have keys below them."""
    return [key for key in keys if any(name.startswith(f"{key}.") for name in runs)]


def written(made: list[Table], form: str) -> str:
    """Tables as text, markdown, latex, csv or json."""
    if form not in STYLES:
        whole = concat({table.metric: table.rows for table in made}, names=["metric"]).reset_index("metric")
        if form == "csv":
            return whole.assign(runs=whole.runs.map(" ".join)).to_csv(index=False).rstrip("\n")
        return whole.to_json(orient="records", indent=2, force_ascii=False, double_precision=15)
    texts = []
    for table in made:
        content = cells(table)
        if form == "text":
            unranked = f"{table.metric}, not ranked: its name does not say which is better"
            texts.append(f"best {table.metric} first ({table.mode})" if table.mode else unranked)
        elif form == "markdown":
            content = content.map(lambda cell: cell.replace("|", "\\|"))
        texts.append(tabulate(content, "keys", STYLES[form], showindex=False, disable_numparse=True, stralign="right"))
    return "\n".join(texts)


def cells(table: Table) -> DataFrame:
    """The table as texts."""
    rows, test = table.rows, test_of(table.metric)
    columns = {"run": rows.run} | {key: rows[key].map(setting) for key in table.settings}
    columns[table.metric] = list(map(mean_and_std, rows.value, rows["std"], rows.n))
    columns["epoch"] = rows.epoch.round(1).map(setting)
    if rows.test.notna().any() and test != table.metric:
        columns[test] = list(map(mean_and_std, rows.test, rows.test_std, rows.n))
    columns["n"] = rows.n.map(str)
    columns["seconds"] = rows.seconds.round(1).map(setting)
    columns["samples/s"] = rows.samples_per_second.round().map(setting)
    return DataFrame(columns | {"status": rows.status})


def test_of(metric: str) -> str:
    """The same metric in the test."""
    return f"test/{metric.rpartition('/')[2]}"


def mean_and_std(mean: float, std: float, n: int) -> str:
    """Four decimals, or four digits."""
    if n == 0:
        return MISSING
    kind = ".4f" if mean == 0 or 1e-2 <= abs(mean) < 1e4 else ".4g"
    return f"{mean:{kind}}" if isna(std) else f"{mean:{kind}} ± {std:{kind}}"
