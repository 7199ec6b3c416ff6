"""The batches of inputs in their order, rows from outputs, and their files."""

import csv
import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from leyden import UserError
from leyden.deploy import predictor
from leyden.deploy.graph import Metadata
from leyden.deploy.inputs import Sample

CLASSES = Metadata("table", {}, {"probs": ["batch", 3]}, classes=["cat", "dog, big", "2"])


def read(number):
    if number % 5 == 3:
        raise UserError(f"{number} is bad")
    return torch.full((2,), float(number))


@pytest.mark.parametrize("workers", [0, 2])
def test_each_input_once_and_in_order(workers):
    samples = [Sample(str(number), partial(read, number)) for number in range(23)]
    loader = DataLoader(samples, 4, num_workers=workers, collate_fn=partial(predictor.collate, []))
    batches = list(loader)
    assert [name for batch in batches for name in batch["names"]] == [str(number) for number in range(23)]
    for batch in batches:
        good = [name for name, error in zip(batch["names"], batch["errors"], strict=True) if error is None]
        assert batch["x"][0][:, 0].tolist() == [float(name) for name in good]
        for name, error in zip(batch["names"], batch["errors"], strict=True):
            assert error == (f"{name} is bad" if int(name) % 5 == 3 else None)


def test_sequences_are_padded():
    values, lengths = predictor.joined([torch.ones(3, 2), torch.ones(5, 2)])
    assert values.shape == (2, 5, 2) and lengths.tolist() == [3, 5] and values.sum() == 16


def predicted(names, errors, outputs, metadata, top_k=1, all_probs=False, targets=None):
    """The rows of samples for which a model gives these outputs."""
    batch = {"names": names, "errors": errors, "targets": [None] * len(names) if targets is None else list(targets)}
    batch["x"] = None if outputs is None else (torch.tensor(outputs),)
    outputs = predictor.Predictor(lambda x: x, metadata, top_k, all_probs).predict_step(batch, 0)
    columns = predictor.RowWriter(None).columns(outputs)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_classes_by_name_and_errors_in_place():
    probs, errors = [[0.2, 0.7, 0.1], [0.5, 0.1, 0.4]], [None, "bad", None]
    one, bad, two = predicted(list("abc"), errors, probs, CLASSES, top_k=2, targets=torch.tensor([0, 1, 2]))
    assert one == {
        "name": "a", "prediction": "dog, big", "probability": 0.7, "prediction_2": "cat", "probability_2": 0.2,
        "target": "cat", "error": None,
    }  # fmt: skip
    assert bad["error"] == "bad" and bad["prediction"] is None and two["prediction_2"] == "2"
    assert list(bad) == list(one)
    (none,) = predicted(["a"], ["bad"], None, CLASSES, top_k=9, all_probs=True)
    assert list(none)[-4:] == ["prob_cat", "prob_dog, big", "prob_2", "error"] and none["prediction_3"] is None


def test_values():
    metadata = Metadata("table", {}, {"values": ["batch", 1]})
    (row,) = predicted(["a"], [None], [[123.456789]], metadata)
    assert row == {"name": "a", "prediction": 123.45679, "error": None}
    metadata.outputs = {"values": ["batch", 2]}
    (row,) = predicted(["a"], [None], [[1.0, float("nan")]], metadata)
    assert row["prediction_1"] == 1.0 and row["prediction_2"] is None


def write(writer, **outputs):
    writer.on_predict_batch_end(None, None, outputs, None, 0)


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_batches_go_to_one_file(tmp_path, ending):
    path = tmp_path / f"o{ending}"
    with predictor.writing(path, False) as writer:
        for part in range(3):
            write(writer, name=[f"ü\n{part}", "b"], error=[None, "bad"])
    assert (writer.total, writer.unreadable) == (6, 3) and list(tmp_path.iterdir()) == [path]
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file)) if ending == ".csv" else [json.loads(line) for line in file]
    assert [row["name"] for row in rows] == ["ü\n0", "b", "ü\n1", "b", "ü\n2", "b"] and rows[1]["error"] == "bad"


def test_the_screen(capsys):
    with predictor.writing(None, False) as writer:
        write(writer, name=["a"], prediction=["cat"])
        write(writer, name=["long"], prediction=[None], error=["bad"])
    assert capsys.readouterr().out.splitlines() == ["name,prediction,error", "a,cat,", "long,,bad"]


def test_a_task_of_ones_own(tmp_path):
    with predictor.writing(tmp_path / "o.csv", False) as writer:
        for size in (3, 2):
            outputs = {"label": torch.arange(size), "mask": torch.ones(size, 4, 4).bfloat16(), "word": ["x"] * size}
            write(writer, **outputs, prob=torch.ones(size, 1) / 3)
        for wrong in (torch.zeros(3), {}, {"a": torch.zeros(3), "b": torch.zeros(2)}, {"a": torch.tensor(1.0)}):
            with pytest.raises(UserError, match="`predict_step` must return"):
                writer.columns(wrong)
    with open(tmp_path / "o.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list("01234")
    assert rows[4] == {"name": "4", "label": "1", "word": "x", "prob": "0.33333334", "error": ""}
    assert np.load(tmp_path / "o.npz")["mask"].shape == (5, 4, 4)
    with predictor.writing(None, False) as writer, pytest.raises(UserError, match="type output="):
        write(writer, mask=torch.ones(2, 5, 4))
