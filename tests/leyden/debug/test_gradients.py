"""Faults planted in a model's gradients are found and named; the norms are the true ones."""

import re
from statistics import mean, pstdev
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from leyden.debug.gradients import Gradients
from leyden.run.run import Run

ON = "callbacks=[gradients]"
OFTEN = ON, "callbacks.gradients.every_n_steps=1"


def curves(run):
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    return {tag: board.Scalars(tag) for tag in board.Tags()["scalars"]}, board.Tags()["histograms"]


def test_a_layer_that_is_initialised_too_small_is_named(train, plant):
    plant(lambda model: nn.init.normal_(model.body[4].weight, std=1e-12))
    log = (train(*OFTEN) / "train.log").read_text()
    (said,) = re.findall("Gradients vanish.*", log)
    assert "in model.body.1 (" in said and "model.body.4" not in said and "at step 1;" in said


def test_layers_before_dead_units_are_named_once(train, plant):
    plant(lambda model: model.body[4].bias.data.fill_(-100))
    log = (train(*OFTEN) / "train.log").read_text()
    (said,) = re.findall("Gradients vanish.*", log)
    assert "in model.body.1 (0.0e+00), model.body.4 (0.0e+00) at step 3;" in said


def test_a_deep_stack_of_sigmoids_vanishes(train, plant):
    def sigmoids(model):
        model.body = nn.Sequential(
            nn.Flatten(), *(layer for _ in range(12) for layer in (nn.LazyLinear(32), nn.Sigmoid()))
        )
        model.head = nn.LazyLinear(10)
        model(torch.zeros(1, 1, 8, 8))

    plant(sigmoids)
    log = (train(*OFTEN) / "train.log").read_text()
    assert re.search(r"Gradients vanish in model.body.1 .*residual", log)


def test_a_layer_that_is_too_large_explodes_the_others(train, plant):
    plant(lambda model: nn.init.normal_(model.body[4].weight, std=1e4))
    log = (train(ON) / "train.log").read_text()
    (said,) = re.findall(r"Gradients explode in .*", log)
    assert "in model.body.1 (" in said and "at step 1; try trainer.gradient_clip_val=1" in said


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet", "vit"])
def test_a_healthy_model_is_not_named(train, model):
    log = (train(ON, f"model={model}", "callbacks.gradients.every_n_steps=2") / "train.log").read_text()
    assert "Gradients" not in log and "gradients at step 1: norm" in log


def test_a_head_that_starts_at_zero_is_not_named(train, plant):
    plant(lambda model: nn.init.zeros_(model.head.weight))
    assert "Gradients" not in (train(*OFTEN) / "train.log").read_text()


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


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_numbers_of_a_layer(scale):
    """Of a step of gradient descent; a fused optimizer is given gradients that are still multiplied by the scale."""
    task = nn.Sequential(nn.Linear(2, 2))
    task[0].weight.data, task[0].bias.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([0.0, 12.0])
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    optimizer._step_supports_amp_scaling = True
    logged = {}
    scaler = SimpleNamespace(get_scale=lambda: scale)
    logger = SimpleNamespace(log_metrics=lambda values, step: logged.update(values))
    trainer = SimpleNamespace(global_step=0, precision_plugin=SimpleNamespace(scaler=scaler), loggers=[logger])
    watch = Gradients(histograms_every=0)
    for parameter in task.parameters():
        parameter.grad = scale * parameter.detach() / 2
    watch.on_before_optimizer_step(trainer, task, optimizer)
    for parameter in task.parameters():
        parameter.grad /= scale
    optimizer.step()
    trainer.global_step = 1
    watch.on_train_batch_end(trainer, task)
    values = [1.5, 0.0, 0.0, 2.0, 0.0, 6.0]
    expected = {"norm": 6.5, "mean": mean(values), "std": pstdev(values), "zeros": 0.5, "update_ratio": 0.05}
    assert logged == pytest.approx({f"gradients/{name}/0": value for name, value in expected.items()})


def test_nothing_is_changed(train):

    plain, watched = train(folder="plain"), train(ON, "callbacks.gradients.every_n_steps=1", folder="watched")
    assert len({Run(run).metrics["weights_sha256"] for run in (plain, watched)}) == 1
