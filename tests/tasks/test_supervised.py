from functools import partial

import pytest
import torch
from torch import nn

from leyden.tasks.classification import Classification
from leyden.tasks.focal import FocalLoss
from leyden.tasks.preprocess import Standardize


def classification(model, **options):
    options.setdefault("optimizer", partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1))
    preprocess = Standardize("table", [0.0], [1.0])
    return Classification(
        num_classes=3, model=model, preprocess=preprocess, loss=nn.CrossEntropyLoss(), scheduler=None, **options
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
    decayed = {names[id(p)].removeprefix("model.") for p in task.decayed()}
    assert decayed == {"conv.weight", "linear.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"}


def test_each_parameter_is_in_one_group(configure):
    from leyden import build

    for model in ("mlp", "cnn", "resnet"):
        cfg = configure("data=fake", f"model={model}")
        datamodule = build.data(cfg)
        build.facts(cfg, datamodule)
        task = build.task(cfg)
        task._trainer = build.trainer(cfg, [])
        task.schedule = lambda optimizer: {}
        optimizer = task.configure_optimizers()["optimizer"]
        grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(grouped) == sorted({id(p) for p in task.parameters()})
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
        assert optimizer.defaults["fused"] is True


def test_focal_loss_is_cross_entropy_at_gamma_zero():
    logits, y = torch.randn(8, 5), torch.arange(8) % 5
    assert torch.allclose(FocalLoss(0)(logits, y), nn.functional.cross_entropy(logits, y))
    assert FocalLoss(2)(logits, y) < nn.functional.cross_entropy(logits, y)


@pytest.mark.parametrize("kind", ["image", "table", "sequence"])
def test_standardize_by_channel(kind):
    module = Standardize(kind, [1.0, 2.0], [2.0, 4.0])
    x = torch.randn(3, 2, 4, 4) if kind == "image" else torch.randn(3, 2) if kind == "table" else torch.randn(3, 5, 2)
    last = x.movedim(1, -1) if kind == "image" else x
    expected = (last - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])
    found = module((x, torch.tensor([5, 5, 5])))[0] if kind == "sequence" else module(x)
    assert torch.allclose(found.movedim(1, -1) if kind == "image" else found, expected)
    assert set(module.state_dict()) == {"mean", "std"}


def test_epoch_means_weigh_samples(train):
    """The last batch is smaller than the others; the mean over samples must not be the mean over batches."""
    from leyden import build, checkpoints, runs

    run = train("trainer.max_epochs=1", "data.drop_last=false")
    metrics = runs.read_json(run / "metrics.json")
    cfg = runs.stored(run)
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


def test_l1_shrinks_weights(train):
    from leyden import checkpoints

    def norm(run):
        state = checkpoints.read(run / "checkpoints" / "last.ckpt")["state_dict"]
        return sum(value.abs().sum() for name, value in state.items() if name.startswith("model") and value.ndim > 1)

    assert norm(train("task.l1=0.01", folder="l1")) < norm(train(folder="plain"))


@pytest.mark.parametrize("scheduler", ["constant", "cosine", "onecycle", "step"])
def test_the_rate_follows_the_factor(train, scheduler):
    import csv
    from functools import partial as fill

    from leyden import schedules

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
