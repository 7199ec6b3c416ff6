"""The picture of a results table: learning curves of the best runs, and the metric against what differs."""

import math
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from leyden import UserError
from leyden.report.formats import setting, spread
from leyden.report.results import Run
from leyden.report.tables import Table

# Okabe and Ito (2008), which colour-blind readers tell apart; the markers do so in grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9")
MARKERS = "os^DvP"
COLUMNS = 4  # panels side by side


def draw(tables: list[Table], file: Path) -> None:
    """Write the picture; some rows of panels for each table.

    Raises:
        UserError: the file cannot be written, or its ending is no kind of picture.
    """
    panels: list[tuple[Table, Any]] = [(table, key) for table in tables for key in (None, *table.settings)]
    across = min(len(panels), COLUMNS)
    down = math.ceil(len(panels) / across)
    with matplotlib.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # which the font does not have, and shows as a box
        figure = Figure((4.2 * across, 3.1 * down), layout="constrained")
        for place, (table, key) in enumerate(panels, 1):
            axes = figure.add_subplot(down, across, place)
            against(axes, table, key) if key else curves(axes, table)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=150)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("(")[0].strip()
            raise UserError(f"The picture {file} cannot be written ({reason}); type --plot report.png.") from error


def curves(axes: Axes, table: Table) -> None:
    """The metric over the epochs, of the best rows: the mean and one standard deviation over seeds and folds."""
    metric = table.metric.replace("test/", "val/")  # the test is known at the end only
    looks = list(zip(COLOURS, MARKERS, strict=True))
    for row in table.results.index:
        curve = mean_curve(table.results.runs[row], metric)
        if not looks or curve.empty:
            continue
        colour, marker = looks.pop(0)
        every = max(1, len(curve) // 8)
        axes.plot(curve.index, curve["mean"], color=colour, marker=marker, markevery=every, label=named(table, row))
        axes.fill_between(
            curve.index, curve["mean"] - curve["std"], curve["mean"] + curve["std"], color=colour, alpha=0.15
        )
    title = "the best" if len(axes.lines) < len(table.results) else "learning curves"
    axes.set(xlabel="epoch", ylabel=literal(metric), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        axes.legend(fontsize=7)
    else:
        axes.text(0.5, 0.5, "no values", ha="center", transform=axes.transAxes)


def mean_curve(runs: list[Run], metric: str) -> pandas.DataFrame:
    """By epoch the mean and standard deviation over the runs that got as far; epochs without a number are left out."""
    points = pandas.DataFrame([point for run in runs for point in run.curve(metric)], columns=["epoch", "value"])
    points = points[points.value.abs() < math.inf]
    return points.groupby("epoch").value.agg(["mean", "std"]).fillna({"std": 0.0})


def named(table: Table, row: int) -> str:
    """What tells a row from the others, and its value."""
    result = table.results.loc[row]
    words = [f"{key.rpartition('.')[2]}={setting(value)}" for key, value in table.settings.loc[row].items()]
    text = " ".join(words) or result.runs[0].path.name
    count = f", n={result.n}" if result.n > 1 else ""
    return literal(f"{text[:60]}: {spread(result.value, result['std'], result.n)}{count}")


def literal(text: str) -> str:
    """A text that is no formula."""
    return text.replace("$", r"\$")


def against(axes: Axes, table: Table, key: str) -> None:
    """The value of each row against one of the settings, a number on its scale, anything else side by side."""
    rows = table.results[table.results.value.abs() < math.inf]
    places = list(table.settings[key][rows.index])
    axes.set(xlabel=literal(key), ylabel=literal(table.metric), title=literal(f"{table.metric} by {short(key)}"))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in places):
        if places and min(places) > 0 and max(places) / min(places) >= 10:
            axes.set_xscale("log")
    else:  # each text a place of its own
        places = [literal(setting(value)[:16]) for value in places]
    axes.errorbar(
        places, rows.value, rows["std"].fillna(0.0), color=COLOURS[0], linestyle="none", marker="o", alpha=0.6
    )
    if places and table.mode:
        axes.plot(places[:1], rows.value[:1], color=COLOURS[1], marker="*", markersize=12, zorder=4, label="the best")
        axes.legend(fontsize=7)


def short(key: str) -> str:
    return key.rpartition(".")[2]
