"""What the tests share: a config composed as the command does it, and a run in this process."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from leyden import overrides, runs  # noqa: F401  (overrides registers the resolvers)

SMALL = ["data=fake", "data.num_samples=120", "data.shape=[1,8,8]", "data.batch_size=16", "model=mlp"]


@pytest.fixture
def configure(tmp_path):
    """A composed config whose run directory is a temporary one."""

    def make(*keys: str, config: str = "train", folder: str = "run"):
        with initialize_config_dir(str(runs.PROJECT / "conf"), version_base="1.3"):
            cfg = compose(config, list(keys))
        cfg.run_dir = str(tmp_path / folder)
        Path(cfg.run_dir).mkdir(exist_ok=True)
        return cfg

    return make


@pytest.fixture
def train(configure):
    """Train a small model in this process; returns its run directory."""

    def run(*keys: str, folder: str = "run") -> Path:
        from train import train

        cfg = configure(*SMALL, "trainer.max_epochs=2", *keys, folder=folder)
        train(cfg)
        return Path(cfg.run_dir)

    return run


@pytest.fixture
def command(tmp_path):
    """Run a script as a user does, in a process and a logs folder of its own."""

    def run(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
        line = [sys.executable, str(runs.PROJECT / "src" / script), *arguments, f"log_dir='{tmp_path / 'logs'}'"]
        return subprocess.run(line, capture_output=True, text=True, cwd=options.pop("cwd", tmp_path), **options)

    return run
