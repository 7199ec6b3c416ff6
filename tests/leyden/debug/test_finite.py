"""Numbers that are none, planted, and the layer that is named."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lab.models.mlp import MLP
from lab.tasks.classification import Classification
from leyden import UserError
from leyden.resume import checkpoints
from leyden.resume.stopping import Guard
from leyden.run.run import Run

ON = "callbacks=[finite]"


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.fixture
def plant(plant):
    """A function before the head of the MLP."""
    return lambda function: plant(lambda model: model.body.append(Function(function)))


def refused(train, *keys):
    with pytest.raises(UserError) as caught:
        train(ON, *keys)
    return str(caught.value)


@pytest.mark.parametrize("keys", [[], ["debug=anomaly"], ["task.compile=true"]])
def test_a_log_of_zero_is_named_and_its_batch_kept(train, configure, plant, keys):
    plant(lambda x: torch.log(torch.relu(x)))
    said = refused(train, *keys)
    assert said.startswith(
        "Step 1 (epoch 1): the first layer whose output is not finite is model.body.7 (Function, inp"
    )
    assert "input 16 x 128); its input is finite" in said
    run = Path(configure().run_dir)
    kept = torch.load(run / "bad_batch.pt", weights_only=True)
    assert kept["batch"][0].shape == (16, 1, 8, 8) and kept["step"] == 0
    assert Run(run).record["status"] == "failed"


def test_what_arises_between_two_layers_is_not_blamed_on_one(train, monkeypatch):
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.head((self.body(x) - 10).log()))
    said = refused(train)
    assert "model.head (Linear, input 16 x 128); its input is not finite either" in said


def test_anomaly_mode_names_the_operator_of_a_gradient(train, monkeypatch):
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.head((self.body(x) * 0).sqrt()))
    with pytest.raises(UserError, match=r"The gradient of (Mul|Sqrt) is NaN"):
        train("debug=anomaly")


def test_a_root_of_zero_has_no_gradient(train, plant):
    plant(lambda x: torch.sqrt(x * 0))
    said = refused(train)
    assert "the loss is finite, but" in said and "gradients of model.body.1.weight, model.body.1.bias" in said


@pytest.mark.parametrize(
    ("waits", "words"), [(False, "look at how the loss is computed"), (True, "the loss is nan, al")]
)
def test_the_loss_itself(train, configure, monkeypatch, waits, words):
    """On a CPU the guard sees it first; elsewhere this callback does."""
    step = Classification.step

    def logs(self, batch):
        loss, outputs, y = step(self, batch)
        return loss * torch.nan, outputs, y

    monkeypatch.setattr(Classification, "step", logs)
    monkeypatch.setattr(Guard, "waits", staticmethod(lambda loss: waits))
    assert words in refused(train)
    assert (Path(configure().run_dir) / "bad_batch.pt").exists()


def test_a_batch_that_is_not_finite(train, monkeypatch):
    step = Classification.training_step

    def training_step(self, batch, batch_idx):
        batch[0].fill_(torch.inf)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", training_step)
    assert "the batch itself has values that are not finite" in refused(train)


def test_weights_that_are_no_numbers(train, monkeypatch):
    build = MLP.__init__

    def init(self, *arguments, **keywords):
        build(self, *arguments, **keywords)
        self.head.weight.data[0, 0] = torch.nan

    monkeypatch.setattr(MLP, "__init__", init)
    assert "model.head (Linear, input 16 x 128); its weights are not finite" in refused(train)


def test_where_the_host_does_not_wait_it_does_with_this_callback(train, plant, monkeypatch):
    monkeypatch.setattr(Guard, "waits", staticmethod(lambda loss: True))
    plant(lambda x: torch.log(torch.relu(x)))
    assert "model.body.7" in refused(train)


def test_a_run_without_fault_is_the_same(train):
    found = [
        checkpoints.sha256(
            checkpoints.read(train(*keys, folder=f"f{len(keys)}") / "checkpoints/last.ckpt")["state_dict"]
        )
        for keys in ([], [ON])
    ]
    assert found[0] == found[1]
