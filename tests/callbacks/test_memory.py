import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden import UserError
from leyden.callbacks.memory import resident
from leyden.tasks.classification import Classification

ON = "callbacks=[memory]"


def test_each_epoch_and_stage_is_in_the_log_and_the_curves(train):
    run = train(ON)
    log = (run / "train.log").read_text()
    assert [
        len(re.findall(rf"memory, {stage}: resident \d+ MiB, allocated", log)) for stage in ("train", "val", "test")
    ] == [
        2,
        2,
        1,
    ]
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    assert len(board.Scalars("memory/train_resident")) == 2
    assert "grew" not in log and 50e6 < resident() < 100e9


@pytest.mark.slow
def test_a_list_that_keeps_graphs_is_named_with_its_slope(train, monkeypatch):
    step, kept = Classification.training_step, []

    def keeps(self, batch, batch_idx):
        loss = step(self, batch, batch_idx)
        kept.append(loss)
        return loss

    monkeypatch.setattr(Classification, "training_step", keeps)
    run = train(
        ON, "trainer.max_epochs=14", "data.num_samples=600", "model.hidden=[2048]", "trainer.limit_val_batches=1"
    )
    (said,) = re.findall(r"grew in each of the last 5 epochs, by ([\d.e+]+) MiB an epoch.*loss.detach", (
        run / "train.log"
    ).read_text())  # fmt: skip
    assert 0.05 < float(said) < 5


def test_another_word_is_refused(train):
    with pytest.raises(UserError, match="never or epoch"):
        train(ON, "callbacks.memory.empty_cache=often")
