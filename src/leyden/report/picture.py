"""The picture of tables: learning curves, and the metric against what differs."""

import math
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import concat

from leyden import UserError
from leyden.report.results import logged, setting
from leyden.report.tables import Table, mean_and_std

ACROSS, BEST = 4, 6  # panels side by side; rows with curves


def draw(tables: list[Table], file: Path) -> None:
    """Write a picture: for each table a panel of curves, and one for each setting. UserError if it cannot."""
    panels = [(table, key) for table in tables for key in ("", *table.settings)]
    across, down = min(len(panels), ACROSS), math.ceil(len(panels) / ACROSS)
    with style.context(["tableau-colorblind10", {"axes.grid": True, "grid.alpha": 0.3, "text.parse_math": False}]):
        figure = Figure((4.2 * across, 3.1 * down), layout="constrained")
        for place, (table, key) in enumerate(panels, 1):
            axes = figure.add_subplot(down, across, place)
            against(axes, table, key) if key else learning_curves(axes, table)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=150)
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be written ({error}); type --plot report.png.") from error


def learning_curves(axes: Axes, table: Table) -> None:
    """The metric of the best rows over the epochs."""
    metric = table.metric.replace("test/", "val/")  # a test has no curve
    for _, row in table.rows[:BEST].iterrows():
        name = " ".join(f"{key.rpartition('.')[2]}={setting(row[key])}" for key in table.settings) or row.run
        points = concat([logged(run).reindex(columns=["epoch", metric]) for run in row.runs])
        means = points.dropna().groupby("epoch")[metric].mean()
        axes.plot(means.index + 1, means, label=f"{name[:60]}: {mean_and_std(row.value, row['std'], row.n)}")
    axes.set(xlabel="epoch", ylabel=metric, title="learning curves")
    axes.legend(fontsize=7)


def against(axes: Axes, table: Table, key: str) -> None:
    """The value of each row against one setting."""
    rows = table.rows[table.rows.value.abs() < math.inf]
    places = rows[key].tolist()
    if not all(type(place) in (int, float) for place in places):
        places = [setting(place)[:16] for place in places]
    elif places and 0 < 10 * min(places) <= max(places):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")  # no formula
    axes.errorbar(places, rows.value, rows["std"].fillna(0.0), linestyle="none", marker="o", alpha=0.6)
    axes.set(xlabel=key, ylabel=table.metric, title=f"{table.metric} by {key.rpartition('.')[2]}")
