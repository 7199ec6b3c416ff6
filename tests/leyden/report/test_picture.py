import re

import pytest
from PIL import Image

from leyden import UserError
from leyden.report.picture import draw
from leyden.report.tables import tables
from synthetic import runs_in, write


def words(picture):
    """The texts of an SVG file, which matplotlib repeats in comments."""
    return set(re.findall("<!-- (.*?) -->", picture.read_text(encoding="utf-8")))


def test_the_picture_has_a_panel_for_the_curves_and_for_each_key(tmp_path):
    for n in range(12):
        lr, model, seed = (1e-3, 1e-2, 0.1)[n % 3], ("a.CNN", "a.MLP")[n // 3 % 2], n // 6
        keys = {"optimizer.lr": lr, "model._target_": model, "seed": seed}
        write(tmp_path / "runs" / str(n), 0.9 - n / 100, keys, curve=[0.1 * e for e in range(9)])
    draw(tables(runs_in(tmp_path / "runs")), tmp_path / "new" / "report.png")
    width, height = Image.open(tmp_path / "new" / "report.png").size
    assert width > 1500 and height > 300
    draw(tables(runs_in(tmp_path / "runs"), "test/acc"), tmp_path / "report.svg")
    assert {"learning curves", "test/acc by lr", "test/acc by model", "0.01"} <= words(tmp_path / "report.svg")
    assert not any("mathdefault" in word for word in words(tmp_path / "report.svg"))
    assert any(word.startswith("model=CNN lr=0.001: 0.8600 ± ") for word in words(tmp_path / "report.svg"))


def test_what_has_no_values_is_drawn_too(tmp_path):
    write(tmp_path / "0", None, status="failed")
    write(tmp_path / "1", float("nan"))
    write(tmp_path / "2", 0.5, {"objective": "val/x & $x$", "model.hidden": None})
    draw(tables(runs_in(tmp_path)), tmp_path / "report.svg")
    assert {"1: nan", "2: 0.5000", "val/x &amp; $x$"} <= words(tmp_path / "report.svg")


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    made = tables(runs_in(write(tmp_path / "0")))
    for file in (tmp_path / "report.nonsense", tmp_path / "0" / "run.json" / "x.png"):
        with pytest.raises(UserError, match="cannot be written"):
            draw(made, file)
