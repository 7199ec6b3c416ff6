"""Faults planted in a model's gradients are found and named; the norms are the true ones."""

import re

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from leyden.callbacks import gradients

ON = "callbacks=[gradients]"


def curves(run):
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    return {tag: board.Scalars(tag) for tag in board.Tags()["scalars"]}, board.Tags()["histograms"]


def test_a_layer_that_is_initialised_too_small_is_named(train, plant):
    plant(lambda model: nn.init.normal_(model.body[4].weight, std=1e-12))
    log = (train(ON) / "train.log").read_text()
    (said,) = re.findall("Gradients vanish.*", log)
    assert "model.body.1 (" in said and "those of model.body.4 are 1.0e-12" in said and "kaiming_normal_" in said


def test_gradients_that_are_all_zero_are_said_once(train, plant):
    plant(lambda model: model.body[4].bias.data.fill_(-100))
    log = (train(ON) / "train.log").read_text()
    assert log.count("The gradient of each layer's weights is zero at step") == 1


def test_a_deep_stack_of_sigmoids_vanishes(train, plant):
    def sigmoids(model):
        model.body = nn.Sequential(
            nn.Flatten(), *(layer for _ in range(12) for layer in (nn.LazyLinear(32), nn.Sigmoid()))
        )
        model.head = nn.LazyLinear(10)
        model(torch.zeros(1, 1, 8, 8))

    plant(sigmoids)
    log = (train(ON) / "train.log").read_text()
    assert re.search(r"Gradients vanish in model.body.1 .*residual", log)


def test_a_layer_that_is_too_large_explodes_the_others(train, plant):
    plant(lambda model: nn.init.normal_(model.body[4].weight, std=1e4))
    log = (train(ON) / "train.log").read_text()
    assert re.search(r"Gradients explode in model.body.1 .*model.body.4 are 1.0e\+04", log)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet", "vit"])
def test_a_healthy_model_is_not_named(train, model):
    log = (train(ON, f"model={model}", "callbacks.gradients.every_n_steps=2") / "train.log").read_text()
    assert "Gradients" not in log and "gradients at step 1: norm" in log


def test_a_head_that_starts_at_zero_is_not_named(train, plant):
    plant(lambda model: nn.init.zeros_(model.head.weight))
    assert "Gradients" not in (train(ON, "trainer.max_epochs=3") / "train.log").read_text()


def test_the_norm_is_that_of_the_whole_batch_before_clipping(train, monkeypatch):
    """Of two batches of 16 that accumulate as of one of 32, clipped or not."""
    keys = [ON, "data.num_samples=96", "model.dropout=0", "trainer.max_steps=1", "trainer.max_epochs=1"]
    whole = curves(train(*keys, "data.batch_size=32", folder="a"))[0]
    halves = curves(train(*keys, "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=1e-3", folder="b"))[0]
    for name in ("model.body.1", "model.head"):
        one, other = (found[f"gradients/norm/{name}"][0].value for found in (whole, halves))
        assert one == pytest.approx(other, rel=1e-4) and one > 1e-2


def test_curves_and_histograms(train):
    scalars, histograms = curves(train(ON, "callbacks.gradients.every_n_steps=3"))
    for kind in ("norm", "mean", "std", "zeros", "update_ratio"):
        assert [event.step for event in scalars[f"gradients/{kind}/model.head"]] == [1, 3, 6, 9]
    assert 0 < scalars["gradients/update_ratio/model.head"][1].value < 1
    assert "gradients/model.head" in histograms


def test_the_numbers_of_a_layer():
    layer = nn.Linear(2, 2)
    layer.weight.grad, layer.bias.grad = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0.0, 12.0])
    row = gradients.stats({"a": list(layer.parameters())}, scale=2.0)["a"]
    assert row["norm"] == pytest.approx(6.5) and row["_weights"] == pytest.approx(2.5)
    assert row["zeros"] == 0.5 and row["mean"] == pytest.approx(19 / 12)


def test_nothing_is_changed(train):
    from leyden import runs

    plain, watched = train(folder="plain"), train(ON, "callbacks.gradients.every_n_steps=1", folder="watched")
    assert len({runs.read_json(run / "metrics.json")["weights_sha256"] for run in (plain, watched)}) == 1
