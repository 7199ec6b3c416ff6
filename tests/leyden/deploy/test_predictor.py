"""The batches of inputs in their order, rows from outputs, and their files."""

import json
from functools import partial

import pytest
import torch
from lightning import Trainer
from torch.utils.data import DataLoader

from foreign.two_loaders import Two, Unaware
from leyden import UserError
from leyden.deploy import inputs, predictor
from leyden.deploy.graph import Metadata

CLASSES = Metadata("table", {}, {"probs": ["batch", 3]}, classes=["cat", "dog, big", "2"])


@pytest.mark.parametrize("workers", [0, 2])
def test_each_input_once_and_in_order(workers):
    bad = {number for number in range(23) if number % 5 == 3}
    samples = [(str(n), f"{n} is bad" if n in bad else torch.full((2,), float(n))) for n in range(23)]
    loader = DataLoader(samples, 4, num_workers=workers, collate_fn=partial(inputs.collate, CLASSES, []))
    batches = list(loader)
    assert [name for batch in batches for name in batch["names"]] == [str(number) for number in range(23)]
    for batch in batches:
        good = [name for name, error in zip(batch["names"], batch["errors"], strict=True) if error is None]
        assert batch["x"][:, 0].tolist() == [float(name) for name in good]
        for name, error in zip(batch["names"], batch["errors"], strict=True):
            assert error == (f"{name} is bad" if int(name) in bad else None)


def test_sequences_are_padded():
    samples = [("a", torch.ones(3, 2)), ("b", torch.ones(5, 2))]
    values, lengths = inputs.collate(CLASSES, [], samples)["x"]
    assert values.shape == (2, 5, 2) and lengths.tolist() == [3, 5] and values.sum() == 16


def predicted(names, errors, outputs, metadata, top_k=1, all_probs=False, targets=None):
    """The rows of samples for which a model gives these outputs."""
    batch = {"names": names, "errors": errors, "y": targets}
    batch["x"] = None if outputs is None else (torch.tensor(outputs),)
    columns = predictor.Predictor(lambda x: x, metadata, top_k, all_probs).predict_step(batch, 0)
    found, _ = predictor.table([columns])
    return json.loads(found.to_json(orient="records", double_precision=15))


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


def test_a_task_that_knows_no_loaders_is_told_so():
    trainer = Trainer(logger=False, enable_progress_bar=False, accelerator="cpu")
    with pytest.raises(RuntimeError, match=r"no `dataloader_idx` argument in `Unaware\.predict_step"):
        trainer.predict(Unaware(), predictor.to_predict(Two(), "test"))
    with pytest.raises(UserError, match="`split` must be one of val, test, predict that Two has a loader for"):
        predictor.to_predict(Two(), "predict")
