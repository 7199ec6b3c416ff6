"""The picture of a results table: learning curves of the best runs, and the metric against what differs."""

import math
import statistics
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from leyden import UserError
from leyden.formats import setting, spread
from leyden.tables import Row, Table

# Okabe and Ito (2008), of which the lightness differs too, so that they stay apart in grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#56B4E9")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 2, 1, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
BEST = len(COLOURS)  # curves
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def draw(tables: list[Table], file: Path) -> None:
    """Write the picture; a row of it for each table.

    Raises:
        UserError: the file cannot be written, or its ending is no kind of picture.
    """
    width = 2 + max(len(table.columns) for table in tables)
    columns = min(width, 4)
    heights = [math.ceil((2 + len(table.columns)) / columns) for table in tables]
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # which the font does not have, and shows as a box
        figure = Figure((3.4 * columns, 3.1 * sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid, top = figure.add_gridspec(sum(heights), columns), 0
        for table, height in zip(tables, heights, strict=True):
            curves(figure.add_subplot(grid[top, :2]), table)
            for number, column in enumerate(table.columns, 2):
                against(figure.add_subplot(grid[top + number // columns, number % columns]), table, column)
            top += height
        runs = sum(len(row.runs) for table in tables for row in table.rows)
        figure.suptitle(f"{runs} runs; star: the best, grey: the mean of what has this value", fontsize=8, color="0.3")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=150)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("(")[0].strip()
            raise UserError(f"The picture {file} cannot be written ({reason}); type --plot report.png.") from error


def curves(axes: Axes, table: Table) -> None:
    """The metric over the epochs, of the best rows: the mean and one standard deviation over seeds and folds."""
    metric = table.metric
    if metric.startswith("test/"):  # which is known at the end only
        metric = "val/" + metric.removeprefix("test/")
    drawn, furthest, late = 0, 0, []
    for row in table.rows:
        points = mean_curve(row, metric)
        if not points or drawn == BEST:
            continue
        epochs, means, stds = zip(*points, strict=True)
        look: dict[str, Any] = {"color": COLOURS[drawn], "linestyle": DASHES[drawn], "marker": MARKERS[drawn]}
        axes.plot(epochs, means, **look, markevery=max(1, len(epochs) // 8), markersize=4, label=named(row, table))
        if any(stds):
            low, high = ([m + sign * s for m, s in zip(means, stds, strict=True)] for sign in (-1, 1))
            axes.fill_between(epochs, low, high, color=COLOURS[drawn], alpha=0.15, linewidth=0)
        late += [mean for epoch, mean, _ in points if epoch > epochs[-1] / 2]
        furthest = max(furthest, epochs[-1])
        drawn += 1
    if furthest > 8 and min(late) < max(late):  # the first epochs may leave the frame, which they would fill
        margin = max(0.1 * (max(late) - min(late)), 2 * max(row.std or 0.0 for row in table.rows))
        axes.set(ylim=(min(late) - margin, max(late) + margin), xlim=(furthest * 0.3, furthest * 1.02))
    axes.set(xlabel="epoch", ylabel=literal(metric), title="the best" if len(table.rows) > drawn else "learning curves")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if drawn:
        axes.legend(fontsize=7)
    else:
        axes.text(0.5, 0.5, "no values", ha="center", transform=axes.transAxes)


def mean_curve(row: Row, metric: str) -> list[tuple[int, float, float]]:
    """Epoch, mean and standard deviation over the runs that got as far; epochs without a number are left out."""
    values: dict[int, list[float]] = {}
    for run in row.runs:
        for epoch, value in run.curve(metric):
            if math.isfinite(value):
                values.setdefault(epoch, []).append(value)
    return [
        (epoch, statistics.fmean(some), statistics.stdev(some) if len(some) > 1 else 0.0)
        for epoch, some in sorted(values.items())
    ]


def named(row: Row, table: Table) -> str:
    """What tells a row from the others, and its value."""
    words = [f"{key.rpartition('.')[2]}={setting(value)}" for key, value in row.settings.items()]
    count = f", n={row.n}" if row.n > 1 else ""
    text = " ".join(words) or row.runs[0].path.name
    return literal(f"{text if len(text) <= 60 else text[:57] + '...'}: {spread(row.value, row.std)}{count}")


def literal(text: str) -> str:
    """A text that is no formula."""
    return text.replace("$", r"\$")


def measurable(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def against(axes: Axes, table: Table, column: str) -> None:
    """The value of each row against one of the settings, a number on its scale, anything else side by side."""
    rows = [row for row in table.rows if row.value is not None and math.isfinite(row.value)]
    settings = [row.settings[column] for row in rows]
    axes.set(xlabel=literal(column), title=literal(f"{table.metric} by {column.rpartition('.')[2]}"))
    if numeric := bool(settings) and all(map(measurable, settings)):
        places: list[Any] = [float(value) for value in settings]
        if min(places) > 0 and max(places) / min(places) >= 10:
            axes.set_xscale("log")
    else:
        names = sorted(set(map(setting, settings)))
        places = [names.index(setting(value)) for value in settings]
        axes.set_xticks(range(len(names)), [literal(name if len(name) < 16 else name[:13] + "...") for name in names])
        axes.set_xlim(-0.5, max(len(names) - 0.5, 0.5))
    means: dict[Any, list[float]] = {}
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        best = row is rows[0]
        look: dict[str, Any] = (
            {"color": COLOURS[1], "marker": "*", "markersize": 12} if best else {"color": COLOURS[0], "alpha": 0.6}
        )
        beside = 0 if numeric or best else (number % 7 - 3) * 0.05  # so that equals do not hide each other
        common: dict[str, Any] = {"marker": "o", "markersize": 4, "elinewidth": 0.8, "capsize": 2, "zorder": 3 + best}
        axes.errorbar([place + beside], [row.value or 0.0], [row.std] if row.std else None, **common | look)
        means.setdefault(place, []).append(row.value or 0.0)
    line = [(place, statistics.fmean(some)) for place, some in sorted(means.items())]
    mark = (
        {"linestyle": "-"} if numeric else {"linestyle": "none", "marker": "_", "markersize": 30, "markeredgewidth": 2}
    )
    if len(line) > 1:
        axes.plot(*zip(*line, strict=True), color="0.5", zorder=2, **mark)
