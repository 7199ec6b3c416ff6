"""What a command line comes to, before anything is trained."""

import os
import socket

import pytest

from leyden.launch.plan import plan
from leyden.run.run import Busy, Run, Status, process_start_time


@pytest.mark.parametrize("typed", [["name=a"], ["resume=a"], ["resume=a", "trainer.max_epochs=30"]], ids=" ".join)
def test_a_run_that_is_alive_is_said_to_be_so_before_its_config_is_there(tmp_path, typed):
    run = Run(tmp_path / "train" / "a")
    run.directory.mkdir(parents=True)
    process = {"host": socket.gethostname(), "pid": os.getpid(), "pid_born": process_start_time(os.getpid())}
    run.update(status=Status.RUNNING, **process)
    with pytest.raises(Busy, match=rf"is being run by another process \(process {os.getpid()} on"):
        plan([*typed, f"log_dir='{tmp_path}'"], "train")
    assert [file.name for file in run.directory.iterdir()] == ["run.json"]
