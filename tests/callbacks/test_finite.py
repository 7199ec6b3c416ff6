"""Numbers that are none, planted, and the layer that is named."""

import pytest
import torch
from torch import nn

from leyden import UserError, checkpoints, replay, runs
from leyden.callbacks.guard import Guard
from leyden.models.mlp import MLP

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


def test_a_log_of_zero_is_named_and_its_batch_kept(train, configure, plant):
    plant(lambda x: torch.log(torch.relu(x)))
    said = refused(train)
    assert "first layer whose output is not finite is model.body.7 (Function)" in said and "-inf of 2048 values" in said
    assert "The operator is log (test_finite.py, line" in said
    run = runs.Path(configure().run_dir)
    kept = torch.load(run / "bad_batch.pt", weights_only=True)
    assert kept["batch"][0].shape == (16, 1, 8, 8) and kept["step"] == 0
    assert runs.read_json(run / "run.json")["status"] == "failed"


@pytest.mark.parametrize("keys", [[ON], ["debug=anomaly"]])
def test_what_arises_between_two_layers_is_not_blamed_on_one(train, monkeypatch, keys):
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.head((self.body(x) - 10).log()))
    with pytest.raises(UserError) as caught:
        train(*keys)
    said = str(caught.value)
    assert "between model.body.6 (Dropout) and model.head (Linear), whose input it is" in said
    assert "The operator is log (test_finite.py, line" in said


def test_anomaly_mode_names_the_operator_of_a_gradient(train, monkeypatch):
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.head((self.body(x) * 0).sqrt()))
    with pytest.raises(UserError, match=r"The gradient of (Mul|Sqrt) is NaN"):
        train("debug=anomaly")


def test_a_mask_of_infinities_is_no_fault():
    with replay.Suspect() as suspect:
        torch.zeros(2, 2).masked_fill(torch.eye(2) > 0, -torch.inf).softmax(0)
    assert not suspect.found


def test_a_root_of_zero_has_no_gradient(train, plant):
    plant(lambda x: torch.sqrt(x * 0))
    said = refused(train)
    assert "the loss is a number, but gradients are none" in said
    assert "model.body.1.weight" in said and "behind the output of model.body.6 (Dropout), in model.body.7" in said


def test_the_loss_itself(train, monkeypatch):
    from leyden.tasks.classification import Classification

    step = Classification.step

    def logs(self, batch):
        loss, outputs, y = step(self, batch)
        return torch.log(loss - loss), outputs, y

    monkeypatch.setattr(Classification, "step", logs)
    assert "the loss itself is none" in refused(train)


def test_weights_that_are_no_numbers(train, monkeypatch):
    build = MLP.__init__

    def init(self, *arguments, **keywords):
        build(self, *arguments, **keywords)
        self.head.weight.data[0, 0] = torch.nan

    monkeypatch.setattr(MLP, "__init__", init)
    assert "Parameters are not finite: model.head.weight" in refused(train)


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
