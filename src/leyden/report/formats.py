"""A results table as text, Markdown, LaTeX, CSV and JSON."""

import io
import os
from pathlib import Path
from typing import Any

import pandas

from leyden.report.results import Run
from leyden.report.tables import MISSING, Table

MOST = 10  # names in one line


# cells


def cells(table: Table) -> pandas.DataFrame:
    """The table as texts, without the columns that say nothing."""
    results, settings = table.results, table.settings
    folder = above([run for runs in results.runs for run in runs])
    columns = {"run": [names(runs, folder) for runs in results.runs]}
    columns |= {key: [setting(value) for value in settings[key]] for key in settings}
    columns[table.metric] = list(map(spread, results.value, results["std"], results.n))
    columns["epoch"] = [plain(epoch, 1) for epoch in results.epoch]
    if table.test and results.test.notna().any():
        columns[table.test] = list(map(spread, results.test, results.test_std))
    if (results.runs.map(len) > 1).any():
        columns["n"] = list(map(str, results.n))
    columns["seconds"] = [plain(value, 1) for value in results.seconds]
    columns["samples/s"] = [plain(value, 0) for value in results.samples_per_second]
    return pandas.DataFrame(columns | {"status": results.status})


def above(runs: list[Run]) -> Path:
    """The folder that all runs have in common."""
    paths = [run.path.absolute().parent for run in runs]
    return Path(os.path.commonpath(paths)) if len({path.anchor for path in paths}) == 1 else Path()


def names(runs: list[Run], folder: Path) -> str:
    """Their paths from a folder that is above them all; of many the first."""
    return listed([label(run, folder) for run in runs])


def label(run: Run, folder: Path) -> str:
    path = run.path.absolute()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def listed(words: list[str]) -> str:
    """The first ten, and how many there are besides."""
    more = len(words) - MOST
    return ", ".join(words[:MOST]) + (f" and {more:,} more" if more > 0 else "")


def setting(value: Any) -> str:
    """A value of a config as one types it."""
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ",".join(map(setting, value)) + "]"
    return " ".join(str(value).split())


def plain(value: float, digits: int) -> str:
    if pandas.isna(value):
        return MISSING
    return f"{value:.{digits}f}" if value % 1 else f"{value:.0f}"


def spread(mean: float, std: float = float("nan"), n: int = 0) -> str:
    """Four decimals, or four digits where those would show none or too many; both numbers alike.

    A NaN is a value that is NaN where there are n of them, else there is none.
    """
    if pandas.isna(mean) and not n:
        return MISSING
    kind = ".4f" if mean == 0 or 1e-2 <= abs(mean) < 1e4 else ".4g"
    return format(mean, kind) if pandas.isna(std) or pandas.isna(mean) else f"{mean:{kind}} ± {std:{kind}}"


# tables


def text(table: Table, width: int | None, ascii: bool = False) -> str:
    """With lines, for the screen; `width` None: as wide as it is."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Lines

    shown = cells(table)
    ranked = f"best {table.metric} first ({table.mode})"
    unranked = f"{table.metric}, not ranked: the name does not say which is better"
    lines = Lines(title=ranked if table.mode else unranked, title_justify="left")
    lines.box = box.ASCII if ascii else box.HEAVY_HEAD
    for name in shown:
        lines.add_column(str(name), justify="left" if is_text(name, table) else "right", overflow="fold")
    for row in shown.to_numpy():
        lines.add_row(*(cell.replace("±", "+-") if ascii else cell for cell in row))
    out = io.StringIO()
    Console(file=out, width=width or 10_000, markup=False, highlight=False, emoji=False).print(lines)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def is_text(column: Any, table: Table) -> bool:
    return column in ("run", "status", *table.settings)


def markdown(table: Table) -> str:
    shown = cells(table)
    lines = [list(shown), ["---"] * shown.shape[1], *shown.to_numpy()]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def latex(table: Table) -> str:
    """A tabular with the rules of booktabs."""
    shown = cells(table)
    kinds = "".join("l" if is_text(name, table) else "r" for name in shown)
    return "% \\usepackage{booktabs}\n" + shown.to_latex(index=False, escape=True, column_format=kinds)


def as_json(tables: list[Table]) -> str:
    """A record for each row, with all digits; what is not known, or is no number, is null."""
    frames = [records(table).assign(settings=table.settings.to_dict("records")) for table in tables]
    whole = pandas.concat(frames, ignore_index=True)
    text = whole.to_json(orient="records", indent=2, force_ascii=False, double_precision=15)
    return text.replace("\\/", "/") + "\n"


def as_csv(tables: list[Table]) -> str:
    """One table of all, with a column for each key that differs in one of them."""
    settings = pandas.concat([table.settings.map(setting) for table in tables], ignore_index=True)
    rest = pandas.concat([records(table) for table in tables], ignore_index=True)
    rest["runs"] = rest.runs.map(" ".join)
    return pandas.concat([settings, rest], axis=1).to_csv(index=False, lineterminator="\n")


def records(table: Table) -> pandas.DataFrame:
    """The results with their metric and the paths of the runs."""
    frame = table.results.assign(runs=[[str(run.path) for run in runs] for runs in table.results.runs])
    frame.insert(0, "metric", table.metric)
    return frame
