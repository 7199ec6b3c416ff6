import os
import socket
import subprocess
import sys

from leyden.run import life, runs


def test_who_is_alive(tmp_path, monkeypatch):
    mine = {"status": "running", "host": socket.gethostname(), "pid": os.getpid(), "pid_born": life.born(os.getpid())}
    assert life.alive(mine) and not life.alive(mine | {"status": "stopped"})
    assert not life.alive(mine | {"pid_born": "another process of the same number"})
    gone = subprocess.Popen([sys.executable, "-c", ""])
    born = life.born(gone.pid)
    gone.wait()
    assert not life.alive(mine | {"pid": gone.pid, "pid_born": born})
    far = {"status": "running", "host": "elsewhere", "heartbeat": runs.now(), "slurm": {"job": "7", "restarts": 0}}
    assert life.alive(far) and not life.alive(far | {"heartbeat": "2026-01-01T00:00:00+00:00"})
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # the job was requeued, so its first start is over
    assert not life.alive(far)
