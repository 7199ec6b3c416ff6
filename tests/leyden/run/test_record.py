import json
import logging
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning import LightningModule
from omegaconf import OmegaConf
from torch import nn

from leyden import UserError
from leyden.run import build, record
from leyden.run.run import Run


def made(cfg):
    """The task, the trainer and the data of a config."""
    data, task = build.parts(cfg)
    return task, build.trainer(cfg, []), data


@pytest.mark.parametrize(
    ("end", "status"), [("pass", "finished"), ("1 / 0", "failed"), ("raise SystemExit(143)", "stopped")]
)
def test_run_json_says_how_it_ended(configure, end, status):
    cfg = configure()
    try:
        with record.recording(cfg):
            assert Run(Path(cfg.run_dir)).record["status"] == "running"
            exec(end)
    except (ZeroDivisionError, SystemExit):
        pass
    found = json.loads((Path(cfg.run_dir) / "run.json").read_text())
    assert found["status"] == status
    assert found["pid"] == os.getpid() and found["seed"] == 42 and found["versions"]["torch"] and found["ended"]
    traceback = (Path(cfg.run_dir) / "train.log").read_text()
    assert ("ZeroDivisionError" in traceback) == (status == "failed")


def test_a_run_that_goes_on_is_left_as_it_was_until_it_begins(configure):
    cfg = configure()
    run, parts = Path(cfg.run_dir), made(cfg)
    with record.recording(cfg):
        pass
    before = {path: path.read_bytes() for path in run.iterdir()}
    cfg.resume = str(run)
    for error in (UserError("refused"), ZeroDivisionError(), SystemExit(143)):
        with pytest.raises(type(error)), record.recording(cfg):
            logging.getLogger("leyden.test").warning("refused")
            raise error
        assert {path: path.read_bytes() for path in run.iterdir()} == before
    with pytest.raises(UserError), record.recording(cfg) as found:
        found.begin(*parts)
        logging.getLogger("leyden.test").warning("going on")
        assert Run(run).record["status"] == "running"
        raise UserError("later")
    assert Run(run).record["status"] == "failed" and (run / "config.yaml").exists()
    log = (run / "train.log").read_text()
    assert "going on" in log and "later" in log and "refused" not in log


def test_changes_hold_untracked_files_too(tmp_path, monkeypatch):
    for arguments in (
        ["init", "-q"],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "größe.py").write_text("new = 1\n")
    (tmp_path / "src" / "gone").symlink_to("/nosuch")
    (tmp_path / "other.py").write_text("not = 1\n")
    monkeypatch.setattr(record, "PROJECT", tmp_path)
    assert "+new = 1" in record.changes() and "not = 1" not in record.changes()


class Pair(LightningModule):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(2, 3), nn.Linear(3, 1)


def test_what_has_no_model_is_announced_by_the_name_of_its_task(caplog):
    cfg = OmegaConf.create({"task": {"_target_": "own.Pair"}, "seed": 1})
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device="cpu"), precision="32-true")
    with caplog.at_level(logging.INFO):
        for batch in (None, 20):
            record.announce(cfg, "val/loss (min)", trainer, Pair(), batch)
    end = "on cpu, 32-true, {}seed 1, best by val/loss (min)"
    assert caplog.messages == [
        f"Pair of 13 parameters {end.format('')}",
        f"Pair of 13 parameters {end.format('20 samples a step, ')}",
    ]
