"""Every config composes, and says what its keys are."""

import pytest
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
