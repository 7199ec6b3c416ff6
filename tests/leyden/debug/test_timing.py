"""The bare loop does the Trainer's work, and nothing is timed that should not be."""

import pytest
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from conftest import SMALL
from leyden.debug import timing
from leyden.run import build, process

QUIET = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False, "num_sanity_val_steps": 0, "limit_val_batches": 0, "max_epochs": 100,
}  # fmt: skip


class Bare(Callback):
    """Trains one epoch by the bare loop, in the Trainer's place."""

    def on_train_start(self, trainer, task):
        step = timing.bare_step(trainer, task)
        for raw in trainer.train_dataloader:
            step(trainer.strategy.batch_to_device(raw, dataloader_idx=0))
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
        assert not self.training
        self.log("val/loss", self.layer(batch["x"]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Dicts(LightningDataModule):
    def train_dataloader(self):
        return DataLoader([{"x": torch.ones(2)}] * 7, batch_size=2)

    def val_dataloader(self):
        return DataLoader([{"x": torch.ones(2)}] * 3, batch_size=2)


@pytest.mark.parametrize(("manual", "validations"), [(False, 0), (True, 2)])
def test_a_task_of_another_kind_is_measured_through_its_own_steps(manual, validations):
    watch = timing.Stopwatch(rounds=2, steps=6)
    trainer, task = Trainer(callbacks=[watch], **QUIET | {"limit_val_batches": validations}), Foreign(manual)
    task.layer.eval()  # as a user may leave it
    trainer.fit(task, datamodule=Dicts())
    assert trainer.current_epoch == 3
    validated = {"bare validation", "Trainer validation"} if validations else set()
    assert [set(seconds) for seconds in watch.seconds] == [{*timing.ALONE, *validated}] * 3 + [set()]
    assert all(value > 0 for seconds in watch.seconds for value in seconds.values())
    assert "train/loss" in trainer.callback_metrics
