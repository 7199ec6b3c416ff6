"""Errors of torch in a step, planted, and the sentence that comes of each."""

import os

import pytest
import torch
from torch import nn

from leyden import UserError


def refused(train, *keys):
    with pytest.raises(UserError) as caught:
        train(*keys)
    return str(caught.value)


def test_a_wrong_linear_size_is_shown_among_the_layers(train, plant):
    plant(lambda model: model.body.__setitem__(4, nn.Linear(100, 128)))
    said = refused(train)
    lines = said.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  model")][:2] == ["model.body.0", "model.body.1"]
    (marked,) = [line for line in lines if line.startswith("> ")]
    assert marked.split()[1:3] == ["model.body.4", "Linear"] and "16 x 256" in marked
    assert "fails on sizes in model.body.4 (Linear): it takes ... x 100 (in_features) and got 16 x 256" in lines[-1]


def test_a_loss_that_does_not_fit_is_named(train, plant):
    plant(lambda model: setattr(model, "head", nn.Sequential(model.head, nn.Unflatten(1, (2, 5)))))
    said = refused(train)
    assert "> loss" in said and "16 x 2 x 5, 16" in said


def test_an_error_of_another_kind_stays_what_it_is(train, plant):
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("a bug")

    plant(lambda model: setattr(model, "head", Broken()))
    with pytest.raises(ValueError, match="a bug"):
        train()


def test_under_compile_the_layers_are_shown_too(train, plant):
    plant(lambda model: model.body.__setitem__(4, nn.Linear(100, 128)))
    assert "it takes ... x 100 (in_features)" in refused(train, "task.compile=true")


# memory and determinism


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("take", [lambda x: x.new_empty(2**60, dtype=torch.int8), lambda x: bytearray(2**60)])
def test_out_of_memory_names_numbers_to_try(train, plant, take):
    def fill(x):
        take(x)
        return x

    plant(lambda model: model.body.append(Function(fill)))
    said = refused(train, "trainer.accumulate_grad_batches=2")
    assert "Out of memory on this machine with 16 samples a step, 32-true" in said
    assert "data.batch_size=8 trainer.accumulate_grad_batches=4" in said and "trainer.precision=bf16-mixed" in said
    assert "\n" not in said


def test_an_operator_without_deterministic_form_is_named(train, plant):
    def put(x):
        index = torch.zeros(3, dtype=torch.int64)
        return x + torch.zeros_like(x).put_(index, torch.ones(3))

    plant(lambda model: model.body.append(Function(put)))
    said = refused(train, "trainer.deterministic=true")
    assert said.startswith("put_ has no deterministic form on cpu, and is called in model.body.7 (Function), line")
    assert f"of {__file__};" in said and "trainer.deterministic=warn" in said and "\n" not in said
    assert "put_" in (train("trainer.deterministic=warn", folder="warn") / "train.log").read_text()


def test_deterministic_sets_all_that_torch_needs(train, monkeypatch):
    from leyden.callbacks.keeper import Keeper

    seen, start = [], Keeper.on_train_start

    def look(self, trainer, task):
        flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
        seen.append((*flags, torch.backends.cudnn.benchmark, os.environ["CUBLAS_WORKSPACE_CONFIG"]))
        start(self, trainer, task)

    monkeypatch.setattr(Keeper, "on_train_start", look)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    train("trainer.deterministic=true")
    train(folder="after")  # and nothing of it is left
    assert seen == [(True, True, False, ":4096:8"), (False, False, False, "")]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            ["callbacks=[early_stopping]", "callbacks.early_stopping.monitor=val/los"],
            "monitor val/los of Early stopping",
        ),
        (["scheduler=plateau", "task.monitor=val/los"], "monitor val/los of ReduceLROnPlateau"),
    ],
)
def test_a_metric_that_is_not_logged_is_named(train, keys, said):
    with pytest.raises(UserError, match=said):
        train(*keys)
