import math
import random
import statistics
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec

import pytest
import torch

from leyden import UserError
from leyden.data.table import Table, codes, number
from leyden.run import configs
from leyden.run.run import Run
from leyden.tasks.preprocess import Encode

CITIES = ["Bern", "Rome", "Turku"]


def rows(score=False):
    """Rows of a line number, an age with gaps, a city with gaps, a group that is a number, and what is predicted."""
    draw, found = random.Random(0), [["id", "age", "city", "group", "label"]]
    for line in range(100):
        age, city = draw.uniform(20, 80), draw.choice(CITIES)
        shown = ("" if draw.random() < 0.2 else f"{age:.2f}", "" if draw.random() < 0.2 else city)
        label = f"{age + 10 * len(city):.3f}" if score else "old" if age > 50 else "young"
        found.append([line, *shown, draw.randrange(3), label])
    return found


@pytest.fixture
def table(tmp_path):
    """Write rows, or text, to a CSV file and open it."""

    def make(found, mark=",", encoding="utf-8", **options):
        path = tmp_path / "people.csv"
        text = found if isinstance(found, str) else "".join(mark.join(map(str, row)) + "\r\n" for row in found)
        path.write_text(text, encoding, newline="")
        return Table(**{"path": str(path), "target": "label"} | options)

    return make


def inputs(data, split):
    return Encode(data.facts["columns"])(data.splits[split].x)


def test_columns_are_told_apart_or_named(table):
    columns = table(rows()).facts["columns"]
    assert [column["name"] for column in columns if "fill" in column] == ["id", "age", "group"]
    assert columns[2] == {"name": "city", "categories": ["", *CITIES]}
    facts = table(rows(), ignore=["id"], categorical=["group"], numeric=["age"]).facts
    assert facts["columns"][2] == {"name": "group", "categories": ["0", "1", "2"]} and facts["shape"] == [1 + 4 + 3]


def test_every_cell_comes_back_from_the_input(table):
    """Property: what the model gets of a row is the row, but for the fill of a missing number."""
    data, found = table(rows()), rows()[1:]
    fill = data.facts["columns"][1]["fill"]
    for split in ("train", "val", "test"):
        for line, age, *city, group in inputs(data, split).tolist():
            source = found[int(line)]
            assert age == pytest.approx(float(source[1]) if source[1] else fill)
            assert city == [float(source[2] == name) for name in ["", *CITIES]] and group == source[3]


def test_statistics_are_of_the_training_rows(table):
    data = table(rows(), val_fraction=0.4)
    known = [age for age in data.splits["train"].x[:, 1].tolist() if age == age]
    assert data.facts["columns"][1]["fill"] == statistics.median_low(known)
    age = inputs(data, "train")[:, 1].tolist()
    assert data.facts["mean"][1] == pytest.approx(statistics.mean(age))
    assert data.facts["std"][1] == pytest.approx(statistics.pstdev(age))
    changed = rows()
    for line in [int(line) for split in ("val", "test") for line in data.splits[split].x[:, 0]]:
        changed[line + 1][1:3] = ["1e6", "Atlantis"]
    assert table(changed, val_fraction=0.4).facts == data.facts


def test_a_category_that_training_lacks_counts_as_missing(table):
    found = rows()
    held = int(table(found).splits["test"].x[0, 0])
    found[held + 1][2] = "Atlantis"
    data = table(found)
    assert inputs(data, "test")[data.splits["test"].x[:, 0] == held][0, 2:-1].tolist() == [1, 0, 0, 0]


def test_what_is_missing_may_be_written_in_other_words(table):
    found = [[("-" if index % 2 else "?") if cell == "" else cell for cell in row] for index, row in enumerate(rows())]
    assert table(found, missing=["?", "-"]).facts == table(rows()).facts


@pytest.mark.parametrize(
    ("mark", "words", "numbers", "decimal"),
    [
        (";", "1,5 -2,25 3", [1.5, -2.25, 3], ","),
        ("\t", "1.234,5 1.234.567,0 7", [1234.5, 1234567, 7], ","),
        (";", "1,234.5 1,234,567.0 7", [1234.5, 1234567, 7], None),
        (";", "1.234.567 2.345 1.000", [1234567, 2345, 1000], ","),
        (";", "1.25 2.345 1e-3", [1.25, 2.345, 0.001], None),
        (",", '"1,234" "1,234,567.5" 7', [1234, 1234567.5, 7], None),
        (",", "1'234.5 1\u00a0234 7", [1234.5, 1234, 7], None),
    ],
)
def test_numbers_in_other_spellings(table, mark, words, numbers, decimal):
    lines = ["x", "label"], *((word, place % 2) for place, word in enumerate(words.split(" ") * 10))
    data = table(lines, mark, val_fraction=0, test_fraction=0)
    assert data.facts["columns"][0].get("decimal") == decimal
    assert data.splits["train"].x[:3, 0].tolist() == pytest.approx(numbers)
    column = data.facts["columns"][0]
    assert codes(column, [word.strip('"') for word in words.split(" ")]) == numbers  # as a prediction reads them


def test_a_comma_in_a_file_of_commas_is_no_decimal_one(table):
    assert table('x,label\n"1,5",a\n"2,5",b\n' * 1 + '"1,5",a\n' * 9).facts["columns"][0]["categories"]


def test_null_is_missing_by_default(configure, tmp_path):
    import hydra

    (tmp_path / "t.csv").write_text("x,label\n" + "".join(f"{n},a\n{w},b\n" for n in range(9) for w in ("NULL", "NA")))
    cfg = configure("data=table", f"data.path={tmp_path}/t.csv", "data.target=label")
    assert "fill" in hydra.utils.instantiate(cfg.data).facts["columns"][0]


@pytest.mark.parametrize("values", [range(1_700_000_000, 1_700_000_100), [1e6 + n / 1000 for n in range(100)]])
def test_large_numbers_stay_apart(table, values, caplog):
    """Property: what a float32 cannot tell apart is less a common offset in x, and float64 in y."""
    found = [["x", "label"], *((f"{value!r}", f"{value!r}") for value in values)]
    data = table(found, target_kind="numbers", val_fraction=0, test_fraction=0)
    samples, column = data.splits["train"], data.facts["columns"][0]
    assert samples.x.dtype == torch.float32 and samples.y.dtype == torch.float64 and samples.y.tolist() == [*values]
    again = samples.x[:, 0].double() + column["offset"]
    assert (again - torch.tensor(values, dtype=torch.float64)).abs().max() < 1e-5
    assert codes(column, [f"{values[7]!r}"]) == pytest.approx([float(samples.x[7, 0])], abs=1e-5)
    assert "are equal" not in caplog.text


def test_what_no_float_tells_apart_is_said(table, caplog):
    found = [["x", "label"], *((10**17 + n, n % 2) for n in range(100))]
    with caplog.at_level("INFO"):
        table(found, val_fraction=0, test_fraction=0).facts  # noqa: B018
    assert "x of" in caplog.text and "of 100 different values are equal" in caplog.text


def test_one_class_is_refused_before_training(train):
    with pytest.raises(UserError, match="two or more"):
        train("data.num_classes=1")


def test_a_column_of_nothing_and_one_of_one_value_are_fine(table):
    data = table("empty,constant,label\n" + ",same,1\n,same,2\n" * 10)
    assert data.facts["columns"] == [{"name": "empty", "fill": 0.0}, {"name": "constant", "categories": ["same"]}]
    assert not inputs(data, "train").isnan().any()


def column_of(values):
    return [["x", "label"], *enumerate(values)]


@pytest.mark.parametrize("words", ["no yes", "2 9 10", "0.0 1.0", "1 a b"])
def test_classes(table, words):
    data = table(column_of(values := words.split()[::-1] * 10))
    assert data.facts["classes"] == words.split()
    for samples in data.splits.values():
        assert [data.classes[index] for index in samples.y] == [values[int(row)] for row in samples.x[:, 0]]


@pytest.mark.parametrize("values", [[0.5, 1, 2] * 10, range(21), [*range(20), 1e6]])
def test_numbers(table, values):
    samples = table(column_of(values)).splits["train"]
    assert samples.y.dtype == torch.float32
    assert samples.y.tolist() == [values[int(row)] for row in samples.x[:, 0]]


def test_the_kind_of_the_target_may_be_given(table):
    assert "target_mean" in table(column_of([1, 2, 3] * 10), target_kind="numbers").facts
    assert table(column_of(range(30)), target_kind="classes").facts["outputs"] == 30


@pytest.mark.parametrize("options", [{"mark": ";"}, {"mark": "\t"}, {"mark": "|", "separator": "|"}])
def test_dialects(table, options):
    assert table(rows(), **options).facts == table(rows()).facts


def test_quotes_and_empty_lines(table):
    facts = table('\ufeff"a,b";label\r\n\r\n" say ""hi""; ";1,5\r\n;x\n;\n', val_fraction=0, test_fraction=0).facts
    assert facts["columns"] == [{"name": "a,b", "categories": ["", 'say "hi";']}] and facts["classes"] == ["1,5", "x"]


@pytest.mark.parametrize(
    ("text", "options", "wrong"),
    [
        ("a,label\n", {}, "no rows"),
        ("", {}, "cannot be read"),
        ("a,b\n1,2\n", {}, "no column 'label'.*a, b"),
        ("a,label\n1,2\n", {"ignore": ["b"]}, "no column 'b'"),
        ("a,label\n1,2\n", {"ignore": ["a"]}, "Table has 0 samples but 1 targets"),
        ("", {"path": "none.csv"}, "none.csv cannot be read"),
        (
            "a,label\n1,2\n",
            {"target_kind": "class"},
            "must be auto, classes or numbers; got `class`",
        ),
        ("a,label\n1,2\n", {"separator": "tab"}, "no column .* see data.separator"),
        ("a,a,label\n1,2,3\n", {}, "name twice"),
        ("a,label\n1,2\n\n1,2,3\n", {}, "Expected 2 fields in line 4, saw 3"),
        ('a,label\n1,2\n"x\ny",1\n3\n', {}, "Line 5 .* fewer cells"),
        ("a,label\n1,x\n2,NA\n", {"missing": ["NA"]}, "Line 3 .*has no label"),
        ("a,label\n1,x\nold,y\n", {"numeric": ["a"]}, r"Column a .*'old' in line 3.*data.categorical=\[a\]"),
        ("a,label\n1,x\n2,x\nold,y\n", {}, r"Column a .*'old' in line 4.*data.categorical=\[a\]"),
        ("a,label\n1,1.5\n2,2.5\n3,?\n", {}, r"Column label .*'\?' in line 4"),
        ("a,label\n1,x\n2,y\n", {"target_kind": "numbers"}, "Column label .*'x' in line 2"),
        ("a,label\n\xff,x\n", {"encoding": "latin-1"}, "cannot be read .*utf-8"),
        ('a,label\n"1,x\n', {}, "cannot be read"),
    ],
)
def test_a_file_that_makes_no_table(table, text, options, wrong):
    with pytest.raises(UserError, match=wrong):
        table(text, **options).facts  # noqa: B018


def test_cells_of_new_rows():
    assert [number("1"), number("-2.5e3")] == [1, -2500]
    assert all(map(math.isnan, map(number, ["x", "", "nan", "inf", "1e39"])))
    assert codes({"name": "a", "categories": ["", "x"]}, ["x", "", "new"]) == [1, 0, 0]
    assert str(codes({"name": "a", "categories": ["x"]}, ["x", "", "new"])) == "[0.0, nan, nan]"
    assert str(codes({"name": "a", "fill": 3.0}, ["1.5", ""])) == "[1.5, nan]"


def test_a_table_trains_and_keeps_its_encoding(table, configure, tmp_path):
    from leyden.resume import checkpoints
    from leyden.run import build
    from train import train

    path, run = table(rows(score=True)).path, tmp_path / "run"
    keys = ["task=regression", "model=mlp", "trainer.max_epochs=20", "data.batch_size=8"]
    train(configure("data=table", f"data.path={path}", "data.target=label", *keys))
    assert Run(run).metrics["test"]["test/r2"] > 0.3
    task, state = build.task(configs.stored(run)).eval(), checkpoints.read(run / "checkpoints/best.ckpt")["state_dict"]
    assert {f"preprocess.encode.{name}" for name in ("source", "category", "fill")} <= set(state)
    task.load_state_dict(state)
    assert task(torch.full((2, 4), torch.nan)).isfinite().all()


@pytest.mark.parametrize("ending", ["csv.gz", "csv.zip", "csv.bz2", "csv.xz", "tsv"])
@pytest.mark.parametrize(("separator", "encoding"), [("|", "latin-1"), (None, "utf-16"), (r"\s*::\s*", "cp1252")])
def test_what_pandas_reads(table, tmp_path, ending, separator, encoding):
    import pandas as pd

    found = [[str(cell).replace("Rome", "Zürich") for cell in row] for row in rows()]
    expected = table(found, missing=[""]).facts
    mark = {"|": "|", None: ";"}.get(separator, "::")
    text = "".join(mark.join(row) + "\n" for row in found)
    path = tmp_path / f"other.{ending}"
    with pd.io.common.get_handle(path, "wb", compression="infer", is_text=False) as file:
        file.handle.write(text.encode(encoding))
    assert Table(str(path), "label", separator=separator, encoding=encoding, missing=[""]).facts == expected


def test_parquet(table, tmp_path):
    import pandas as pd

    path = tmp_path / "people.parquet"
    path.touch()
    if not find_spec("pyarrow"):
        with pytest.raises(UserError, match="pip install pyarrow"):
            table(rows(), path=str(path)).facts  # noqa: B018
        return
    frame = pd.DataFrame(rows()[1:], columns=rows()[0]).astype({"id": "int32", "group": "int8"})
    frame["age"] = pd.to_numeric(frame["age"])  # NaN where there is no text
    frame.replace({"city": {"": None}}).to_parquet(path)
    assert table(rows(), path=str(path)).facts == table(rows()).facts


@pytest.mark.parametrize("form", ["{:%Y-%m-%d %H:%M:%S}", "{:%Y-%m-%dT%H:%M:%S+00:00}", "{:%Y-%m-%d}"])
def test_dates_and_times_are_seconds(table, form):
    start = datetime(2024, 3, 30, tzinfo=UTC)
    days = [start + timedelta(days=n) for n in range(2000)]
    lines = ["when", "label"], *([form.format(day), n % 2] for n, day in enumerate(days)), ["", 1]
    data = table(lines, val_fraction=0, test_fraction=0)
    column, x = data.facts["columns"][0], data.splits["train"].x[:, 0]
    assert column["decimal"] == "date" and x[-1].isnan()
    assert x[:2].tolist() == [day.timestamp() - column["offset"] for day in days[:2]]
    assert codes(column, [form.format(days[7])]) == [float(x[7])]
    with pytest.raises(UserError, match=r"Column when .*'soon' in line 2002"):
        table([*lines[:-1], ["soon", 1]]).facts  # noqa: B018


def test_texts_of_a_file_are_texts(table):
    cell = "${oc.env:HOME}"
    data = table([[cell, "label"], *([cell if n % 2 else "${missing}", cell if n % 3 else "b"] for n in range(30))])
    assert data.facts["columns"] == [{"name": cell, "categories": ["${missing}", cell]}]
    assert data.facts["classes"] == [cell, "b"]


def test_lines_are_counted_through_quotes_and_empty_lines(table):
    text = '\ufeff"a\nb",label\n\n"x\n\ny",1\n,\n"1 234",2\n5,\n'
    with pytest.raises(UserError, match=r"Line 9 of .* has no label"):
        table(text).facts  # noqa: B018
