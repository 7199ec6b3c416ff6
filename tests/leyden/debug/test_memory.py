import re
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lab.tasks.classification import Classification
from leyden import UserError
from leyden.debug.memory import resident

ON = "callbacks=[memory]"


def test_each_epoch_and_stage_is_in_the_log_and_the_curves(train):
    run = train(ON)
    log = (run / "train.log").read_text()
    assert [log.count(f"memory, {stage}: resident ") for stage in ("train", "val", "test")] == [2, 2, 1]
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    assert len(board.Scalars("memory/train_resident")) == 2 and "grew" not in log


@pytest.mark.skipif(sys.platform != "linux", reason="of what is resident now, the system says nothing")
def test_what_is_resident_is_counted():
    before = resident()
    kept = torch.ones(2**26)  # 256 MiB
    assert 250 < resident() - before < 270
    del kept
    assert abs(resident() - before) < 20


@pytest.mark.slow
def test_a_list_that_grows_in_each_epoch_is_named_once(train, monkeypatch):
    """By 36 MiB, which malloc maps for itself, whatever this process has freed before."""
    step, kept = Classification.training_step, []

    def keeps(self, batch, batch_idx):
        if batch_idx == 0:
            kept.append(torch.ones(9 * 2**20))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", keeps)
    log = (train(ON, "trainer.max_epochs=8") / "train.log").read_text()
    said = r"host grew in each of the last 5 epochs, from (\d+) to (\d+) MiB: .*loss.detach"
    ((before, after),) = re.findall(said, log)
    assert 170 < int(after) - int(before) < 220


def test_another_word_is_refused(train):
    with pytest.raises(UserError, match="never or epoch"):
        train(ON, "callbacks.memory.empty_cache=often")
