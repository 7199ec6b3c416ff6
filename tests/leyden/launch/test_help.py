"""--help names what can be typed, without waiting for Hydra."""

import subprocess
import sys

import pytest

from leyden.launch import overrides
from leyden.launch.help import show_help
from leyden.launch.line import split
from leyden.run import paths

CONF = paths.PROJECT / "conf"


@pytest.mark.parametrize("config", ["train", "eval", "benchmark"])
def test_it_offers_options_keys_and_examples_within_100_columns(config):
    text = show_help(config, CONF)
    assert all(len(line) <= 100 for line in text.splitlines() if "#" not in line)  # the YAML's own lines
    assert "default*" in text and "_loader" not in text and "log_dir: logs" in text
    assert len(text.partition("Examples\n")[2].splitlines()) == 5


def test_a_config_that_inherits_has_the_groups_and_keys_of_both():
    text = show_help("benchmark", CONF)
    assert "cnn*" in text and "objective: val/acc" in text and "rounds: 5" in text


@pytest.mark.parametrize("config", ["train", "benchmark"])
def test_its_examples_are_right(config):
    for line in show_help(config, CONF).partition("Examples\n")[2].splitlines():
        overrides.compose(split(line.split()[2:], config), CONF)


def test_hydra_is_not_imported():
    code = (
        "import sys; from pathlib import Path; from leyden.launch.help import show_help\n"
        "show_help('train', Path(sys.argv[1])); assert not {'hydra', 'omegaconf', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(CONF)], check=True, cwd=CONF.parent / "src")
