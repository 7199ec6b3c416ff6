import re

import pytest
from PIL import Image

from leyden import UserError
from leyden.report.picture import draw, mean_curve
from leyden.report.results import read
from leyden.report.tables import tables
from synthetic import write


def make(tmp_path):
    runs = []
    for n in range(12):
        lr, model, seed = (1e-3, 1e-2, 0.1)[n % 3], ("a.CNN", "a.MLP")[n // 3 % 2], n // 6
        keys = {"optimizer.lr": lr, "model._target_": model, "seed": seed}
        runs.append(read(write(tmp_path / str(n), 0.9 - n / 100, keys, curve=[0.1 * e for e in range(9)])))
    return runs


def words(picture):
    """The texts of an SVG file, which matplotlib repeats in comments."""
    return set(re.findall("<!-- (.*?) -->", picture.read_text(encoding="utf-8")))


def test_the_picture_has_a_panel_for_the_curves_and_for_each_key(tmp_path):
    draw(tables(make(tmp_path)), tmp_path / "new" / "report.png")
    width, height = Image.open(tmp_path / "new" / "report.png").size
    assert width > 1500 and height > 300
    draw(tables(make(tmp_path / "again"), "test/acc"), tmp_path / "report.svg")
    assert {"learning curves", "test/acc by lr", "test/acc by model"} <= words(tmp_path / "report.svg")


def test_what_has_no_values_is_drawn_too(tmp_path):
    runs = [read(write(tmp_path / "0", None, status="failed")), read(write(tmp_path / "1", float("nan"))),
            read(write(tmp_path / "2", 0.5, {"objective": "val/größe & $x$", "model.hidden": None}))]  # fmt: skip
    draw(tables(runs), tmp_path / "report.svg")
    assert {"1: nan", "2: 0.5000", "val/größe &amp; $x$"} <= words(tmp_path / "report.svg")


def test_a_curve_is_the_mean_of_those_that_got_so_far(tmp_path):
    runs = [read(write(tmp_path / str(n), 0.9, {"seed": n}, curve=c)) for n, c in enumerate(([0.2, 0.4], [0.4]))]
    curve = mean_curve(runs, "val/acc")
    assert curve.index.tolist() == [1, 2] and curve["mean"].tolist() == pytest.approx([0.3, 0.4])
    assert curve["std"].tolist() == pytest.approx([0.02**0.5, 0.0])


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    runs = tables([read(write(tmp_path / "0"))])
    for file in (tmp_path / "report.nonsense", tmp_path / "0" / "run.json" / "x.png"):
        with pytest.raises(UserError, match="cannot be written"):
            draw(runs, file)
