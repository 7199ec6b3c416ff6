import math
import signal
from pathlib import Path

import pytest

from lab.tasks.classification import Classification
from leyden import UserError
from leyden.resume import checkpoints
from leyden.resume.stopping import Guard, Stop
from leyden.run.run import Run


def test_a_warning_that_comes_twice_is_one_warning():
    stop = Stop()
    for _ in range(2):
        stop.notice(signal.SIGUSR2, None)
    assert stop.number == signal.SIGUSR2
    with pytest.raises(SystemExit):
        stop.notice(signal.SIGTERM, None)


@pytest.fixture
def sick(monkeypatch):
    """The loss of step 8 (counted from 1) is not finite."""
    step = Classification.training_step

    def training_step(self, batch, batch_idx):
        loss = step(self, batch, batch_idx)
        return loss * math.nan if self.trainer.global_step == 7 else loss

    monkeypatch.setattr(Classification, "training_step", training_step)


def test_a_loss_that_is_no_number_stops_before_the_weights_change(train, configure, sick):
    with pytest.raises(UserError, match=r"loss is nan at step 8 .epoch 2, batch 3.; .*callbacks=.finite."):
        train("checkpoint.every_n_steps=1", "trainer.max_epochs=3")
    run = Path(configure().run_dir)
    record = Run(run).record
    assert record["status"] == "failed" and "step 8" in record["reason"]
    last = checkpoints.read(run / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 7
    assert all(value.isfinite().all() for value in last["state_dict"].values() if value.is_floating_point())


def test_where_the_host_does_not_wait_nothing_sick_is_saved(train, configure, sick, monkeypatch):
    """As on an accelerator: the flag is read when it is logged."""
    monkeypatch.setattr(Guard, "waits", staticmethod(lambda loss: True))
    with pytest.raises(UserError, match="not finite at step 10"):
        train("trainer.log_every_n_steps=5", "trainer.max_epochs=3")
    last = checkpoints.read(Path(configure().run_dir) / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 5
    assert all(value.isfinite().all() for value in last["state_dict"].values() if value.is_floating_point())
