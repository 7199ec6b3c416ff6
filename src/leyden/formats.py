"""A results table as text, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from leyden.results import Run
from leyden.tables import MISSING, Row, Table

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$",
    ">": r"$>$", "|": r"$|$", **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip


# cells


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows as texts, without the columns that say nothing."""
    folder = above(table)
    columns: list[tuple[str, Callable[[Row], str]]] = [("run", lambda row: names(row.runs, folder))]
    columns += [(name, partial(lambda name, row: setting(row.settings[name]), name)) for name in table.columns]
    columns += [(table.metric, lambda row: spread(row.value, row.std)), ("epoch", lambda row: plain(row.epoch, 1))]
    if table.test and any(row.test is not None for row in table.rows):
        columns.append((table.test, lambda row: spread(row.test, row.test_std)))
    if any(len(row.runs) > 1 for row in table.rows):
        columns.append(("n", lambda row: str(row.n)))
    columns += [
        ("seconds", lambda row: plain(row.seconds, 1)),
        ("samples/s", lambda row: plain(row.rate, 0)),
        ("status", lambda row: row.status),
    ]
    return [name for name, _ in columns], [[cell(row) for _, cell in columns] for row in table.rows]


def above(table: Table) -> Path:
    """The folder that all runs have in common."""
    paths = [run.path.absolute().parent for row in table.rows for run in row.runs]
    return Path(os.path.commonpath(paths)) if len({path.anchor for path in paths}) == 1 else Path()


def names(runs: list[Run], folder: Path) -> str:
    """Their paths from a folder; of consecutive jobs of a sweep the first and the last."""
    paths = [label(run.path, folder) for run in runs]
    numbers = [int(path) for path in paths if path.isdecimal()]
    if len(numbers) == len(paths) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{paths[0]}-{paths[-1]}"
    return ", ".join(paths)


def label(path: Path, folder: Path) -> str:
    path = path.absolute()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def setting(value: Any) -> str:
    """A value of a config as one types it."""
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ",".join(map(setting, value)) + "]"
    return " ".join(str(value).split())


def plain(value: float | None, digits: int) -> str:
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if value % 1 else f"{value:.0f}"


def spread(mean: float | None, std: float | None) -> str:
    """Four decimals, or four digits where those would show none or too many; both numbers alike."""
    if mean is None:
        return MISSING
    kind = ".4f" if mean == 0 or 1e-2 <= abs(mean) < 1e4 else ".4g"
    return format(mean, kind) if std is None else f"{mean:{kind}} ± {std:{kind}}"


# tables


def text(table: Table, width: int | None, ascii: bool = False) -> str:
    """With lines, for the screen; `width` None: as wide as it is."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Lines

    header, rows = cells(table)
    ranked = f"best {table.metric} first ({table.mode})"
    unranked = f"{table.metric}, not ranked: the name does not say which is better"
    lines = Lines(title=ranked if table.mode else unranked, title_justify="left")
    lines.box = box.ASCII if ascii else box.HEAVY_HEAD
    words = {"run", "status", *table.columns}
    for name in header:
        lines.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for row in rows:
        lines.add_row(*(cell.replace("±", "+-") if ascii else cell for cell in row))
    out = io.StringIO()
    Console(file=out, width=width or 10_000, markup=False, highlight=False, emoji=False).print(lines)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def markdown(table: Table) -> str:
    header, rows = cells(table)
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def latex(table: Table) -> str:
    """A tabular with the rules of booktabs."""
    header, rows = cells(table)
    words = {"run", "status", *table.columns}
    lines = [" & ".join(map(escaped, line)) + r" \\" for line in [header, *rows]]
    kinds = "".join("l" if name in words else "r" for name in header)
    body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{kinds}}}  % \usepackage{{booktabs}}", *body, r"\end{tabular}", ""])


def escaped(cell: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in cell)


def records(table: Table) -> list[dict[str, Any]]:
    """The rows with all their digits; what is not known, or is no number, is None."""
    found = []
    for row in table.rows:
        numbers = {"value": row.value, "std": row.std, "epoch": row.epoch, "test": row.test, "test_std": row.test_std,
                   "seconds": row.seconds, "samples_per_second": row.rate}  # fmt: skip
        numbers = {
            name: None if value is None or not math.isfinite(value) else value for name, value in numbers.items()
        }
        head = {"metric": table.metric, "settings": row.settings, "n": row.n, "status": row.status}
        found.append(head | numbers | {"runs": [str(run.path) for run in row.runs]})
    return found


def as_json(tables: list[Table]) -> str:
    return json.dumps([record for table in tables for record in records(table)], indent=2, ensure_ascii=False) + "\n"


def as_csv(tables: list[Table]) -> str:
    """One table of all, with a column for each key that differs in one of them."""
    keys = list(dict.fromkeys(key for table in tables for key in table.columns))
    rows = [record for table in tables for record in records(table)]
    rest = [name for name in rows[0] if name not in ("settings", "metric")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keys, "metric", *rest])
    for row in rows:
        settings = [setting(row["settings"][key]) if key in row["settings"] else "" for key in keys]
        row["runs"] = " ".join(row["runs"])
        writer.writerow([*settings, row["metric"], *(row[name] for name in rest)])
    return out.getvalue()
