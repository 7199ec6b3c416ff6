"""What a command line comes to, before anything is trained."""

import os
import re
import shlex
import socket

import pytest

from leyden import UserError
from leyden.launch.plan import plan
from leyden.run.run import Busy, Run, Status, process_start_time


@pytest.mark.parametrize("typed", [["name=a"], ["resume=a"], ["resume=a", "trainer.max_epochs=30"]], ids=" ".join)
def test_a_run_that_is_alive_is_said_to_be_so_before_its_config_is_there(tmp_path, typed):
    run = Run(tmp_path / "train" / "a")
    run.directory.mkdir(parents=True)
    process = {"host": socket.gethostname(), "pid": os.getpid(), "pid_born": process_start_time(os.getpid())}
    run.update(status=Status.RUNNING, **process)
    with pytest.raises(Busy, match=rf"is being run by process {os.getpid()} on"):
        plan([*typed, f"log_dir='{tmp_path}'"], "train")
    assert [file.name for file in run.directory.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (["seed=1"], ["seed=2"], "(seed=1 seed=2)"),
        (["seed=1"], ["seed=1", "note=b"], "(note=b)"),
        (["seed=1", "note='a b'"], ["seed=1"], "(note='a b')"),
    ],
)
def test_only_what_differs_is_named_of_other_overrides(tmp_path, then, now, words):
    run, where = Run(tmp_path / "train" / "a"), ["name=a", f"log_dir='{tmp_path}'"]
    run.checkpoints.mkdir(parents=True)
    run.last.touch()
    run.update(status=Status.STOPPED, command=shlex.join(["python", "src/train.py", *then, *where]))
    with pytest.raises(UserError, match=re.escape(f"had other overrides {words}; type another name")):
        plan([*now, *where], "train")
