"""The bare loop does the Trainer's work, and nothing is timed that should not be."""

import pytest
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from conftest import SMALL
from leyden import UserError
from leyden.debug import timing
from leyden.run import build, process

CPU = torch.device("cpu")
QUIET = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False, "num_sanity_val_steps": 0,
}  # fmt: skip


class Bare(Callback):
    """Trains one epoch by the bare loop, in the Trainer's place."""

    def on_train_start(self, trainer, task):
        ready = (trainer.strategy.batch_to_device(raw, dataloader_idx=0) for raw in trainer.train_dataloader)
        timing.train(trainer, task, ready)
        trainer.should_stop = True


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["trainer.precision=bf16-mixed", "trainer.gradient_clip_val=0.1", "trainer.gradient_clip_algorithm=value"],
        ["trainer.accumulate_grad_batches=5", "trainer.gradient_clip_val=0.1", "task.l1=0.01"],
        ["scheduler=constant", "optimizer=sgd", "task.gradient_penalty=0.1"],
        ["data.augment=[{_target_: leyden.data.augment.HorizontalFlip}]"],
    ],
)
def test_the_bare_loop_ends_with_the_weights_of_the_trainer(configure, keys):
    cfg = configure(
        *SMALL, "model.dropout=0", "trainer.max_epochs=1", "trainer.limit_val_batches=0", "logger=[]", *keys
    )
    build.facts(cfg, build.data(cfg))
    ends = []
    for callbacks in ([], [Bare()]):
        process.set_global_torch_flags(cfg)
        task, trainer = build.task(cfg), build.trainer(cfg, callbacks)
        start = {name: value.clone() for name, value in task.state_dict().items()}
        trainer.fit(task, datamodule=build.data(cfg))
        assert trainer.global_step == (0 if callbacks else 5 // trainer.accumulate_grad_batches)
        ends.append(task.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in start)
    assert not all(torch.equal(start[name], ends[1][name]) for name in start)


def test_a_measurement_is_of_whole_epochs_after_a_short_warm_up():
    epochs = []

    def body(batches):
        epochs.append(list(batches))
        return len(epochs[-1])

    assert timing.per_step(body, lambda: iter(range(4)), 9, CPU) > 0
    assert epochs == [[0, 1, 2], *[[0, 1, 2, 3]] * 3]


def test_shares_are_of_a_trainer_s_step_and_the_ratio_is_of_rounds():
    one = {"bare": 1.0, "trainer": 2.0, "plain": 1.5, "loader": 0.2, "compute": 1.0}
    found = timing.summary([one, one | {"bare": 4.0}, one], samples=8)
    assert found["ratio"] == 0.5
    assert found["shares"] == {"compute": 0.5, "loading": 0.1, "loop": 0.15, "logging": 0.25}
    assert found["us_per_step"]["bare"] == {"median": 1e6, "min": 1e6, "max": 4e6}
    assert found["samples_per_second"]["trainer"] == 4
    assert timing.summary([one], samples=None, workers=2)["shares"]["loading"] == 0
    assert timing.table("train", found).splitlines()[-1] == "Trainer/bare 0.50"


class Foreign(LightningModule):
    """A task of another kind: batches are dicts, and the step logs."""

    def __init__(self, manual):
        super().__init__()
        self.layer, self.automatic_optimization = torch.nn.Linear(2, 1), not manual

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch["x"]).square().mean()
        self.log("train/loss", loss)
        if self.automatic_optimization:
            return {"loss": loss}
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.layer(batch["x"]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Dicts(LightningDataModule):
    def __init__(self, several=False):
        super().__init__()
        self.several = several

    def train_dataloader(self):
        loader = DataLoader([{"x": torch.ones(2)}] * 7, batch_size=2)
        return {"one": loader, "two": loader} if self.several else loader

    val_dataloader = train_dataloader


@pytest.mark.parametrize("manual", [False, True])
def test_a_task_of_another_kind_is_measured_through_its_own_steps(manual):
    task, watch = Foreign(manual), timing.Stopwatch("plain", 6, alone=True)
    trainer = Trainer(max_epochs=100, check_val_every_n_epoch=101, callbacks=[watch], **QUIET)
    trainer.fit(task, datamodule=Dicts())
    assert trainer.current_epoch == 3  # one that warms up, and two of four batches
    trainer.validate(task, datamodule=Dicts(), verbose=False)
    for split in ("train", "val"):
        assert set(watch.found[split]) == {"bare", "loader", "compute", "plain"}
        assert all(seconds > 0 for seconds in watch.found[split].values())
    assert watch.done == {"train": 8, "val": 4}
    assert "train/loss" in trainer.callback_metrics or "val/loss" in trainer.callback_metrics


def test_several_loaders_are_refused():
    trainer = Trainer(max_epochs=2, limit_val_batches=0, callbacks=[timing.Stopwatch("plain", 2, alone=True)], **QUIET)
    with pytest.raises(UserError, match="one loader"):
        trainer.fit(Foreign(False), datamodule=Dicts(several=True))
