import csv
import io
import json
import math

import pytest

from leyden.report import formats
from leyden.report.results import Run, read
from leyden.report.tables import table, tables
from synthetic import write


@pytest.fixture
def made(tmp_path):
    runs = [read(write(tmp_path / str(n), 0.9 + 0.001 * n, {"seed": n, "optimizer.lr": 1e-3})) for n in range(3)]
    odd = {"optimizer.lr": 0.1, "model.hidden": [3], "data.name": "10%_of & #1 {x} ^2 ~ \\n | ±"}
    return table([*runs, read(write(tmp_path / "größe", None, odd, status="failed"))], "val/acc")


def test_every_form_has_every_row_and_the_same_header(made):
    header, rows = list(formats.cells(made)), formats.cells(made).to_numpy().tolist()
    numbers = ["val/acc", "epoch", "test/acc", "n", "seconds", "samples/s", "status"]
    assert header == ["run", "model.hidden", "optimizer.lr", "data.name", *numbers]
    assert rows[0][:6] == ["0, 1, 2", "[8,8]", "0.001", "-", "0.9010 ± 0.0010", "2"] and rows[1][0] == "größe"
    text = formats.text(made, None)
    assert all(cell in text for row in rows for cell in row) and "[bold" not in text
    assert len(formats.markdown(made).splitlines()) == 4 and "\\|" in formats.markdown(made)


def test_a_narrow_terminal_loses_nothing(made):
    folded = formats.text(made, 60)
    assert max(map(len, folded.splitlines())) <= 60
    plain = formats.text(made, None, ascii=True).replace("größe", "").replace("±", "", 1)
    assert plain.isascii() and "0.9010 +- 0.0010" in plain


def test_latex_escapes_what_tex_reads(made):
    text = formats.latex(made)
    assert r"10\%\_of \& \#1 \{x\} \textasciicircum 2 \textasciitilde \space \textbackslash n | ±" in text
    assert r"0.9010 ± 0.0010" in text and text.count(r"\\") == 3 and r"\midrule" in text
    columns = text.partition("{tabular}{")[2].partition("}")[0]
    assert all(line.replace(r"\&", "").count(" & ") == len(columns) - 1 for line in text.splitlines() if r"\\" in line)


def test_csv_and_json_have_all_digits_and_a_column_of_deviations(made):
    first, second = csv.DictReader(io.StringIO(formats.as_csv([made])))
    assert float(first["value"]) == pytest.approx(0.901) and float(first["std"]) == pytest.approx(0.001)
    assert first["optimizer.lr"] == "0.001" and first["n"] == "3" and len(first["runs"].split()) == 3
    assert second["value"] == "" and second["status"] == "failed"
    again = json.loads(formats.as_json([made]))
    assert again[0]["settings"]["model.hidden"] == [8, 8] and again[1]["std"] is None


def test_what_is_no_number_is_valid_json(tmp_path):
    run = read(write(tmp_path / "0", float("nan")))
    assert json.loads(formats.as_json(tables([run])), parse_constant=pytest.fail)[0]["value"] is None


def test_tables_of_two_objectives_are_one_csv(tmp_path):
    found = [read(write(tmp_path / "0", 0.5, {"objective": "val/mse"})), read(write(tmp_path / "1", 0.5))]
    rows = list(csv.DictReader(io.StringIO(formats.as_csv(tables(found)))))
    assert {row["metric"] for row in rows} == {"val/mse", "val/acc"}


def test_numbers_are_short_and_alike():
    assert formats.spread(0.98765, 0.00312) == "0.9877 ± 0.0031" and formats.spread(12345.6) == "1.235e+04"
    assert formats.spread(math.nan) == "-" and formats.spread(math.nan, n=1) == "nan"
    assert [formats.setting(v) for v in (None, True, 1e-5, [1, 0.5], "a  b", {})] == [
        "null", "true", "1e-05", "[1,0.5]", "a b", "{}",
    ]  # fmt: skip


def test_runs_are_named_from_the_folder_that_they_share(tmp_path):
    runs = [Run(tmp_path / name) for name in ("0", "1", "2", "7")]
    assert formats.names(runs, tmp_path) == "0, 1, 2, 7"
    assert formats.names(runs * 3, tmp_path) == "0, 1, 2, 7, 0, 1, 2, 7, 0, 1 and 2 more"
    assert formats.names([Run(tmp_path / "a" / "0")], tmp_path / "b") == str(tmp_path / "a" / "0")
