"""What a user types, and what comes of it before anything is trained."""

import json
import os
import subprocess
import sys

import pytest

from leyden import runs

FAKE = ["data=fake", "data.num_samples=100", "data.shape=[1,8,8]", "model=mlp", "debug=fast"]


def test_help_names_groups_keys_and_examples(command):
    shown = command("train.py", "--help").stdout
    for word in ("model", "cnn", "resnet", "objective", "python src/train.py trainer=ddp"):
        assert word in shown


def test_cfg_job_shows_the_tree_and_makes_nothing(command, tmp_path):
    shown = command("train.py", "--cfg", "job", "model=mlp")
    assert shown.returncode == 0 and "num_classes: ${facts.outputs}" in shown.stdout
    assert not (tmp_path / "logs").exists()


def test_resolve_says_that_facts_need_the_data(command):
    shown = command("train.py", "--cfg", "job", "--resolve")
    assert shown.returncode == 2 and "facts" in shown.stderr and len(shown.stderr.splitlines()) == 1


def test_all_mistakes_at_once_in_a_line_each(command):
    shown = command("train.py", "optimzer.lr=1", "model=cn", "data.batch_size=-3", "trainer.max_epochs=abc")
    assert shown.returncode == 2 and len(shown.stderr.splitlines()) == 4
    for word in ("optimizer.lr", "cnn", "at least 1", "whole number"):
        assert word in shown.stderr


@pytest.mark.slow
def test_eight_launches_at_once_have_eight_directories(tmp_path):
    line = [sys.executable, str(runs.PROJECT / "src" / "train.py"), *FAKE, f"log_dir='{tmp_path}'", "+facts.outputs=3"]
    started = [
        subprocess.Popen(line, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}) for _ in range(8)
    ]
    assert [process.wait() for process in started] == [2] * 8
    records = [json.loads(path.read_text()) for path in tmp_path.glob("train/*/run.json")]
    assert len(records) == 8 and {record["status"] for record in records} == {"failed"}
    assert len({record["pid"] for record in records}) == 8


def test_a_folder_that_cannot_be_written(command, tmp_path):
    (tmp_path / "logs").write_text("")
    shown = command("train.py", *FAKE)
    assert shown.returncode == 2 and "log_dir" in shown.stderr and len(shown.stderr.splitlines()) == 1


def test_a_mistake_in_the_run_is_a_sentence(command, tmp_path):
    shown = command("train.py", *FAKE, "checkpoint.monitor=val/nonsense")
    assert shown.returncode == 2 and "Traceback" not in shown.stderr + shown.stdout
    assert "val/nonsense" in shown.stderr and "val/acc" in shown.stderr and len(shown.stderr.splitlines()) == 1
    log = next(tmp_path.glob("logs/train/*/train.log")).read_text()
    assert "Traceback" in log


def test_eval_needs_a_run(command):
    for arguments, word in (([], "run="), (["run=latest"], "no run"), (["run=nosuch"], "nosuch")):
        shown = command("eval.py", *arguments)
        assert shown.returncode == 2 and word in shown.stderr and len(shown.stderr.splitlines()) == 1
