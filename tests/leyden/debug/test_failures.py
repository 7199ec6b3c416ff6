"""Errors of torch in a step, planted, and the sentence that comes of each."""

import os

import pytest
import torch
from torch import nn

from lab.tasks.classification import Classification
from leyden import UserError


def refused(train, *keys):
    with pytest.raises(UserError) as caught:
        train(*keys)
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("step", "keys"), [("validation_step", []), ("training_step", ["trainer.num_sanity_val_steps=0"])]
)
def test_the_layer_that_fails_on_sizes_is_named(train, plant, step, keys):
    plant(lambda model: model.body.__setitem__(4, nn.Linear(100, 128)))
    said = refused(train, *keys)
    assert said.startswith(f"{step} fails on sizes in model.body.4: Linear(in_features=100, out_features=128, bias=Tr")
    assert "which got 16 x 256;" in said and "mat1 and mat2 shapes cannot be multiplied (16x256 and 100x128)" in said


def test_a_loss_that_does_not_fit_is_named(train, plant):
    plant(lambda model: setattr(model, "head", nn.Sequential(model.head, nn.Unflatten(1, (2, 5)))))
    assert "in loss: CrossEntropyLoss(), which got 16 x 2 x 5, 16;" in refused(train)


def test_sizes_that_do_not_fit_outside_of_a_layer_are_named_by_their_line(train, monkeypatch):
    def step(self, batch):
        return batch[0] + torch.zeros(7), None, None

    monkeypatch.setattr(Classification, "step", step)
    said = refused(train)
    assert f"fails on sizes in line {step.__code__.co_firstlineno + 1} of {__file__};" in said


def test_an_error_of_another_kind_stays_what_it_is(train, plant):
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("a bug")

    plant(lambda model: setattr(model, "head", Broken()))
    with pytest.raises(ValueError, match="a bug"):
        train()


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
    assert said.startswith("Out of memory (")
    assert "data.batch_size=8 trainer.accumulate_grad_batches=4" in said and "trainer.precision=bf16-mixed" in said


def test_an_operator_without_deterministic_form_is_named(train, plant):
    def put(x):
        index = torch.zeros(3, dtype=torch.int64)
        return x + torch.zeros_like(x).put_(index, torch.ones(3))

    plant(lambda model: model.body.append(Function(put)))
    said = refused(train, "trainer.deterministic=true")
    assert said.startswith(
        "put_ does not have a deterministic implementation, and is called in model.body.7: Function("
    )
    assert "trainer.deterministic=warn" in said
    assert "put_" in (train("trainer.deterministic=warn", folder="warn") / "train.log").read_text()


def test_deterministic_sets_all_that_torch_needs(train, monkeypatch):
    from leyden.resume.keeper import Keeper

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
            [
                "callbacks=[early_stopping]",
                "callbacks.early_stopping.monitor=val/los",
                "callbacks.early_stopping.mode=min",
            ],
            r"Early stopping conditioned on metric `val/los` which is not available.*val/acc",
        ),
        (
            ["scheduler=plateau", "task.monitor=val/los", "scheduler.mode=min"],
            r"task\.monitor=val/los is not logged; choose one of .*val/acc",
        ),
    ],
)
def test_a_metric_that_is_not_logged_is_named(train, keys, said):
    with pytest.raises(UserError, match=said):
        train(*keys)


def test_who_does_not_take_the_optimizer_of_the_config_is_told_what_does(train, monkeypatch):
    def configure_optimizers(self):
        return self.optimizer(self.parameters())

    monkeypatch.setattr(Classification, "configure_optimizers", configure_optimizers)
    train()
    said = refused(train, "optimizer.scale_lr=true")
    assert "scale_lr" in said
    assert "leyden.tasks.configure_optimizers(self, optimizer, scheduler) takes those of the config." in said
