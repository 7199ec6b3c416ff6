import re

import pytest
import torch
from PIL import Image

from leyden.resume import checkpoints
from leyden.run.run import Run

RATE = ["callbacks=[lr_finder]", "callbacks.lr_finder.num_training_steps=40"]
SIZE = ["callbacks=[batch_size_finder]", "callbacks.batch_size_finder.init_val=4"]


def sha(run):
    return Run(run).metrics["weights_sha256"]


@pytest.mark.slow
def test_a_rate_is_suggested_and_the_run_stays_what_it_is(train):
    run = train(*RATE, folder="found")
    (rate,) = re.findall(r"falls fastest at (\S+) .*type optimizer.lr=\1", (run / "train.log").read_text())
    assert 1e-6 < float(rate) < 1
    with Image.open(run / "lr_finder.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**6)) > 50
    assert sha(run) == sha(train(folder="plain")) and not list(run.rglob(".lr_find*"))


@pytest.mark.slow
def test_the_suggestion_is_used_when_asked(train):
    run = train(*RATE, "callbacks.lr_finder.use=true", "scheduler=constant")
    (rate,) = re.findall(r"falls fastest at (\S+) .*used in place of", (run / "train.log").read_text())
    (state,) = checkpoints.read(run / "checkpoints" / "last.ckpt")["optimizer_states"]
    assert f"{state['param_groups'][0]['initial_lr']:.2e}" == rate


@pytest.mark.slow
def test_a_size_is_suggested_and_the_run_stays_what_it_is(train):
    run = train(*SIZE, folder="found")
    assert re.search(r"batch_size_finder: \d+ samples fit; type data.batch_size=\d+, now it is 16", (
        run / "train.log"
    ).read_text())  # fmt: skip
    assert sha(run) == sha(train(folder="plain"))


@pytest.mark.slow
def test_the_size_is_used_when_asked(train):
    run = train(*SIZE, "callbacks.batch_size_finder.use=true", "callbacks.batch_size_finder.max_val=32")
    assert "32 samples fit; used in place of 16" in (run / "train.log").read_text()
    assert Run(run).record["effective_batch"] == 32
    last = checkpoints.read(run / "checkpoints" / "last.ckpt")
    assert 32 in [state.get("size") for state in last["callbacks"].values()]
    assert last["leyden"]["batch_size"] == 16  # as asked for, which a run that goes on is compared with
    assert last["global_step"] == last["leyden"]["total_steps"]
    assert torch.is_tensor(last["state_dict"]["model.head.weight"])
