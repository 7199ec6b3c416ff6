import csv
import random
import statistics

import pytest
import torch

from leyden import UserError
from leyden.data.table import Table, codes, number
from leyden.tasks.preprocess import Encode

CITIES = ["Bern", "Rome", "Turku"]


def rows(count=100, seed=0):
    """Rows of a line number, an age with gaps, a city with gaps, a group that is a number, and what is predicted."""
    draw = random.Random(seed)
    found = [["id", "age", "city", "group", "label", "score"]]
    for line in range(count):
        age, city = draw.uniform(20, 80), draw.choice(CITIES)
        shown = ("" if draw.random() < 0.2 else f"{age:.2f}", "" if draw.random() < 0.2 else city)
        found.append([line, *shown, draw.randrange(3), "old" if age > 50 else "young", f"{age + 10 * len(city):.3f}"])
    return found


@pytest.fixture
def table(tmp_path):
    """Write rows to a CSV file and open it."""

    def make(found, target="label", text=None, **options):
        path = tmp_path / "people.csv"
        if text is None:
            with open(path, "w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
                csv.writer(file, delimiter=options.pop("mark", ",")).writerows(found)
        else:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Table(path=str(path), target=target, **options)

    return make


def inputs(data, split):
    facts = data.facts
    return Encode(facts["columns"])(data.splits[split].x)


def test_columns_are_told_apart(table):
    columns = {column["name"]: column for column in table(rows(), ignore=["score"]).facts["columns"]}
    assert list(columns) == ["id", "age", "city", "group"]
    assert [name for name, column in columns.items() if "categories" in column] == ["city"]
    assert columns["city"]["categories"] == ["", *CITIES]


def test_columns_may_be_named(table):
    facts = table(rows(), ignore=["score", "id"], categorical=["group"], numeric=["age"]).facts
    assert facts["columns"][2] == {"name": "group", "categories": ["0", "1", "2"]}
    assert facts["shape"] == [1 + 4 + 3] and len(facts["mean"]) == len(facts["std"]) == 8


def test_every_cell_comes_back_from_the_input(table):
    """Property: what the model gets of a row is the row, but for the fill of a missing number."""
    data, found = table(rows(), ignore=["score"], val_fraction=0.2, test_fraction=0.2), rows()[1:]
    fill = data.facts["columns"][1]["fill"]
    seen = set()
    for split in ("train", "val", "test"):
        for row in inputs(data, split).tolist():
            line, age, *city, group = row
            source = found[int(line)]
            seen.add(int(line))
            assert age == pytest.approx(float(source[1]) if source[1] else fill)
            assert city == [float(source[2] == name) for name in ["", *CITIES]]
            assert group == source[3]
    assert seen == set(range(100))


def test_statistics_are_of_the_training_rows(table):
    data = table(rows(), ignore=["score"], val_fraction=0.4)
    train = data.splits["train"].x[:, 1]
    known = sorted(train[~train.isnan()].tolist())
    assert data.facts["columns"][1]["fill"] == statistics.median_low(known)
    age = inputs(data, "train")[:, 1].double()
    assert data.facts["mean"][1] == pytest.approx(age.mean().item())
    assert data.facts["std"][1] == pytest.approx(age.std(correction=0).item())
    before = data.facts
    changed = rows()
    held = [int(line) for split in ("val", "test") for line in data.splits[split].x[:, 0]]
    for line in held:
        changed[line + 1][1:3] = ["1e6", "Atlantis"]
    after = table(changed, ignore=["score"], val_fraction=0.4).facts
    assert after == before


@pytest.mark.parametrize("gaps", [True, False])
def test_a_category_that_training_lacks_counts_as_missing(table, gaps):
    found = rows()
    if not gaps:
        found = [[*row[:2], row[2] or "Rome", *row[3:]] for row in found]
    held = int(table(found, ignore=["score"]).splits["test"].x[0, 0])
    found[held + 1][2] = "Atlantis"
    data = table(found, ignore=["score"])
    city = inputs(data, "test")[data.splits["test"].x[:, 0] == held][0, 2:-1]
    assert city.tolist() == ([1, 0, 0, 0] if gaps else [0, 0, 0])


def test_what_is_missing_may_be_written_in_other_words(table):
    found = [[("-" if index % 2 else "?") if cell == "" else cell for cell in row] for index, row in enumerate(rows())]
    plain, other = table(rows(), ignore=["score"]).facts, table(found, ignore=["score"], missing=["?", "-"]).facts
    assert plain == other


def test_a_column_of_nothing_and_one_of_one_value_are_fine(table):
    found = [[*row, "", "same"] if index else [*row, "empty", "constant"] for index, row in enumerate(rows())]
    data = table(found)
    assert data.facts["columns"][-2:] == [{"name": "empty", "fill": 0.0}, {"name": "constant", "categories": ["same"]}]
    assert not inputs(data, "train").isnan().any()


# the target


def column_of(values):
    return [["x", "label"], *([index, value] for index, value in enumerate(values))]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["yes", "no"] * 10, ["no", "yes"]),
        ([10, 9, 2] * 10, ["2", "9", "10"]),
        (["1.0", "0.0"] * 10, ["0.0", "1.0"]),
        (["a", "1", "b"] * 10, ["1", "a", "b"]),
    ],
)
def test_classes(table, values, classes):
    data = table(column_of(values))
    assert data.facts["classes"] == classes
    for samples in data.splits.values():
        assert [classes[index] for index in samples.y] == [str(values[int(row)]) for row in samples.x[:, 0]]


@pytest.mark.parametrize("values", [[0.5, 1, 2] * 10, range(21), [*range(20), 1e6]])
def test_numbers(table, values):
    data = table(column_of(values))
    assert data.facts["outputs"] == 1 and "classes" not in data.facts
    samples = data.splits["train"]
    assert samples.y.dtype == torch.float32
    assert samples.y.tolist() == [values[int(row)] for row in samples.x[:, 0]]


def test_the_kind_of_the_target_may_be_given(table):
    assert "target_mean" in table(column_of([1, 2, 3] * 10), target_kind="numbers").facts
    assert table(column_of(range(30)), target_kind="classes").facts["outputs"] == 30


# the file


@pytest.mark.parametrize(
    "options", [{"mark": ";"}, {"mark": "\t"}, {"encoding": "utf-8-sig"}, {"mark": "|", "separator": "|"}]
)
def test_dialects(table, options):
    assert table(rows(), ignore=["score"], **options).facts == table(rows(), ignore=["score"]).facts


def test_quotes_and_empty_lines(table):
    text = '\ufeff"a,b";label\r\n\r\n" say ""hi""; ";1,5\r\n;x\n;;\n'.replace(";;", ";")
    data = table(None, text=text, val_fraction=0, test_fraction=0)
    assert data.facts["columns"] == [{"name": "a,b", "categories": ["", 'say "hi";']}]
    assert data.facts["classes"] == ["1,5", "x"]


@pytest.mark.parametrize(
    ("text", "options", "wrong"),
    [
        ("a,label\n", {}, "no rows"),
        ("", {}, "no rows"),
        ("a,b\n1,2\n", {}, "no column 'label'.*a, b"),
        ("a,label\n1,2\n", {"target": None}, "columns a, label.*data.target"),
        ("a,a,label\n1,2,3\n", {}, "more than one column 'a'"),
        ("a,label\n1,2\n\n1,2,3\n", {}, "Line 4 .*3 cells.*2"),
        ("a,label\n1,2\n1\n", {}, "Line 3 .*1 cells"),
        ("a,label\n1,x\n2,\n", {}, "Line 3 .*has no label"),
        ("a,label\n1,x\n2,NA\n", {"missing": ["NA"]}, "Line 3 .*has no label"),
        ("a,label\n1,x\nold,y\n", {"numeric": ["a"]}, "Column a .*'old' in line 3.*data.numeric"),
        ("a,label\n1,x\n2,x\nold,y\n", {}, r"Column a .*'old' in line 4.*data.categorical=\[a\]"),
        ("a,label\n1,1.5\n2,2.5\n3,?\n", {}, "Column label .*'?' in line 4.*data.target_kind=classes"),
        ("a,label\n1,x\n2,y\n", {"target_kind": "numbers"}, "Column label .*'x' in line 2"),
        ("a,label\n1,x\n2,y\n", {"ignore": ["a"]}, "no columns to predict"),
        ("a,label\n1,x\n2,y\n", {"ignore": ["b"]}, "no column 'b'.*data.ignore"),
        ("a,label\n1,x\n2,y\n", {"categorical": ["label"]}, "no column 'label' to predict from.*data.categorical"),
        (",label\n1,x\n2,y\n", {}, "without a name"),
        (b"a,label\n\xff,x\n", {}, "UTF-8"),
        ('a,label\n"1,x\n', {}, "no CSV file"),
    ],
)
def test_a_file_that_makes_no_table(table, text, options, wrong):
    with pytest.raises(UserError, match=wrong):
        table(None, text=text, **options).facts  # noqa: B018


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"path": None}, "data.path="),
        ({"path": "none.csv"}, "none.csv cannot be read"),
        ({"path": "."}, "cannot be read"),
        ({"path": "a", "target_kind": "class"}, "auto, classes or numbers"),
        ({"path": "a", "separator": "tab"}, "one character"),
    ],
)
def test_arguments_that_make_no_table(options, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=wrong):
        Table(target="y", **options).facts  # noqa: B018


def test_too_many_categories_are_named(table):
    found = [["name", "label"], *([f"n{index}", index % 2] for index in range(1001))]
    with pytest.raises(UserError, match=r"1001 different texts.*data.ignore=\[name\]"):
        table(found).facts  # noqa: B018


def test_a_number_is_what_a_float_can_hold():
    assert [number(text) for text in ("1", "-2.5e3", "x", "", "nan", "inf", "1_000", "1e39")] == [1, -2500] + [None] * 6


def test_codes_of_one_new_row():
    assert codes({"name": "a", "categories": ["", "x"]}, ["x", "", "new"]) == [1, 0, 0]
    assert str(codes({"name": "a", "categories": ["x"]}, ["x", "", "new"])) == "[0.0, nan, nan]"
    assert str(codes({"name": "a", "fill": 3.0}, ["1.5", ""])) == "[1.5, nan]"


# in a run


@pytest.mark.parametrize(
    ("keys", "metric"),
    [(["data.target=label", "data.ignore=[score]"], "acc"), (["data.target=score", "task=regression"], "r2")],
)
def test_a_table_trains_and_keeps_its_encoding(table, configure, tmp_path, monkeypatch, keys, metric):
    from leyden import build, checkpoints, runs
    from train import train

    monkeypatch.chdir(table(rows(300)).path.parent)
    model = ["model=mlp", "model.hidden=[32]", "trainer.max_epochs=10", "data.batch_size=16", "optimizer.lr=1e-2"]
    cfg = configure("data=table", "data.path=people.csv", *model, *keys)
    train(cfg)
    run = tmp_path / "run"
    assert runs.read_json(run / "metrics.json")["test"][f"test/{metric}"] > 0.6
    stored = runs.stored(run)
    task = build.task(stored)
    state = checkpoints.read(run / "checkpoints" / "best.ckpt")["state_dict"]
    assert {f"preprocess.encode.{name}" for name in ("source", "category", "fill")} <= set(state)
    task.load_state_dict(state)
    task.eval()
    assert task(torch.full((2, len(stored.facts["columns"])), torch.nan)).isfinite().all()
