"""Rows from outputs, in order, and their files."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from leyden import UserError
from leyden.deploy import rows

CARD = {"classes": ["cat", "dog, big", "2"], "outputs": {"probs": ["batch", 3]}}


def batch(names, errors, targets=None):
    return {"names": names, "errors": errors, "targets": targets or [None] * len(names)}


def test_classes_by_name_and_errors_in_place():
    probs = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.1, 0.4]])
    one, bad, two = rows.of_batch(batch(list("abc"), [None, "bad", None], [0, 1, 2]), probs, CARD, 2, False)
    assert one == {
        "name": "a", "prediction": "dog, big", "probability": 0.7, "prediction_2": "cat", "probability_2": 0.2,
        "target": "cat", "error": None,
    }  # fmt: skip
    assert bad["error"] == "bad" and bad["prediction"] is None and two["prediction_2"] == "2"
    (none,) = rows.of_batch(batch(["a"], ["bad"]), None, CARD, 9, True)
    assert list(none)[-4:] == ["prob_cat", "prob_dog, big", "prob_2", "error"] and none["prediction_3"] is None


def test_values():
    card = {"classes": None, "outputs": {"values": ["batch", 1]}}
    (row,) = rows.of_batch(batch(["a"], [None]), torch.tensor([[123.456789]]), card, 1, False)
    assert row == {"name": "a", "prediction": 123.4568, "error": None}
    card["outputs"] = {"values": ["batch", 2]}
    (row,) = rows.of_batch(batch(["a"], [None]), torch.tensor([[1.0, float("nan")]]), card, 1, False)
    assert row["prediction_1"] == 1.0 and row["prediction_2"] is None


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_are_put_in_order(tmp_path, world):
    for number in range(7):
        with open(rows.spooled(tmp_path, number % world), "a") as file:
            file.write(json.dumps([{"name": f"ü\n{number}", "error": None}] * 2) + "\n")
    for rank in range(world):
        rows.spooled(tmp_path, rank).touch()
    assert [row["name"][2:] for row in rows.merged(tmp_path, world)] == [str(n // 2) for n in range(14)]
    assert rows.write(rows.merged(tmp_path, world), tmp_path / "o.csv", ".csv") == (14, 0)
    with open(tmp_path / "o.csv", newline="", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [f"ü\n{n // 2}" for n in range(14)]
    rows.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]


def test_a_task_of_ones_own(tmp_path):
    spool, trainer = rows.Spool(tmp_path), SimpleNamespace(global_rank=0)
    spool.on_predict_start(trainer, None)
    for size in (3, 2):
        outputs = {"label": torch.arange(size), "mask": torch.ones(size, 4, 4).bfloat16(), "word": ["x"] * size}
        spool.on_predict_batch_end(trainer, None, outputs, None, 0)
    for wrong in (torch.zeros(3), {}, {"a": torch.zeros(3), "b": torch.zeros(2)}, {"a": torch.tensor(1.0)}):
        with pytest.raises(UserError, match="predict_step"):
            spool.own(wrong)
    with pytest.raises(UserError, match="mask is"):
        spool.own({"mask": torch.ones(2, 5, 4)})
    spool.on_predict_end(trainer, None)
    found = list(rows.merged(tmp_path, 1))
    assert [row["name"] for row in found] == list("01234") and found[4] == {
        "name": "4", "label": 1, "word": "x", "error": None,
    }  # fmt: skip
    rows.save_arrays(spool.arrays, tmp_path / "o.npz")
    assert np.load(tmp_path / "o.npz")["mask"].shape == (5, 4, 4)


def test_the_screen(capsys):
    found = [{"name": "a", "prediction": "cat", "error": None}, {"name": "long", "prediction": None, "error": "bad"}]
    assert rows.write(iter(found), None, "") == (2, 1)
    assert capsys.readouterr().out == "name  prediction  error\na     cat\nlong              bad\n"
    assert rows.write(iter([]), None, "") == (0, 0)
