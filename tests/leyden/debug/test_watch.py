"""Faults planted in gradients, in memory and in what a model learns are named; the numbers are the true ones."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lab.models.mlp import MLP
from lab.tasks.classification import Classification
from leyden.debug.watch import Gradients, resident
from leyden.run.run import Run

BOARD = "logger=[tensorboard]"
ON = "callbacks=[gradients]"
OFTEN = ON, "callbacks.gradients.every_n_steps=1"
MEMORY = "callbacks=[memory]"
OVERFIT = ["debug=overfit", "optimizer.lr=1e-2", "trainer.check_val_every_n_epoch=100"]


def curves(run):
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    return {tag: board.Scalars(tag) for tag in board.Tags()["scalars"]}, board.Tags()["histograms"]


# gradients


def test_a_layer_that_is_initialised_too_small_is_named_once(train, plant):
    plant(lambda model: nn.init.normal_(model.body[4].weight, std=1e-12))
    log = (train(*OFTEN) / "train.log").read_text()
    (said,) = re.findall("Gradients vanish.*", log)
    assert "in model.body.1.weight (" in said and "model.body.4" not in said and said.endswith("at step 1.")


def test_layers_before_dead_units_are_named(train, plant):
    plant(lambda model: model.body[4].bias.data.fill_(-100))
    log = (train(*OFTEN) / "train.log").read_text()
    (said,) = re.findall("Gradients vanish.*", log)
    assert "in model.body.1.weight (0.0e+00), model.body.4.weight (0.0e+00), " in said and said.endswith("at step 3.")


def test_a_layer_that_is_too_large_explodes_the_others(train, plant):
    plant(lambda model: nn.init.normal_(model.body[4].weight, std=1e4))
    assert re.search(r"Gradients explode in model.body.1.weight .* at step 1.", (train(ON) / "train.log").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet", "vit"])
def test_a_healthy_model_is_not_named(train, model):
    log = (train(ON, f"model={model}", "callbacks.gradients.every_n_steps=2") / "train.log").read_text()
    assert "Gradients" not in log and "gradients at step 1: norms from" in log


def test_a_head_that_starts_at_zero_is_not_named(train, plant):
    plant(lambda model: nn.init.zeros_(model.head.weight))
    assert "Gradients" not in (train(*OFTEN) / "train.log").read_text()


@pytest.mark.slow
def test_the_norm_is_that_of_the_whole_batch_before_clipping(train):
    """Of two batches of 16 that accumulate as of one of 32, clipped or not."""
    keys = [ON, "data.num_samples=96", "model.dropout=0", "trainer.max_steps=1", "trainer.max_epochs=1"]
    whole = curves(train(*keys, BOARD, "data.batch_size=32", folder="a"))[0]
    halves = curves(
        train(*keys, BOARD, "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=1e-3", folder="b")
    )[0]
    for name in ("model.body.1.weight", "model.head.weight"):
        one, other = (found[f"gradients/norm/{name}"][0].value for found in (whole, halves))
        assert one == pytest.approx(other, rel=1e-4) and one > 1e-2


def test_curves_and_histograms_and_nothing_is_changed(train):
    watched = train(ON, BOARD, "callbacks.gradients.every_n_steps=3")
    scalars, histograms = curves(watched)
    for kind in ("norm", "zeros", "update_ratio"):
        assert [event.step for event in scalars[f"gradients/{kind}/model.head.weight"]] == [1, 3, 6, 9]
    assert 0 < scalars["gradients/update_ratio/model.head.weight"][1].value < 1
    assert "gradients/model.head.weight" in histograms
    assert len({Run(run).metrics["weights_sha256"] for run in (train(folder="plain"), watched)}) == 1


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_numbers_of_a_layer(scale):
    """Of a step of gradient descent; a fused optimizer is given gradients that are still multiplied by the scale."""
    task = nn.Sequential(nn.Linear(2, 2))
    weight = task[0].weight
    weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    optimizer, other = torch.optim.SGD(task.parameters(), lr=0.1), torch.optim.SGD([nn.Parameter(torch.ones(1))])
    optimizer._step_supports_amp_scaling = True
    logged = {}
    scaler = SimpleNamespace(get_scale=lambda: scale)
    logger = SimpleNamespace(log_metrics=lambda values, step: logged.update(values))
    trainer = SimpleNamespace(global_step=0, precision_plugin=SimpleNamespace(scaler=scaler), loggers=[logger])
    trainer.optimizers = [optimizer, other]
    watch = Gradients(histograms_every=0)
    weight.grad = scale * weight.detach() / 2
    watch.on_before_optimizer_step(trainer, task, optimizer)
    weight.grad /= scale
    optimizer.step()
    trainer.global_step = 1
    watch.on_before_optimizer_step(trainer, task, other)  # which has stepped none of these weights
    watch.on_train_batch_end(trainer, task)
    expected = {"norm": 2.5, "zeros": 0.5, "update_ratio": 0.05}
    assert logged == pytest.approx({f"gradients/{name}/0.weight": value for name, value in expected.items()})


# one batch by heart


def test_a_healthy_model_passes(train):
    log = (train(*OVERFIT, "trainer.max_epochs=60") / "train.log").read_text()
    assert "overfit: passed, the loss of one batch went from" in log and "in 60 steps" in log


def test_labels_that_change_do_not_pass(train, monkeypatch):
    step = Classification.step
    monkeypatch.setattr(
        Classification, "step", lambda self, batch: step(self, (batch[0], batch[1].roll(self.global_step)))
    )
    log = (train(*OVERFIT, "trainer.max_epochs=30") / "train.log").read_text()
    assert "overfit: NOT passed" in log and "causes: a wrong optimizer.lr, too few steps" in log


def test_a_layer_without_gradient_is_named(train, monkeypatch):
    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, x: forward(self, x).detach() * 0 + self.head.bias)
    log = (train(*OVERFIT, "trainer.max_epochs=3") / "train.log").read_text()
    assert "causes: model.body.1.weight (of 5 parameters) has no gradient" in log


# memory


def test_each_epoch_and_stage_is_in_the_log_and_the_curves(train):
    run = train(MEMORY, BOARD)
    log = (run / "train.log").read_text()
    assert [log.count(f"memory, {stage}: resident ") for stage in ("train", "val", "test")] == [2, 2, 1]
    assert len(curves(run)[0]["memory/train_resident"]) == 2 and "grew" not in log


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_what_is_resident_is_counted():
    before = resident()
    kept = torch.ones(2**26)  # 256 MiB
    assert 250 < resident() - before < 270
    del kept
    assert abs(resident() - before) < 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_a_list_that_grows_in_each_epoch_is_named_once(train, monkeypatch):
    """By 36 MiB, which malloc maps for itself, whatever this process has freed before."""
    step, kept = Classification.training_step, []

    def keeps(self, batch, batch_idx):
        if batch_idx == 0:
            kept.append(torch.ones(9 * 2**20))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", keeps)
    log = (train(MEMORY, "trainer.max_epochs=8") / "train.log").read_text()
    assert len(re.findall(r"Memory grew 5 epochs in a row, to \d+ MiB; .*loss.detach", log)) == 1
