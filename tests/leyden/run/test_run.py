import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from leyden import UserError
from leyden.files import read_json, write_json
from leyden.run import loggers, paths
from leyden.run.run import Run, Status, alive, now, process_start_time, slurm_requeue, status_of


def test_launches_of_one_moment_get_directories_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: paths.create(tmp_path), range(64)))
    assert len(set(made)) == 64
    assert not any(set(path.name) & set("=:, ") for path in made)


def test_a_name_is_used_once(tmp_path):
    paths.create(tmp_path, "exp1")
    with pytest.raises(UserError, match="exp1"):
        paths.create(tmp_path, "exp1")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="log_dir"):
        paths.create(tmp_path / "file")


def test_latest_is_the_newest_start(tmp_path):
    with pytest.raises(UserError, match="no run"):
        paths.find("latest", tmp_path)
    for name, started in (("b", "2026-01-02"), ("a", "2026-01-03"), ("c", "2026-01-01")):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "config.yaml").write_text("{}")
        (tmp_path / "train" / name / "checkpoints").mkdir()
        (tmp_path / "train" / name / "checkpoints" / "last.ckpt").write_text("")
        write_json(tmp_path / "train" / name / "run.json", {"started": started})
    (tmp_path / "train" / "c" / "run.json").write_text('{"half')
    assert paths.find("latest", tmp_path).directory.name == "a"
    (tmp_path / "train" / "a" / "checkpoints" / "last.ckpt").unlink()  # it failed before it saved
    assert paths.find("latest", tmp_path).directory.name == "b"
    (tmp_path / "train" / "b" / "checkpoints" / "last.ckpt").unlink()
    assert paths.find("b", tmp_path).directory.name == "b"
    assert paths.find(str(tmp_path / "train" / "b" / "checkpoints" / "x.ckpt"), tmp_path).directory.name == "b"
    with pytest.raises(UserError, match="has no checkpoint"):
        Run(tmp_path / "train" / "b").checkpoint("b")
    with pytest.raises(UserError, match="no run directory"):
        paths.find("nosuch", tmp_path)


def test_json_is_whole_or_old(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    Run(tmp_path).update(b=2)
    assert read_json(path) == {"a": 1, "b": 2}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1, "b": 2}


def test_no_torch_is_imported():
    code = (
        "import sys, leyden.launch.command, leyden.launch.plan, leyden.launch.ranks; assert 'torch' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(paths.PROJECT / "src")}
    )


def test_the_newest_unfinished_run_is_found(tmp_path):
    for name, status in (("a", "stopped"), ("b", "failed"), ("c", "finished"), ("d", "running")):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "config.yaml").write_text("{}")
        record = {"started": f"2026-01-0{'abcd'.index(name) + 1}", "status": status, "host": "elsewhere"}
        write_json(tmp_path / "train" / name / "run.json", record | {"heartbeat": now()})
    assert paths.find("latest", tmp_path, unfinished=True).directory.name == "b"
    Run(tmp_path / "train" / "d").update(heartbeat="2026-01-01T00:00:00+00:00")
    assert paths.find("latest", tmp_path, unfinished=True).directory.name == "d"


def test_a_directory_is_held_by_one_process(tmp_path):
    other = f"from leyden.run.run import Run\nwith Run({str(tmp_path)!r}).claim(): print('held')"
    line = [sys.executable, "-c", other]
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT / "src")}
    with Run(tmp_path).claim():
        refused = subprocess.run(line, env=env, capture_output=True, text=True)
        assert refused.returncode and "is being run by" in refused.stderr
    assert subprocess.run(line, env=env, capture_output=True, text=True).stdout == "held\n"


def test_a_row_of_numbers_is_a_line_of_json(tmp_path):
    content = {"confusion": [[1, 20], [-3, 4e-05]], "line": "data.shape=[1,  8]", "none": [], "words": ["a", "[\n1]"]}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert "[1, 20]" in (tmp_path / "a.json").read_text()


def test_the_lowest_classes_are_told_in_a_line(tmp_path):
    test = {
        "test/acc": 0.5,
        "test/acc/b": 0.75,
        "test/acc/a": 0.25,
        "confusion": [[1]],
        "checkpoint": None,
        "samples": 4,
    }
    assert "test/acc 0.5000\nby class, lowest first: a 0.250, b 0.750\ntested" in loggers.in_lines(
        {"test": test}, tmp_path
    )
    many = {f"test/acc/{i}": i / 20 for i in range(20)} | {"checkpoint": None, "samples": 4}
    assert "9 0.450, ...\n" in loggers.in_lines({"test": many}, tmp_path)


def test_who_is_alive(tmp_path, monkeypatch):
    mine = {
        "status": "running",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pid_born": process_start_time(os.getpid()),
    }
    assert alive(mine) and not alive(mine | {"status": "stopped"})
    assert not alive(mine | {"pid_born": "another process of the same number"})
    gone = subprocess.Popen([sys.executable, "-c", ""])
    born = process_start_time(gone.pid)
    gone.wait()
    assert not alive(mine | {"pid": gone.pid, "pid_born": born})
    far = {"status": "running", "host": "elsewhere", "heartbeat": now(), "slurm": {"job": "7", "restarts": 0}}
    assert alive(far) and not alive(far | {"heartbeat": "2026-01-01T00:00:00+00:00"})
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for restarts, lives in (("", True), ("1", False), ("2", False)):  # a job that was requeued: its first start is over
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        assert alive(far) is lives


@pytest.mark.parametrize(("words", "obeys", "asked"), [
    ({}, True, False),
    ({"SLURM_JOB_ID": "7"}, True, True),
    ({"SLURM_JOB_ID": "7"}, False, True),
    ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}, True, True),
    ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "3", "LEYDEN_REQUEUES": "3"}, True, False),
])  # fmt: skip
def test_slurm_is_asked_to_start_a_job_again(tmp_path, monkeypatch, words, obeys, asked):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit {int(not obeys)}\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, word in words.items():
        monkeypatch.setenv(name, word)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert slurm_requeue() is (asked and obeys)
        assert signal.getsignal(signal.SIGTERM) == (signal.SIG_IGN if asked and obeys else before)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "asked").exists() is asked
    name = "7_0" if "SLURM_ARRAY_TASK_ID" in words else "7"  # 7 alone would be all tasks of the array
    assert not asked or (tmp_path / "asked").read_text() == f"requeue {name}\n"


def test_the_status_of_a_hostile_record_is_known(tmp_path):
    for said in (None, 5, [], {}, "no such status"):
        assert status_of({"status": said}) == Status.UNKNOWN
    for slurm in (5, {"job": "7"}):
        for heartbeat in (None, 5, "yesterday", "2026-01-01T00:00:00"):
            record = {"status": "running", "host": "elsewhere", "slurm": slurm, "heartbeat": heartbeat}
            assert status_of(record) == Status.KILLED


def test_latest_counts_by_instants_and_not_by_letters(tmp_path):
    """Summer time ends: 02:10 +01:00 is later than 02:50 +02:00."""
    for name, started in (("old", "2026-10-25T02:50:00+02:00"), ("new", "2026-10-25T02:10:00+01:00")):
        (tmp_path / "train" / name / "checkpoints").mkdir(parents=True)
        (tmp_path / "train" / name / "checkpoints" / "last.ckpt").write_text("")
        (tmp_path / "train" / name / "config.yaml").write_text("{}")
        write_json(tmp_path / "train" / name / "run.json", {"started": started})
    assert paths.find("latest", tmp_path).directory.name == "new"
