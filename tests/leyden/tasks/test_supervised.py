from functools import partial

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import nn

from lab.models.cnn import CNN
from lab.models.rnn import RNN
from lab.models.transformer import Transformer
from lab.tasks.classification import Classification
from lab.tasks.regression import Regression
from leyden import UserError
from leyden.run import configs
from leyden.run.run import Run
from leyden.tasks import configure_optimizers, supervised
from leyden.tasks.optimizers import Frozen, decayed, make_callable
from leyden.tasks.preprocess import Standardize


def classification(model, **options):
    options.setdefault("optimizer", partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1))
    preprocess = Standardize("table", [0.0], [1.0])
    return Classification(
        num_classes=3,
        model=model,
        preprocess=preprocess,
        loss=nn.CrossEntropyLoss(),
        scheduler=None,
        **options,
    )


def test_decay_is_for_matrices_and_kernels():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.linear = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 3)
            self.embedding, self.rnn = nn.Embedding(4, 2), nn.GRU(2, 2)
            self.tied = self.linear
            self.position_embedding = nn.Parameter(torch.zeros(1, 4, 2))

    task = classification(Model())
    names = {id(p): name for name, p in task.named_parameters()}
    found = {names[id(p)].removeprefix("model.") for p in decayed(task)}
    assert found == {"conv.weight", "linear.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"}


@pytest.mark.slow
def test_each_parameter_is_in_one_group(configure):
    from leyden.run import build

    for model in ("mlp", "cnn", "resnet"):
        cfg = configure("data=fake", f"model={model}")
        datamodule = build.data(cfg)
        build.facts(cfg, datamodule)
        task = build.task(cfg)
        task._trainer = build.trainer(cfg, [])
        task.scheduler = partial(torch.optim.lr_scheduler.ConstantLR)  # which asks no loader for the steps
        optimizer = task.configure_optimizers()["optimizer"]
        grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(grouped) == sorted({id(p) for p in task.parameters()})
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
        assert optimizer.defaults["fused"] is True


def test_epoch_means_weigh_samples(train):
    """The last batch is smaller than the others; the mean over samples must not be the mean over batches."""
    from leyden.resume import checkpoints
    from leyden.run import build

    run = train("trainer.max_epochs=1", "data.drop_last=false")
    metrics = Run(run).metrics
    cfg = configs.stored(run)
    cfg.run_dir = str(run)
    datamodule, task = build.data(cfg), build.task(cfg)
    task.load_state_dict(checkpoints.read(run / "checkpoints" / "last.ckpt")["state_dict"])
    task.eval()
    samples = datamodule.splits["val"]
    assert len(samples) % 16
    with torch.inference_mode():
        logits = task(samples.x.float() / 255)
    assert metrics["val"]["val/loss"] == pytest.approx(nn.functional.cross_entropy(logits, samples.y).item(), rel=1e-5)
    assert metrics["val"]["val/acc"] == pytest.approx((logits.argmax(1) == samples.y).double().mean().item(), rel=1e-6)


def test_metrics_of_several_batches_at_once_are_those_of_each(monkeypatch):
    task = classification(nn.Identity())
    monkeypatch.setattr(supervised, "AT_ONCE", 80)  # outputs: of about three batches
    expected = task.val_metrics.clone()
    for _ in range(4):
        outputs, y = torch.randn(4, 3, 3), torch.randint(3, (4, 3))
        monkeypatch.setattr(task, "step", lambda batch: (torch.ones(()), *batch))
        task.evaluate((outputs, y), "val")
        expected.update(outputs, y)
    task.update_metrics("val")
    assert task.val_metrics.compute() == expected.compute() and task.kept == []
    assert float(task.sums["val"][0]) == task.sums["val"][-1] == 16


def test_l1_is_that_of_the_decayed_parameters():
    task = classification(nn.Linear(4, 3), l1=0.5)
    expected = 1 + 0.5 * task.model.weight.abs().sum()
    assert torch.allclose(task.penalised(torch.tensor(1.0), 8), expected)


@pytest.mark.parametrize("scheduler", ["constant", "onecycle"])
def test_the_rate_follows_the_factor(train, scheduler):
    import csv
    from functools import partial as fill

    from lab import schedules

    run = train(f"scheduler={scheduler}", "trainer.log_every_n_steps=1", "trainer.accumulate_grad_batches=2")
    with open(run / "metrics.csv") as file:
        rates = [float(row["lr"]) for row in csv.DictReader(file) if row["lr"]]
    factor = fill(getattr(schedules, scheduler))
    assert len(rates) == 6  # 5 batches of 84 samples make 3 steps, in 2 epochs
    assert rates == pytest.approx([3e-3 * factor(step, 6) for step in range(6)])


@pytest.mark.parametrize(
    "scheduler",
    [
        ["scheduler=plateau", "scheduler.patience=0"],
        ["~scheduler", "+scheduler={_target_:torch.optim.lr_scheduler.ExponentialLR,_partial_:true,gamma:0.5}"],
        ["~scheduler", "+scheduler={_target_:torch.optim.lr_scheduler.OneCycleLR,_partial_:true,max_lr:0.1}"],
    ],
)
def test_torch_schedulers_work(train, scheduler):
    assert (train(*scheduler) / "checkpoints" / "last.ckpt").exists()


# second-order gradients


def trained(task):
    """A task in training, with the trainer that its step looks at."""
    task._trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    return task.train()


def gradients(task, batch):
    task.zero_grad()
    loss = task.training_step(batch, 0)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in task.named_parameters()}


def test_gradient_penalty_of_a_linear_classifier_is_the_closed_form():
    """The gradient of a sample's cross-entropy in x is W^T (probs - onehot)."""
    model = nn.Linear(4, 3)
    x, y = torch.randn(10, 4), torch.arange(10) % 3
    loss, found = gradients(trained(classification(model, gradient_penalty=0.7)), (x, y))
    probs = model(x).softmax(1) - nn.functional.one_hot(y, 3)
    expected = nn.functional.cross_entropy(model(x), y) + 0.7 * (probs @ model.weight).square().sum(1).mean()
    assert torch.allclose(loss, expected)
    for gradient, value in zip(found.values(), torch.autograd.grad(expected, [*model.parameters()]), strict=True):
        assert torch.allclose(gradient, value, atol=1e-6)


def test_gradient_penalty_of_least_squares_is_the_closed_form():
    """In what the model sees, which is standardised: the gradient of (w z + b - t)^2 is 2 (w z + b - t) w."""
    model, options = nn.Linear(4, 1), {"loss": nn.MSELoss(), "optimizer": None, "scheduler": None}
    preprocess = Standardize("table", [1.0] * 4, [5.0] * 4)
    task = Regression([2.0], [3.0], model=model, preprocess=preprocess, gradient_penalty=0.2, **options)
    x, y = torch.randn(10, 4), torch.randn(10)
    residual = model((x - 1) / 5).squeeze(1) - (y - 2) / 3
    expected = residual.square().mean() + 0.2 * (4 * residual.square() * model.weight.square().sum()).mean()
    loss, found = gradients(trained(task), (x, y))
    assert torch.allclose(loss, expected)
    for gradient, value in zip(found.values(), torch.autograd.grad(expected, [*model.parameters()]), strict=True):
        assert torch.allclose(gradient, value, atol=1e-6)


@pytest.mark.parametrize("kind", ["cnn", "gru", "lstm", "transformer"])
def test_gradient_penalty_has_the_gradient_of_finite_differences(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64), torch.tensor([5, 4, 5, 2, 1, 3])
    if kind == "cnn":
        x = torch.randn(6, 1, 8, 8, generator=generator, dtype=torch.float64)
        model = CNN([1, 8, 8], 3, channels=[4], dropout=0.0, activation="gelu")
    elif kind == "transformer":
        model = Transformer([None, 3], 3, width=8, layers=1, heads=2, dropout=0.0)
    else:
        model = RNN([None, 3], 3, cell=kind, hidden=4)
    task = trained(classification(model, gradient_penalty=1.0)).double()
    batch = (x, torch.arange(6) % 3)
    loss, found = gradients(task, batch)
    assert loss > gradients(trained(classification(model)).double(), batch)[0]
    ways = {name: torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in task.named_parameters()}
    losses = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for name, parameter in task.named_parameters():
                parameter += step * ways[name]
        losses.append(task.training_step(batch, 0).item())
    slope = sum((found[name] * way).sum().item() for name, way in ways.items())
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(slope, rel=1e-4)


def test_gradient_penalty_does_not_depend_on_the_batch_size():
    task = trained(classification(nn.Linear(4, 3), gradient_penalty=1.0))
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    assert torch.allclose(task.training_step((x, y), 0), task.training_step((x.repeat(5, 1), y.repeat(5)), 0))


def test_a_compiled_model_has_no_gradient_penalty():
    with pytest.raises(UserError, match=r"task\.compile=false"):
        classification(nn.Linear(4, 3), gradient_penalty=1.0, compile=True)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["task.optimizer=1.5"], "`optimizer` must be a class or a function with `_partial_: true`; got `1.5`"),
        (["task.scheduler=abc"], "`scheduler` must be a class or a function with `_partial_: true`; got `abc`"),
        (["task.model=off"], "`task.model` must be a module with a `_target_`; got `off`"),
        (["task.l1={sub:1}"], "cannot be built: float.. argument must be"),
        (["task.classes='*'"], r"cannot be built: `classes` must be 10 names; got `\*`"),
    ],
)
def test_what_makes_no_task_is_named(train, keys, sentence):
    with pytest.raises(UserError, match=sentence):
        train(*keys)


def test_the_rate_grows_with_the_joint_batch(train):
    run = train("optimizer=sgd", "optimizer.lr=0.1", "optimizer.scale_lr=true", "trainer.accumulate_grad_batches=2",
                "scheduler=constant", "scheduler.warmup_steps=0")  # fmt: skip
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["optimizer_states"][0]["param_groups"][0]["lr"] == 0.2


class Plain(LightningModule):
    """A task of a user's own, which takes optimizer and schedule from the config in one line."""

    def __init__(self, optimizer, scheduler):
        super().__init__()
        self.layer, self.parts = nn.Linear(3, 1), (optimizer, scheduler)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return configure_optimizers(self, *self.parts)


def test_any_task_takes_optimizer_and_schedule_of_the_config_in_one_line(tmp_path):
    optimizer = partial(torch.optim.SGD, lr=0.5, weight_decay=0.1, fused="auto", scale_lr=True)
    task = Plain(optimizer, partial(lambda step, total, floor: max(1 - step / total, floor), floor=0.25))
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(task, torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=2))
    groups = trainer.optimizers[0].param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0] and groups[0]["fused"]
    assert [group["initial_lr"] for group in groups] == [1.0, 1.0]  # of two batches in each step
    assert [group["lr"] for group in groups] == [0.25, 0.25]  # after all four steps


def test_a_task_may_call_the_optimizer_of_the_config_itself():
    task = Plain(None, None)
    task.optimizer = partial(torch.optim.SGD, lr=0.5, fused="auto", scale_lr=False)
    task.typed = partial(torch.optim.SGD, lr=0.5, fused="auto", scale_lr=True)
    make_callable(task)
    assert task.optimizer(task.parameters()).defaults["lr"] == 0.5
    with pytest.raises(TypeError, match="scale_lr"):
        task.typed(task.parameters())


def test_a_frozen_part_stays_out_of_the_optimizer_and_there_may_be_no_schedule(configure):
    from leyden.run import build

    task = Plain(partial(torch.optim.SGD, lr=0.5, weight_decay=0.1), None)
    task.teacher = Frozen(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()))
    task._trainer = build.trainer(configure(), [])
    (made,) = task.configure_optimizers().values()
    assert [parameter for group in made.param_groups for parameter in group["params"]] == [*task.layer.parameters()]
    assert decayed(task) == [task.layer.weight]
    assert task.train().training and not any(module.training for module in task.teacher.modules())
