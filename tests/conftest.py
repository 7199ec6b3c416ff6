"""What the tests share: a config composed as the command does it, and a run in this process."""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from leyden.launch import overrides, ranks  # noqa: F401  (registers the resolvers)
from leyden.run import paths

os.environ["LEYDEN_LOCAL"] = "none"  # what conf/local says of this machine turns no test red
RULES = ("test_layout.py", "test_readme.py")  # of what is handed in here: run where they are named, as in `make check`
SMALL = ["data=fake", "data.num_samples=120", "data.shape=[1,8,8]", "data.batch_size=16", "model=mlp"]


def pytest_ignore_collect(collection_path, config):
    named = any(rule in argument for rule in RULES for argument in config.args)
    return True if collection_path.name in RULES and not named else None


@pytest.fixture
def configure(tmp_path):
    """A composed config whose run directory is a temporary one."""

    def make(*keys: str, config: str = "train", folder: str = "run"):
        with initialize_config_dir(str(paths.PROJECT / "conf"), version_base="1.3"):
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

        cfg = configure(*SMALL, "logger=[]", "trainer.max_epochs=2", *keys, folder=folder)
        train(cfg)
        return Path(cfg.run_dir)

    return run


@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    """A logs folder for `trained` and `typed`."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def trained(logs):
    """Train a run once for all tests, in this process; returns its directory."""

    def run(name: str, *keys: str) -> Path:
        from train import train

        folder = logs / "train" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            with initialize_config_dir(str(paths.PROJECT / "conf"), version_base="1.3"):
                cfg = compose("train", ["trainer.max_epochs=1", "logger=[]", "threads=1", *keys])
            cfg.run_dir = str(folder)
            train(cfg)
        return folder

    return run


@pytest.fixture
def script(monkeypatch, capsys):
    """Run a script as typed, in this process, which has imported torch; returns status, output and errors."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(paths.PROJECT / "src" / name), *arguments])
        handlers = {number: signal.getsignal(number) for number in ranks.SIGNALS}
        capsys.readouterr()
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as left:
            status = left.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def typed(logs, script):
    """As `script`, on the runs of this module."""
    return lambda name, *arguments: script(name, *arguments, f"log_dir='{logs}'")


@pytest.fixture
def plant(monkeypatch):
    """Change the MLP when it is built."""
    from lab.models.mlp import MLP

    def fault(change):
        build = MLP.__init__

        def init(self, *arguments, **keywords):
            build(self, *arguments, **keywords)
            change(self)

        monkeypatch.setattr(MLP, "__init__", init)

    return fault


@pytest.fixture
def command(tmp_path):
    """Run a script as a user does, in a process and a logs folder of its own."""

    def run(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
        line = [sys.executable, str(paths.PROJECT / "src" / script), *arguments, f"log_dir='{tmp_path / 'logs'}'"]
        return subprocess.run(line, capture_output=True, text=True, cwd=options.pop("cwd", tmp_path), **options)

    return run
