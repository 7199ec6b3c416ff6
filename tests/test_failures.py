"""Errors of torch in a step, planted, and the sentence that comes of each."""

import pytest
from torch import nn

from leyden import UserError
from leyden.models.mlp import MLP


@pytest.fixture
def plant(monkeypatch):
    """Change the MLP when it is built."""

    def fault(change):
        build = MLP.__init__

        def init(self, *arguments, **keywords):
            build(self, *arguments, **keywords)
            change(self)

        monkeypatch.setattr(MLP, "__init__", init)

    return fault


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
