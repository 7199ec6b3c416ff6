"""Every config composes, and says what its keys are."""

import json
import struct
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from leyden.run import paths

CONF = paths.PROJECT / "conf"
OPTIONS = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml") if not path.stem.startswith("_"))
    for group in ("model", "data", "task", "task/loss", "optimizer", "scheduler", "trainer", "callbacks", "logger",
                  "profiler", "debug", "experiment")
}  # fmt: skip
SINGLE = [f"{group}={option}" for group, options in OPTIONS.items() for option in options]


@pytest.mark.parametrize("choice", ["", *SINGLE, "logger=[tensorboard,mlflow]", "callbacks=[]", "logger=[]"])
def test_it_composes(choice):
    keys = [
        part.replace("=", "=[", 1) + "]" if part.startswith(("callbacks=e", "logger=c")) else part
        for part in choice.split()
    ]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", keys)
    assert "_target_" in OmegaConf.to_container(cfg, resolve=False)["trainer"]


def test_every_trainer_argument_is_there():
    """The YAML is how a wrong name is known; arguments that the parts of the config fill in are left out."""
    import inspect

    from lightning import Trainer

    filled = {"logger", "callbacks", "profiler", "plugins", "default_root_dir", "self"}
    left_out = {"barebones", "enable_autolog_hparams", "model_registry"}
    arguments = set(inspect.signature(Trainer.__init__).parameters) - filled - left_out
    assert set(OmegaConf.load(CONF / "trainer" / "default.yaml")) - {"_target_"} == arguments


def test_the_command_line_wins_over_debug_and_debug_over_experiment():
    experiment = "digits_cnn"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        plain = compose("train", [f"experiment={experiment}"])
        debug = compose("train", [f"experiment={experiment}", "debug=fast"])
        typed = compose("train", [f"experiment={experiment}", "debug=fast", "trainer.max_epochs=3"])
    assert (plain.trainer.max_epochs, debug.trainer.max_epochs, typed.trainer.max_epochs)[1:] == (1, 3)
    assert plain.trainer.max_epochs > 3


# the recipes


def results(configure, *keys):
    from train import train

    cfg = configure(*keys, "threads=1", "logger=[]")
    train(cfg)
    return json.loads((Path(cfg.run_dir) / "metrics.json").read_text())


@pytest.mark.slow
def test_the_fast_digits(configure):
    assert results(configure, "experiment=digits_fast", "seed=0")["test"]["test/acc"] > 0.97


@pytest.mark.slow
def test_the_fast_mnist_takes_as_many_digits_as_there_are(configure, tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, count in ("train", 100), ("t10k", 40):
        labels = torch.arange(count) % 10
        pictures = torch.nn.functional.one_hot(labels, 28).mul(255).to(torch.uint8)[:, None].expand(count, 28, 28)
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + pictures.contiguous().numpy().tobytes())
        head = struct.pack(">II", 0x801, count)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.to(torch.uint8).numpy().tobytes())
    found = results(configure, "experiment=mnist_fast", f"data_dir='{tmp_path}'", "trainer.max_epochs=2")
    assert found["test"]["samples"] == 40


@pytest.mark.slow
def test_the_parts_of_the_fast_cifar10(configure):
    small = ["data=digits", "data.batch_size=64", "model.channels=[16,32,32,32]", "trainer.max_epochs=6"]
    found = results(configure, "experiment=cifar10_fast", *small, "optimizer.lr=0.1", "scheduler.warmup_steps=20")
    assert found["train"]["train/acc"] > 0.4  # of digits that are mirrored and cut
