"""Predictions from the command to the rows: what is read, what is written, and what is refused."""

import csv
import json
import re

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits

from leyden import runs
from test_export import CNN, MLP, RNN

DIGITS = (load_digits().images * 255 / 16).round().astype("uint8")


def rows(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of six pictures, one of them damaged, and of what is none."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "b ß").mkdir()
    (folder / ".hidden").mkdir()
    for number, place in enumerate(["a.png", "b ß/größe,1.PNG", "b ß/2.png", "c.png", "d.png", ".hidden/e.png"]):
        Image.fromarray(DIGITS[number]).save(folder / place)
    Image.fromarray(DIGITS[7].repeat(5, 0).repeat(5, 1)).save(folder / "large.png")
    (folder / "bad.png").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("no picture")
    return folder


NAMES = ["a.png", "bad.png", "c.png", "d.png", "large.png", "b ß/2.png", "b ß/größe,1.PNG"]


def test_a_folder_with_a_bad_file(trained, typed, pictures, tmp_path, logs):
    run, file = trained("cnn", *CNN), tmp_path / "new" / "o.csv"
    line = [f"run={run}", f"input={pictures}", f"output={file}", "top_k=3", "all_probs=true", "batch_size=2"]
    status, said, _ = typed("predict.py", *line)
    assert status == 0 and "7 rows" in said and "1 of 7 inputs" in said
    found = rows(file)
    assert [row["name"] for row in found] == NAMES and [path.name for path in file.parent.iterdir()] == ["o.csv"]
    assert list(found[0])[:5] == ["name", "prediction", "probability", "prediction_2", "probability_2"]
    for row in found:
        if row["name"] == "bad.png":
            assert "bad.png" in row["error"] and set(row.values()) == {"bad.png", row["error"], ""}
            continue
        probs = [float(row[f"prob_{digit}"]) for digit in range(10)]
        best = sorted(range(10), key=lambda digit: -probs[digit])
        assert sum(probs) == pytest.approx(1, abs=1e-4) and row["error"] == ""
        assert [row["prediction"], row["prediction_2"], row["prediction_3"]] == [str(digit) for digit in best[:3]]
        assert float(row["probability"]) == probs[best[0]]
    assert typed("predict.py", *line)[0] == 2
    status, _, sentence = typed("predict.py", *line, "overwrite=true", "strict=true")
    assert status == 1 and sentence == "strict=true: 1 of 7 inputs could not be read.\n" and len(rows(file)) == 7
    status, _, sentence = typed("predict.py", f"run={run}", f"input={pictures}/bad.png")
    assert status == 1 and "None of the inputs" in sentence
    assert not list(logs.rglob("rows.*"))  # what the ranks kept


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_file_gives_the_rows_of_its_run(trained, typed, pictures, tmp_path, ending):
    run, model = trained("cnn", *CNN), tmp_path / f"m.{ending}"
    assert typed("export.py", f"run={run}", f"format={ending}", f"output={model}")[0] == 0
    for source in (f"run={run}", f"model={model}"):
        line = [source, f"input={pictures}/**/*.png", f"output={tmp_path / source[:3]}.jsonl", "all_probs=true"]
        assert typed("predict.py", *line)[0] == 0
    own, other = rows(tmp_path / "run.jsonl"), rows(tmp_path / "mod.jsonl")
    assert [(row["name"], row["prediction"], row["error"]) for row in own] == [
        (row["name"], row["prediction"], row["error"]) for row in other
    ]
    for mine, its in zip(own, other, strict=True):
        assert mine["error"] or mine["prob_3"] == pytest.approx(its["prob_3"], abs=1e-5)


def test_the_data_of_the_run_and_its_own_test_result(trained, typed, tmp_path):
    run = trained("cnn", *CNN)
    status, _, _ = typed("predict.py", f"run={run}", "split=test", f"output={tmp_path}/o.csv")
    found, told = rows(tmp_path / "o.csv"), runs.read_json(run / "metrics.json")["test"]
    right = sum(row["prediction"] == row["target"] for row in found) / len(found)
    assert status == 0 and len(found) == told["samples"] and right == pytest.approx(told["test/acc"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "content"), [("b.npy", DIGITS[:5]), ("b.npz", {"x": DIGITS[:5, None]})])
def test_batches_of_pictures(trained, typed, tmp_path, name, content):
    np.save(tmp_path / name, content) if name == "b.npy" else np.savez(tmp_path / name, **content)
    status, said, _ = typed("predict.py", f"run={trained('cnn', *CNN)}", f"input={tmp_path}/{name}")
    assert status == 0 and len(re.findall(r"b\.np.\[\d\]", said)) == 5 and "error" not in said


def test_sequences(trained, typed, tmp_path):
    run, parts = trained("rnn-gru", *RNN, "model.cell=gru"), []
    (tmp_path / "in").mkdir()
    for number, digit in enumerate(DIGITS[:3] / 255):
        parts.append(np.stack([*digit.nonzero(), digit[digit.nonzero()]], 1).astype("float32"))
        np.save(tmp_path / "in" / f"{number}.npy", parts[-1])
    np.savetxt(tmp_path / "in" / "3.csv", parts[0], delimiter=",")
    lengths = np.array([len(part) for part in parts])
    padded = np.stack([np.pad(part, ((0, 64 - len(part)), (0, 0))) for part in parts])
    np.savez(tmp_path / "in" / "4.npz", x=padded, lengths=lengths)
    np.save(tmp_path / "in" / "5.npy", parts[0][:, :2])
    status, _, _ = typed("predict.py", f"run={run}", f"input={tmp_path}/in", f"output={tmp_path}/o.csv")
    found = rows(tmp_path / "o.csv")
    assert status == 0 and len(found) == 8 and "T x 3" in found[7]["error"]
    probs = [float(row["probability"]) for row in found[:7]]
    assert probs[3] == pytest.approx(probs[0], abs=1e-5) and probs[4:] == pytest.approx(probs[:3], abs=1e-5)


@pytest.mark.slow
def test_a_table_of_a_run_that_has_moved_and_lost_its_data(trained, typed, tmp_path):
    people = "id,age,city,label\n" + "".join(
        f"{n},{20 + n % 50},{'Bern' if n % 3 else 'Rome'},{'old' if n % 50 > 25 else 'young'}\n" for n in range(120)
    )
    (tmp_path / "people.csv").write_text(people)
    keys = [f"data.path={tmp_path}/people.csv", "data.target=label", "data.ignore=[id]"]
    run = trained("table", "data=table", "model=mlp", *keys)
    (tmp_path / "people.csv").unlink()
    shifted = "city;note;age\nBern;x;30\nNowhere;y;\nRome;z;old\nRome;z\n"
    (tmp_path / "new.csv").write_text(shifted)
    status, _, _ = typed("predict.py", f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/o.csv")
    found = rows(tmp_path / "o.csv")
    assert status == 0 and [row["name"].rsplit(":")[-1] for row in found] == ["2", "3", "4", "5"]
    assert {row["prediction"] for row in found[:2]} <= {"old", "young"}
    assert "'old' in column age" in found[2]["error"] and "2 cells" in found[3]["error"]
    (tmp_path / "less.csv").write_text("city\nBern\n")
    status, _, sentence = typed("predict.py", f"run={run}", f"input={tmp_path}/less.csv")
    assert status == 2 and "no column age" in sentence
    status, _, sentence = typed("export.py", f"run={run}", f"output={tmp_path}/a.onnx")
    assert status == 2 and "data.path" in sentence and not (tmp_path / "a.onnx").exists()


def test_values(trained, typed, tmp_path):
    x, _ = load_diabetes(return_X_y=True, scaled=False)
    np.savetxt(tmp_path / "in.csv", x[:40], delimiter=",", header=",".join("abcdefghij"), comments="")
    line = [f"run={trained('mlp', *MLP)}", f"input={tmp_path}/in.csv", f"output={tmp_path}/o.jsonl"]
    assert typed("predict.py", *line)[0] == 0
    found = rows(tmp_path / "o.jsonl")
    assert set(found[0]) == {"name", "prediction", "error"} and len(found) == 40
    assert 20 < np.mean([row["prediction"] for row in found]) < 350  # in the target's unit


@pytest.mark.slow
def test_two_processes_write_each_row_once(trained, command, pictures, tmp_path):
    run = trained("cnn", *CNN)
    line = [f"run={run}", f"input={pictures}", "batch_size=2", "threads=1"]
    for name, more in ("one", []), ("two", ["trainer=ddp"]):
        ran = command("predict.py", *line, f"output={tmp_path}/{name}.csv", *more)
        assert ran.returncode == 0, ran.stderr
    assert rows(tmp_path / "one.csv") == rows(tmp_path / "two.csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["input={tmp}/nowhere"], "is not there"),
        (["input={tmp}/empty"], "is a folder without pictures"),
        (["input={tmp}/t.csv"], "it takes pictures"),
        (["input={tmp}/b.npy"], "holds float64 of 2 x 3"),
        (["input={pictures}", "output={tmp}/t.csv"], "overwrite=true"),
        (["input={pictures}", "output={tmp}/t.csv/o.csv"], "cannot be written"),
        (["input={pictures}", "output={tmp}/o.xlsx"], r"\.csv or \.jsonl"),
        (["input={pictures}", "model.channels=[4]", "output={tmp}/o.csv"], "fit this model"),
        (["input={pictures}", "split=test"], "What is to be predicted"),
        (["split=all"], "choose test"),
        (["input={pictures}", "top_k=0"], "top_k"),
        (["input={pictures}", "model=a.onnx"], "two answers"),
    ],
)
def test_mistakes(trained, typed, pictures, tmp_path, keys, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    np.save(tmp_path / "b.npy", np.zeros((2, 3)))
    before = sorted(tmp_path.rglob("*"))
    keys = [key.format(tmp=tmp_path, pictures=pictures) for key in keys]
    status, _, sentence = typed("predict.py", f"run={trained('cnn', *CNN)}", *keys)
    assert status == 2 and re.search(said, sentence) and len(sentence.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_files_that_are_not_ours(typed, tmp_path):
    import torch
    from onnx import TensorProto, helper, save

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    made = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"nothing")
    torch.save({}, tmp_path / "c.pt2")
    (tmp_path / "d.pt2").write_bytes(b"nothing")
    for name in ("a.onnx", "b.onnx", "c.pt2", "d.pt2", "e.onnx", "f.ckpt"):
        status, _, sentence = typed("predict.py", f"model={tmp_path}/{name}", f"input={tmp_path}")
        assert status == 2 and name in sentence and len(sentence.splitlines()) == 1


def test_a_picture_for_a_table(trained, typed, pictures):
    status, _, sentence = typed("predict.py", f"run={trained('mlp', *MLP)}", f"input={pictures}/a.png")
    assert status == 2 and "it takes rows of a table" in sentence


def test_the_run_is_what_it_was(trained):
    """Nothing in the run's directory is changed by predictions."""
    stored = OmegaConf.load(trained("cnn", *CNN) / "config.yaml")
    assert "input" not in stored and "top_k" not in stored
