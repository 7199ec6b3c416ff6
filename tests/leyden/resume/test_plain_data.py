"""What of a checkpoint is plain data, and what is not."""

from collections import namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf, open_dict

from conftest import SMALL
from foreign.habit import Habit
from leyden.resume import checkpoints, plain_data
from leyden.run.run import Run


def test_plain_hyper_parameters_stay_and_objects_go():
    lr, conf = {"warmup": [1, 2.5, None, True]}, OmegaConf.create({"a": 1, "b": "${a}", "c": [1]})
    given = {"width": 3, "lr": lr, "conf": conf, "mean": np.float64(0.5), "net": torch.nn.Linear(1, 1),
             "optimizer": partial(torch.optim.SGD), "mixed": [1, partial(int)], "root": Path("x")}  # fmt: skip
    checkpoint = {
        "hyper_parameters": given,
        "hparams_type": type(conf),
        "datamodule_hyper_parameters": {"data": object()},
    }
    assert plain_data.leave_out(checkpoint) == ["net", "optimizer", "mixed", "root", "data"]
    kept = {"width": 3, "lr": lr, "conf": {"a": 1, "b": 1, "c": [1]}, "mean": 0.5}
    assert checkpoint == {"hyper_parameters": kept, "datamodule_hyper_parameters": {}}
    assert type(checkpoint["hyper_parameters"]["mean"]) is float and "net" in given  # the module keeps its own
    assert plain_data.loads(checkpoint) and plain_data.leave_out(checkpoint) == []


def test_a_config_as_hyper_parameters_becomes_plain():
    checkpoint = {"hyper_parameters": OmegaConf.create({"a": 1, "b": {"c": "${a}"}, "missing": "???"})}
    assert plain_data.leave_out(checkpoint) == ["missing"]
    assert type(checkpoint["hyper_parameters"]["b"]) is dict and checkpoint["hyper_parameters"]["b"] == {"c": 1}


Point = namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("checkpoint", "where", "source"),
    [
        ({"callbacks": {"Stats": {"root": Path("x")}}}, "callbacks.Stats.root is a pathlib", "of this callback"),
        (
            {"state_dict": {}, "mine": [1, {"at": Point(1)}]},
            "mine.1.at is a test_plain_data.Point",
            "on_save_checkpoint",
        ),
        ({"lr_schedulers": [{"factor": np.arange(2)}]}, "lr_schedulers.0.factor is a numpy.ndarray", "scheduler"),
    ],
)
def test_what_cannot_be_loaded_is_named(checkpoint, where, source):
    said = plain_data.fault({"epoch": 1, **checkpoint})
    assert said.startswith(where) and source in said


def test_what_can_be_loaded_has_no_fault():
    assert plain_data.fault({"a": torch.ones(2), "b": [1, "x", None, {"c": (1.0, True)}]}) == ""


def test_a_module_that_saves_all_its_arguments_is_tested_and_goes_on(configure):
    from train import train

    cfg = configure(*SMALL, "trainer.max_epochs=1", "scheduler=constant")
    parts = {name: f"${{{source}}}" for name, source in
             (("net", "model"), ("optimizer", "optimizer"), ("scheduler", "scheduler"))}  # fmt: skip
    with open_dict(cfg):
        cfg.task = {"_target_": "foreign.habit.Habit", **parts, "width": 5}
    train(cfg)
    run = Path(cfg.run_dir)
    record, metrics = Run(run).record, Run(run).metrics
    assert record["status"] == "finished" and metrics["test"]["test/acc"] >= 0
    assert record["hyper_parameters_left_out"] == ["net", "optimizer", "scheduler"]
    assert (run / "train.log").read_text().count("The checkpoints hold no net, optimizer, scheduler") == 1

    best = run / "checkpoints" / "best.ckpt"
    loaded = Habit.load_from_checkpoint(best, net=instantiate(cfg.model), optimizer=None, scheduler=None)
    assert loaded.hparams.width == 5
    saved = checkpoints.read(best)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in loaded.state_dict().items())

    again = OmegaConf.load(run / "config.yaml")
    again.update({"run_dir": str(run), "resume": str(run), "trusted": ["foreign"]})
    again.trainer.max_epochs = 2
    train(again)
    assert checkpoints.read(run / "checkpoints" / "last.ckpt")["global_step"] == 2 * metrics["best"]["step"]
