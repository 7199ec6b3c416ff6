"""The table of layers, and numbers that are none, planted, and the layer that is named."""

import re
from pathlib import Path

import pytest
import torch
from test_failures import Function

from lab.models.mlp import MLP
from lab.tasks.classification import Classification
from leyden import UserError
from leyden.debug import layers
from leyden.resume.stopping import Guard
from leyden.run.run import Run

ON = "callbacks=[finite]"


@pytest.fixture
def plant(plant):
    """A function before the head of the MLP."""
    return lambda function: plant(lambda model: model.body.append(Function(function)))


def refused(train, *keys):
    with pytest.raises(UserError) as caught:
        train(ON, *keys)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[], ["debug=anomaly"], ["task.compile=true"]])
def test_a_log_of_zero_is_named_and_its_batch_kept(train, configure, plant, keys):
    plant(lambda x: torch.log(torch.relu(x)))
    said = refused(train, *keys)
    assert said.startswith(
        "The first layer whose output is not finite is model.body.7, Function of 16 x 128; its weights"
    )
    run = Path(configure().run_dir)
    kept = torch.load(run / "bad_batch.pt", weights_only=True)
    assert kept["batch"][0].shape == (16, 1, 8, 8) and kept["step"] == 0
    assert Run(run).record["status"] == "failed"


def test_what_arises_between_two_layers_is_not_blamed_on_one(train, monkeypatch):
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.head((self.body(x) - 10).log()))
    assert "is model.head, Linear of 16 x 128; nor are its input" in refused(train)


def test_anomaly_mode_names_the_operator_of_a_gradient(train, monkeypatch):
    monkeypatch.setattr(MLP, "forward", lambda self, x: self.head((self.body(x) * 0).sqrt()))
    with pytest.raises(UserError, match=r"The gradient of (Mul|Sqrt) is NaN"):
        train("debug=anomaly")


def test_weights_that_a_root_of_zero_has_spoilt_are_named(train, plant):
    plant(lambda x: torch.sqrt(x * 0))
    assert "is model.body.1, Linear of 16 x 64; nor are its weights" in refused(train)


def test_of_a_loss_that_is_not_finite_the_batch_is_kept(train, configure, monkeypatch):
    step = Classification.step

    def spoilt(self, batch):
        loss, outputs, y = step(self, batch)
        return loss * torch.nan, outputs, y

    monkeypatch.setattr(Classification, "step", spoilt)
    assert "look at how the loss is computed" in refused(train)
    assert (Path(configure().run_dir) / "bad_batch.pt").exists()


def test_a_batch_that_is_not_finite(train, monkeypatch):
    step = Classification.training_step

    def training_step(self, batch, batch_idx):
        batch[0].fill_(torch.inf)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", training_step)
    assert "nor are its input" in refused(train)


def test_where_the_host_does_not_wait_it_does_with_this_callback(train, plant, monkeypatch):
    monkeypatch.setattr(Guard, "waits", staticmethod(lambda loss: True))
    plant(lambda x: torch.log(torch.relu(x)))
    assert "model.body.7" in refused(train)


def test_a_run_without_fault_is_the_same(train):
    runs = [train(*keys, "trainer.max_epochs=1", folder=f"f{len(keys)}") for keys in ([], [ON])]
    assert len({Run(run).metrics["weights_sha256"] for run in runs}) == 1


# the table of layers


@pytest.mark.parametrize("model", ["mlp", "resnet", "vit"])
def test_the_table_of_layers(train, model):
    run = train("debug=shapes", f"model={model}")
    text = (run / "train.log").read_text()
    record = Run(run).record
    assert record["status"] == "finished" and "epoch 1" not in text and not (run / "metrics.json").exists()
    total = re.search(r"^ *sum .* (\d+) +(\d+)$", text, re.M)
    assert int(total[1]) == record["parameters"] and int(total[2]) > 0


def test_the_numbers_of_a_linear_layer(train):
    text = (train("debug=shapes", "model.hidden=[32]") / "train.log").read_text()
    assert re.search(rf"^ *model.head +Linear +16 x 32 +16 x 10 +330 +{2 * 16 * 32 * 10}$", text, re.M)


def test_sequences(configure):
    from train import train

    cfg = configure("debug=shapes", "data=ink", "model=rnn", "data.batch_size=8")
    train(cfg)
    text = (Path(cfg.run_dir) / "train.log").read_text()
    assert re.search(r"^ *model\.\S+ +GRU +8 x ", text, re.M), text


def test_sizes_of_nested_containers():
    one, two = torch.zeros(2, 3), torch.zeros(4)
    assert layers.sizes([{"x": one}, (two, 5)]) == "2 x 3, 4"
    assert layers.sizes(3) == "-" and layers.sizes(torch.tensor(1)) == "1"
