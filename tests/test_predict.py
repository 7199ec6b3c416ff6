"""Predictions from the command to the rows: what is read, what is written, and what is refused."""

import csv
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from omegaconf import OmegaConf
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits

import leyden
from leyden import UserError
from leyden.deploy.graph import Metadata
from leyden.deploy.inputs import of_path
from leyden.run import paths
from leyden.run.run import Run
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


NAMES = ["a.png", "b ß/2.png", "b ß/größe,1.PNG", "bad.png", "c.png", "d.png", "large.png"]


def test_a_folder_with_a_bad_file(trained, typed, pictures, tmp_path):
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
    assert status == 1 and "1 of 7 inputs could not be read" in sentence and len(rows(file)) == 7
    status, _, sentence = typed("predict.py", f"run={run}", f"input={pictures}/bad.png")
    assert status == 1 and "1 of 1 inputs could not be read" in sentence


def test_a_pattern_is_read_by_workers_too(trained, typed, pictures, tmp_path):
    for workers in (0, 2):
        line = [f"run={trained('cnn', *CNN)}", f"input={pictures}/**/*.png", "batch_size=2", f"num_workers={workers}"]
        assert typed("predict.py", *line, f"output={tmp_path}/{workers}.jsonl")[0] == 0
    assert rows(tmp_path / "0.jsonl") == rows(tmp_path / "2.jsonl") and len(rows(tmp_path / "0.jsonl")) == 6


def test_the_data_of_the_run_and_its_own_test_result(trained, typed, tmp_path):
    run = trained("cnn", *CNN)
    status, _, _ = typed("predict.py", f"run={run}", "split=test", f"output={tmp_path}/o.csv")
    found, told = rows(tmp_path / "o.csv"), Run(run).metrics["test"]
    right = sum(row["prediction"] == row["target"] for row in found) / len(found)
    assert status == 0 and len(found) == told["samples"] and right == pytest.approx(told["test/acc"], abs=1e-6)


@pytest.mark.parametrize(("name", "content"), [("b.npy", DIGITS[:5, None]), ("b.npz", {"x": DIGITS[:5, None]})])
def test_batches_of_pictures(trained, typed, tmp_path, name, content):
    np.save(tmp_path / name, content) if name == "b.npy" else np.savez(tmp_path / name, **content)
    status, said, _ = typed("predict.py", f"run={trained('cnn', *CNN)}", f"input={tmp_path}/{name}")
    lines = [line for line in said.splitlines() if "b.np" in line]
    assert status == 0 and len(lines) == 5 and all(re.search(r"b\.np.\[\d\],\d,0\.\d+,$", line) for line in lines)


def test_sequences(trained, typed, tmp_path):
    run, parts = trained("rnn-gru", *RNN, "model.cell=gru"), []
    (tmp_path / "in").mkdir()
    for number, digit in enumerate(DIGITS[:3] / 255):
        parts.append(np.stack([*digit.nonzero(), digit[digit.nonzero()]], 1).astype("float32"))
        np.save(tmp_path / "in" / f"{number}.npy", parts[-1])
    np.savetxt(tmp_path / "in" / "3.csv", parts[0], delimiter=",")
    np.save(tmp_path / "in" / "4.npy", np.stack([parts[0], parts[0]]))
    np.save(tmp_path / "in" / "5.npy", parts[0][:, :2])
    status, _, _ = typed("predict.py", f"run={run}", f"input={tmp_path}/in", f"output={tmp_path}/o.csv")
    found = rows(tmp_path / "o.csv")
    assert status == 0 and len(found) == 7 and "batch x time x 3" in found[6]["error"]
    assert found[5]["name"] == "4.npy[1]"
    probs = [float(row["probability"]) for row in found[:6]]
    assert probs[3:] == pytest.approx(probs[:1] * 3, abs=1e-5)


@pytest.mark.slow
def test_a_table_of_a_run_that_has_moved_and_lost_its_data(trained, typed, tmp_path):
    people = "id,age,city,label\n" + "".join(
        f"{n},{20 + n % 50},{'Bern' if n % 3 else 'Rome'},{'old' if n % 50 > 25 else 'young'}\n" for n in range(120)
    )
    (tmp_path / "people.csv").write_text(people)
    keys = [f"data.path={tmp_path}/people.csv", "data.target=label", "data.ignore=[id]"]
    run = trained("table", "data=table", "model=mlp", *keys)
    (tmp_path / "people.csv").unlink()
    shifted = "city;note;age\nBern;x;30\nNowhere;y;\nRome;z;old\n"
    (tmp_path / "new.csv").write_text(shifted)
    status, _, _ = typed("predict.py", f"run={run}", f"input={tmp_path}/new.csv", f"output={tmp_path}/o.csv")
    found = rows(tmp_path / "o.csv")
    assert status == 0 and [row["name"].rsplit(":")[-1] for row in found] == ["2", "3", "4"]
    assert {row["prediction"] for row in found[:2]} <= {"old", "young"}
    assert "column age must be a number as in training; got 'old'" in found[2]["error"]
    (tmp_path / "less.csv").write_text("city\nBern\n")
    status, _, sentence = typed("predict.py", f"run={run}", f"input={tmp_path}/less.csv")
    assert status == 2 and "columns of the run: age; got city" in sentence
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


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["input={tmp}/nowhere"], "must be images .* a file, a folder or a pattern of them; got `.*nowhere`"),
        (["input={tmp}/empty"], "must be images .* got `.*empty`"),
        (["input={tmp}/t.csv"], "must be images .* got `.*t.csv`"),
        (["input={tmp}/b.npy"], "must hold uint8 of batch x 1 x 8 x 8; got float64 of 2 x 3"),
        (["input={pictures}", "output={tmp}/t.csv"], "overwrite=true"),
        (["input={pictures}", "output={tmp}/t.csv/o.csv"], "cannot be written"),
        (["input={pictures}", "output={tmp}/o.xlsx"], r"\.csv or \.jsonl"),
        (["input={pictures}", "model.channels=[4]", "output={tmp}/o.csv"], "of another shape"),
        (["input={pictures}", "split=test"], "`input` must be given, or else `split`, not both"),
        (["split=all"], "`split` must be one of train, val, test of a datamodule of leyden; got `all`"),
        (["split=predict"], "must be one of train, val, test of a datamodule"),
        (["input={pictures}", "top_k=0"], "top_k"),
        (["input={pictures}", "model=a.onnx"], "cannot be chosen for a run"),
        (["input={pictures}", "trainer=ddp"], "type trainer.devices=1"),
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


def test_a_picture_for_a_table(trained, typed, pictures):
    status, _, sentence = typed("predict.py", f"run={trained('mlp', *MLP)}", f"input={pictures}/a.png")
    assert status == 2 and "must be tables" in sentence


def test_the_run_is_what_it_was(trained):
    """Nothing in the run's directory is changed by predictions."""
    stored = OmegaConf.load(trained("cnn", *CNN) / "config.yaml")
    assert "input" not in stored and "top_k" not in stored


def test_rows_are_read_as_in_training(tmp_path):
    columns = [{"name": "a", "fill": 0.0, "decimal": ","}, {"name": "t", "fill": 0.0, "offset": 1.7e9}]
    metadata = Metadata("table", {"row": ["batch", 2]}, {"values": ["batch", 1]}, columns=columns)
    (tmp_path / "t.csv").write_text("a;t\n1,5;1700000003.5\nx;1\n")
    np.save(tmp_path / "t.npy", np.array([[1.5, 1700000003.5]]))
    row, wrong, array = (x for file in ("t.csv", "t.npy") for x in of_path(str(tmp_path / file), metadata).values())
    assert row.tolist() == array.tolist() == [1.5, 3.5]
    assert "must be a number as in training; got 'x'" in wrong


@pytest.mark.parametrize("named", [False, True])
def test_two_loaders_are_one_file(script, logs, tmp_path, named):
    conf = ["--config-dir", str(Path(__file__).parent / "foreign" / "conf"), f"log_dir={logs}/{named}"]
    keys = ["data=two_loaders", "task=two_loaders", f"data.named={named}", "logger=[]", "trainer.max_epochs=1"]
    assert script("train.py", *conf, *keys, "threads=1")[0] == 0
    line = ["run=latest", "split=test", "trusted=[foreign]", f"log_dir={logs}/{named}", f"output={tmp_path}/o.csv"]
    assert script("predict.py", *line)[0] == 0
    found = rows(tmp_path / "o.csv")
    assert [row["dataloader_idx"] for row in found] == list("00000111")
    assert [float(row["input"]) for row in found] == [10, 11, 12, 13, 14, 20, 21, 22]
    assert np.load(tmp_path / "o.npz")["pair"][:, 1].tolist() == [float(row["input"]) for row in found]
    (run,) = (logs / str(named) / "train").iterdir()
    loaded = leyden.load(run, trusted=["foreign"])
    (x,) = next(iter(loaded.datamodule.val_dataloader()))
    assert np.allclose(loaded([x])["value"], 2 * x, atol=0.1) and loaded.model is loaded.task


# in Python


def example() -> str:
    text = (paths.PROJECT / "README.md").read_text(encoding="utf-8")
    return next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "leyden.load" in block)


def test_a_run_in_python(trained, logs, tmp_path, monkeypatch, capsys):
    """The README's lines, in another folder; they give what predict.py gives."""
    run = trained("cnn", *CNN)
    monkeypatch.chdir(tmp_path)
    code = example().replace("exp1", str(run)).replace("logs/train", str(logs / "train"))
    assert len(code.splitlines()) <= 8
    names: dict = {}
    exec(code, names)
    assert "probability" in capsys.readouterr().out
    loaded, runs = names["loaded"], names["runs"]
    assert Path(loaded.config.run) == run / "checkpoints" / "best.ckpt" and type(loaded.model).__name__ == "CNN"
    assert runs["val/acc"].dropna().is_monotonic_decreasing and runs["optimizer.lr"].dtype == float and len(runs) >= 1
    assert leyden.curves(run / "checkpoints" / "best.ckpt").columns[0] == "epoch"


@pytest.mark.parametrize(("name", "keys"), [("cnn", CNN), ("mlp", MLP), ("rnn-gru", [*RNN, "model.cell=gru"])])
def test_a_batch_and_a_sample_give_what_predict_gives(trained, typed, tmp_path, name, keys):
    run = trained(name, *keys)
    loaded = leyden.load(run)
    batch = next(iter(loaded.datamodule.test_dataloader()))
    found, x = loaded(batch), batch[0]
    assert typed("predict.py", f"run={run}", "split=test", f"output={tmp_path}/o.jsonl")[0] == 0
    own = pandas.DataFrame(rows(tmp_path / "o.jsonl"))[: len(found)]
    value = "prediction" if name == "mlp" else "probability"
    assert list(found) == list(own) and np.allclose(found[value], own[value], atol=1e-6)
    assert found.prediction.map(type).eq(own.prediction.map(type)).all()
    plain = (x[0].numpy(), x[1].numpy()) if isinstance(x, tuple) else x.numpy()
    assert np.allclose(loaded(plain)[value], found[value]) and "target" not in loaded(plain)
    one = x[0][0, : x[1][0]] if isinstance(x, tuple) else x[0]
    assert np.allclose(loaded(one)[value], found[value][:1], atol=1e-6)
    assert not loaded.task.training and all(p.grad is None for p in loaded.model.parameters())
    with pytest.raises(UserError, match="x must hold"):
        loaded(np.zeros((2, 3, 4, 5, 6)))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a name is text")
def test_a_name_that_is_no_text_can_be_written(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"no picture")
    metadata = Metadata("image", {"image": ["batch", 1, 8, 8]}, {"probs": ["batch", 2]}, dtype="uint8")
    assert list(of_path(str(tmp_path), metadata)) == [r"\xff.png"]


@pytest.mark.parametrize("axes", [slice(None), (slice(None),) * 3 + ((0,),), (slice(None),) * 3 + (0,)])
def test_raw_samples_of_arrays(trained, typed, tmp_path, axes):
    """Of N x H x W x C with three channels and with one, and of N x H x W: the batch as it is stored, or one of it."""
    x = np.random.default_rng(0).integers(0, 256, (60, 9, 8, 3), dtype=np.uint8)[axes]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(60) % 2)
    keys = ["data=arrays", f"data.path={tmp_path}", f"data_dir={tmp_path}/data", "model.hidden=[4]"]
    run = trained(f"arrays-{'-'.join(map(str, x.shape))}", "model=mlp", *keys)
    loaded = leyden.load(run)
    assert typed("predict.py", f"run={run}", f"input={tmp_path}/x.npy", f"output={tmp_path}/o.jsonl")[0] == 0
    own = pandas.DataFrame(rows(tmp_path / "o.jsonl"))
    assert np.allclose(loaded(x).probability, own.probability, atol=1e-6)
    assert np.allclose(loaded(x[7]).probability, own.probability[7], atol=1e-6)
    with pytest.raises(UserError, match=f"x must hold uint8 of batch x {loaded.config.facts.shape[0]} x 9 x 8; got"):
        loaded(x[7, :4])


def test_load_checks_as_the_commands_do(trained, tmp_path):
    """A stored config that names what may not be built, and data that has changed."""
    run = tmp_path / "run"
    shutil.copytree(trained("cnn", *CNN), run)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("lab.models.cnn.CNN", "os.system"))
    with pytest.raises(UserError, match=r"os\.system, which is not trusted"):
        leyden.load(run)
    (run / "config.yaml").write_text(text)
    Run(run).update(data_fingerprint="other")
    with pytest.raises(UserError, match="The data is not what the run was trained on"):
        leyden.load(run)
    assert leyden.load(run, exact=False).task is not None
    with pytest.raises(UserError, match="no run directory"):
        leyden.load(tmp_path / "nowhere")


@pytest.mark.slow
def test_a_notebook(trained, logs, tmp_path):
    """The README's lines in a kernel that starts in another folder."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat, nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    code = example().replace("exp1", str(trained("cnn", *CNN))).replace("logs/train", str(logs / "train"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "probability" in notebook.cells[0].outputs[0].text
