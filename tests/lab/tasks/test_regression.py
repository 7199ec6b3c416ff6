from pathlib import Path

import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import nn

from lab.tasks.regression import R2, Regression
from leyden import UserError
from leyden.run import configs
from leyden.run.run import Run
from leyden.tasks.preprocess import Standardize


@pytest.fixture
def fitted(configure):
    """A run of two epochs on the diabetes data."""

    def run(*keys):
        from train import train

        cfg = configure("data=diabetes", "task=regression", "model=mlp", "trainer.max_epochs=2", *keys)
        train(cfg)
        return Path(cfg.run_dir)

    return run


def regression(model, mean, std, loss=None):
    preprocess = Standardize("table", [0.0], [1.0])
    loss = loss or nn.MSELoss()
    return Regression(mean, std, model=model, preprocess=preprocess, loss=loss, optimizer=None, scheduler=None)


def loaded(run):
    from leyden.resume import checkpoints
    from leyden.run import build

    cfg = configs.stored(run)
    cfg.run_dir = str(run)
    task = build.task(cfg).eval()
    task.load_state_dict(checkpoints.read(run / "checkpoints" / "best.ckpt")["state_dict"])
    return task, build.data(cfg)


def test_metrics_are_those_of_sklearn_in_the_unit_of_the_target(fitted):

    run = fitted("data.batch_size=16")
    task, datamodule = loaded(run)
    test = datamodule.splits["test"]
    with torch.inference_mode():
        preds = task.readout()(task(test.x)).squeeze(1)
    found = Run(run).metrics["test"]
    for name, metric in {"mse": mean_squared_error, "mae": mean_absolute_error, "r2": r2_score}.items():
        assert found[f"test/{name}"] == pytest.approx(metric(test.y, preds), rel=1e-5)
    assert found["test/loss"] == pytest.approx(found["test/mse"] / float(task.target_std) ** 2, rel=1e-5)
    assert 100 < preds.mean() < 200  # not a standardised value


def test_the_moments_of_the_target_travel_in_the_checkpoint(fitted):
    task, datamodule = loaded(fitted())
    y = datamodule.splits["train"].y.double()
    assert float(task.target_mean) == pytest.approx(float(y.mean()))
    assert float(task.target_std) == pytest.approx(float(y.std(correction=0)))
    assert {"target_mean", "target_std"} <= set(task.state_dict())


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_losses(fitted, loss):
    assert (fitted(f"task/loss={loss}") / "checkpoints" / "best.ckpt").exists()


def test_a_perfect_model_has_no_loss_whatever_the_unit():
    """Far from zero and of another scale for each output, where float32 would cancel."""
    mean, std = [1e6, -3.0], [2.0, 1e-3]
    task = regression(nn.Identity(), mean, std)
    outputs = torch.randn(64, 2)
    y = outputs.double() * torch.tensor(std) + torch.tensor(mean)
    loss, preds, targets = task.step((outputs, y))
    assert float(loss) < 1e-9
    metrics = task.val_metrics
    metrics.update(preds, targets)
    assert set(metrics.compute()) == {"val/mse", "val/mae", "val/r2_uniform"}
    assert metrics.compute()["val/r2_uniform"] > 1 - 1e-6
    assert torch.allclose(task.readout()(outputs).double(), y)


def test_r2_far_from_zero():
    y = 2000 + torch.randn(200, generator=torch.Generator().manual_seed(0))
    task = regression(nn.Identity(), [2000.0], [1.0])
    outputs = (y[:, None] - 2000) * 0.5
    _, preds, targets = task.step((outputs, y))
    task.val_metrics.update(preds, targets)
    expected = r2_score(y.double(), (outputs.squeeze(1) + 2000).double())
    assert float(task.val_metrics.compute()["val/r2"]) == pytest.approx(expected, rel=1e-4)


def test_r2_of_one_sample_is_not_a_number():
    metric = R2()
    metric.update(torch.ones(1, 1), torch.ones(1, 1))
    assert metric.compute().isnan()


@pytest.mark.parametrize(("outputs", "targets"), [((8, 2), (8,)), ((8, 3), (8, 2)), ((8, 1), (8, 2)), ((8,), (8,))])
def test_shapes_are_never_broadcast(outputs, targets):
    task = regression(nn.Identity(), [0.0] * (targets[1:] or (1,))[0], [1.0] * (targets[1:] or (1,))[0])
    task.preprocess = nn.Identity()
    with pytest.raises(UserError, match="num_classes"):
        task.step((torch.zeros(outputs), torch.zeros(targets)))


def test_one_target_may_have_a_dimension_of_its_own():
    task = regression(nn.Linear(3, 1), [0.5], [2.0])
    x, y = torch.randn(8, 3), torch.randn(8)
    assert torch.equal(task.step((x, y))[0], task.step((x, y[:, None]))[0])


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        (["data=diabetes", "model=mlp"], "type task=regression"),
        (["data=diabetes"], "type task=regression"),  # and then that the model does not fit
        (["data=digits", "task=regression"], "type task=classification"),
        (["data=fake", "task=regression", "model=cnn"], "type task=classification"),
        (["data=ink", "task=regression", "model=rnn"], "type task=classification"),
    ],
)
def test_a_task_that_does_not_fit_the_data_is_named(configure, keys, fix):
    from leyden.run import build

    cfg = configure(*keys)
    build.facts(cfg, build.data(cfg))
    with pytest.raises(UserError, match=fix):
        build.task(cfg)


def test_the_objective_is_an_error_to_make_small(configure):
    cfg = configure("data=diabetes", "task=regression")
    assert cfg.objective == cfg.checkpoint.monitor == "val/mse" and cfg.checkpoint.mode == "min"
    assert configure("task=regression", "objective=val/r2").checkpoint.mode == "max"


def test_targets_that_are_far_from_zero_stay_apart():
    y = 1_700_000_000 + torch.arange(210, dtype=torch.float64) % 21
    task = regression(nn.Linear(1, 1), [float(y.mean())], [float(y.std())])
    _, preds, centred = task.step((torch.zeros(210, 1), y))
    assert preds.dtype == centred.dtype == torch.float32 and len(centred.unique()) == 21
    assert task.readout()(centred / task.target_std).squeeze(1).tolist() == pytest.approx(y.tolist(), abs=1e-4)
