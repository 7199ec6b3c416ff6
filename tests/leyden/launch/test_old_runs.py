"""What becomes of a run that was stopped, and how one repeats it: the command line, from the start of a process on."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import stress_resume
from leyden.files import read_json
from leyden.resume import checkpoints
from leyden.run import paths
from leyden.run.run import Run
from stress_resume import attempt, begin, differences, kill_until_done, results

SMALL = ["data=fake", "data.num_samples=260", "data.shape=[1,8,8]", "data.batch_size=16", "model=mlp"]
SMALL += ["model.dropout=0.2", "trainer.max_epochs=3", "trainer.log_every_n_steps=2", "checkpoint.every_n_steps=4"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def context():
    return stress_resume.server()


@pytest.fixture
def cli(context, tmp_path):
    """Run train.py in a process that has imported torch already: its status and what it printed."""

    def run(*arguments, after=None, number=signal.SIGKILL, logs=tmp_path):
        log = tmp_path / "screen.txt"
        log.unlink(missing_ok=True)
        status = attempt(context, [*arguments, f"log_dir='{logs}'"], log, after, number)
        return status, log.read_text()

    return run


def record(run):
    return Run(run).record


def stopped(run):
    """Make a finished run look like one that was stopped at its last checkpoint."""
    Run(run).update(status="stopped", reason="SIGTERM")


@pytest.mark.parametrize("case", ["digits", pytest.param("ink", marks=pytest.mark.stress)])
def test_a_run_that_is_killed_at_random_comes_to_the_same_bits(context, tmp_path, case):
    seed = int(os.environ.get("LEYDEN_KILL_SEED", random.SystemRandom().randrange(10**6)))
    print("LEYDEN_KILL_SEED", seed)
    line, draw = stress_resume.CASES[case], random.Random(seed)
    assert attempt(context, [*line, "name=whole", f"log_dir='{tmp_path}'"], tmp_path / "log", None) == 0
    seconds, whole = Run(tmp_path / "train" / "whole").metrics["seconds"], results(tmp_path / "train" / "whole")
    for number in (signal.SIGKILL, signal.SIGTERM):
        kill_until_done(context, draw, line, tmp_path, f"by{number}", seconds, number, 2)
        found = results(tmp_path / "train" / f"by{number}")
        assert not differences(found, whole), (found, whole)
        assert not found["left"] and record(tmp_path / "train" / f"by{number}")["status"] == "finished"


@pytest.mark.stress
def test_two_processes_resume_to_the_same_bits(context, tmp_path):
    line = [*SMALL, "trainer=ddp", "trainer.accumulate_grad_batches=2"]
    for name, after in (("whole", None), ("cut", 12)):
        status = attempt(context, [*line, f"name={name}", f"log_dir='{tmp_path}'"], tmp_path / "log", after)
    if status != 0:
        status = attempt(context, [*line, "name=cut", f"log_dir='{tmp_path}'"], tmp_path / "log", None)
    assert status == 0, (tmp_path / "log").read_text()
    found, whole = (results(tmp_path / "train" / name) for name in ("cut", "whole"))
    assert not differences(found, whole), (found, whole)


def test_a_name_starts_resumes_and_says_that_it_is_complete(cli, tmp_path):
    run = tmp_path / "train" / "exp1"
    assert cli(*SMALL, "name=exp1")[0] == 0
    before = (run / "run.json").read_text(), (run / "metrics.json").read_text()
    status, said = cli(*SMALL, "name=exp1")
    assert status == 0 and "complete" in said
    assert before == ((run / "run.json").read_text(), (run / "metrics.json").read_text())
    stopped(run)
    status, said = cli(*SMALL, "name=exp1", "seed=3")
    assert status == 2 and "seed=3" in said and len(said.splitlines()) == 1
    status, said = cli(*SMALL, "name=exp1")
    assert status == 0 and "going on with" in said and "going on from last.ckpt" in said
    assert json.loads(before[1])["weights_sha256"] == Run(run).metrics["weights_sha256"]
    assert record(run)["status"] == "finished" and len(record(run)["resumes"]) == 1
    assert "resume=" not in record(run)["command"]  # what it was started by


def test_latest_is_the_unfinished_one_and_may_be_made_longer(cli, tmp_path):
    for name in ("a", "b"):
        assert cli(*SMALL, f"name={name}", f"seed={len(name)}")[0] == 0
    status, said = cli("resume=latest")
    assert status == 2 and "unfinished" in said
    stopped(tmp_path / "train" / "a")
    status, said = cli("resume=latest", "data.num_workers=1")
    assert status == 0 and "train/a" in said
    status, said = cli("resume=latest", "trainer.max_epochs=4")
    assert status == 0 and "train/b" in said and "schedule" in said
    with open(tmp_path / "train" / "b" / "metrics.csv") as file:
        epochs = [row["epoch"] for row in csv.DictReader(file) if row["val/acc"]]
    assert epochs == ["0", "1", "2", "3"]
    assert "trainer.max_epochs=4" in record(tmp_path / "train" / "b")["resumes"][0]["command"]


def test_what_would_change_the_numbers_is_refused(cli, tmp_path):
    assert cli(*SMALL, "name=a")[0] == 0
    run = tmp_path / "train" / "a"
    stopped(run)
    for key, word in (("optimizer.lr=1", "init_from"), ("trainer=ddp", "world_size")):
        status, said = cli("resume=a", key)
        assert status == 2 and word in said, said
    status, said = cli("-m", "resume=a")
    assert status == 2 and "-m" in said
    assert cli("resume=a", "data.batch_size=8", "exact=false")[0] == 0
    assert record(run)["exact"] is False and "batch_size is 8, was 16" in record(run)["not_exact"]


def test_a_rerun_has_the_same_weights_in_a_new_directory(cli, tmp_path):
    assert cli(*SMALL, "name=a", "seed=5", "optimizer=sgd")[0] == 0
    status, said = cli("rerun=a", "name=b")
    assert status == 0, said
    first, second = (Run(tmp_path / "train" / name).metrics for name in "ab")
    assert first["weights_sha256"] == second["weights_sha256"]
    assert record(tmp_path / "train" / "b")["rerun"].endswith("a") and record(tmp_path / "train" / "b")["seed"] == 5
    assert cli("rerun=a", "name=c", "model=cnn", "model.channels=[4]")[0] == 0
    status, said = cli("-m", "rerun=a", "seed=0,1,5")
    assert status == 0, said
    hashes = [read_json(path)["weights_sha256"] for path in sorted(tmp_path.glob("sweep/*/*/metrics.json"))]
    assert len(set(hashes)) == 3 and hashes[2] == first["weights_sha256"]


def test_other_weights_to_start_from(cli, tmp_path):
    assert cli(*SMALL, "name=a")[0] == 0
    last = checkpoints.read(tmp_path / "train" / "a" / "checkpoints" / "last.ckpt")["state_dict"]
    torch.save({name.removeprefix("model."): value for name, value in last.items()}, tmp_path / "bare.pt")
    for source in ("a", tmp_path / "train" / "a" / "checkpoints" / "last.ckpt", tmp_path / "bare.pt"):
        status, said = cli(*SMALL, f"init_from='{source}'", "optimizer.lr=1e-30", f"name=from{len(str(source))}")
        assert status == 0, said
        found = checkpoints.read(tmp_path / "train" / f"from{len(str(source))}" / "checkpoints" / "last.ckpt")
        best = checkpoints.read(tmp_path / "train" / "a" / "checkpoints" / "best.ckpt")["state_dict"]
        same = best if source == "a" else last
        assert all(torch.allclose(value, same[name], atol=1e-6) for name, value in found["state_dict"].items())
    status, said = cli(*SMALL, "init_from=a", "data.num_classes=3")
    assert status == 2 and "model." in said and "another shape" in said and "strict=false" in said
    status, said = cli(*SMALL, "init_from=a", "data.num_classes=3", "strict=false")
    assert status == 0 and "only what fits" in said
    assert cli(*SMALL, "init_from=nosuch")[0] == 2


def test_damage_falls_back_to_an_older_checkpoint(cli, tmp_path):
    assert cli(*SMALL, "name=a")[0] == 0
    run = tmp_path / "train" / "a"
    whole, last = results(run), run / "checkpoints" / "last.ckpt"
    for damage in ("flip", "cut", "empty"):
        stopped(run)
        raw = bytearray(last.read_bytes())
        raw[len(raw) // 2] ^= 1
        last.write_bytes({"flip": raw, "cut": raw[: len(raw) // 2], "empty": b""}[damage])
        status, said = cli("resume=a")
        assert status == 0 and "last.ckpt is damaged" in said and "going on from best.ckpt" in said, said
        assert not differences(results(run), whole)
    stopped(run)
    for name in ("best.ckpt", "last.ckpt"):
        (run / "checkpoints" / name).write_bytes(b"")
    before = files(run)
    for again in (["resume=a"], [*SMALL, "name=a"]):
        status, said = cli(*again)
        assert status == 2 and "delete that folder" in said and "Traceback" not in said and files(run) == before, said
    shutil.rmtree(run / "checkpoints")
    status, said = cli("resume=a")
    assert status == 0 and "from its first step" in said and not differences(results(run), whole)


def files(run):
    """All that is in a run but its lock."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def test_what_is_refused_changes_nothing(cli, tmp_path):
    table, draw = tmp_path / "table.csv", random.Random(0)
    rows = [f"{draw.random()},{draw.random()},{draw.choice('ab')}\n" for _ in range(80)]
    table.write_text("".join(["x,z,kind\n", *rows]))
    line = ["data=table", f"data.path='{table}'", "data.target=kind", "model=mlp", "trainer.max_epochs=2"]
    line += ["~scheduler", "+scheduler={_target_:torch.optim.lr_scheduler.OneCycleLR,_partial_:true,max_lr:0.1}"]
    status, said = cli(*line, "name=a")
    assert status == 0, said
    run = tmp_path / "train" / "a"
    before = files(run)
    longer = ["resume=a", "trainer.max_epochs=3"]
    for keys, word in (
        ([*longer, "trainer=ddp"], "world_size is 2"),
        ([*longer, "checkpoint.mode=foo", "exact=false"], "checkpoint.mode"),
    ):  # fmt: skip
        status, said = cli(*keys)
        assert status == 2 and word in said and files(run) == before, said
    table.write_text("".join(["x,z,kind\n", *rows[1:]]))
    status, said = cli(*longer)
    assert status == 2 and "Traceback" not in said and files(run) == before, said
    assert record(run)["status"] == "finished"


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a tmpfs, as root")
def test_a_run_that_cannot_be_written_is_a_sentence(cli, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place]).returncode:
        pytest.skip("no mount")
    try:
        assert cli(*SMALL, "name=a", "trainer.max_epochs=1", logs=place)[0] == 0
        stopped(place / "train" / "a")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        status, said = cli("resume=a", logs=place)
        assert status == 2 and "cannot be written" in said and "Traceback" not in said, said
    finally:
        subprocess.run(["umount", place])


def test_a_run_has_one_process(cli, context, tmp_path):
    line = [*SMALL, "trainer.max_epochs=400", "name=a", f"log_dir='{tmp_path}'"]
    process = begin(context, line, tmp_path / "train" / "a")
    try:
        for arguments in (["resume=a"], line[:-1]):
            status, said = cli(*arguments)
            assert status == 2 and f"process {process.pid}" in said, said
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert cli("resume=a", "trainer.max_steps=5000", "trainer.max_epochs=60")[0] == 0


def test_ctrl_c_reaches_the_workers_too_and_the_run_is_saved(tmp_path):
    line = [sys.executable, str(paths.PROJECT / "src" / "train.py"), *SMALL, "trainer.max_epochs=4000", "name=a"]
    line += ["data.num_workers=2", f"log_dir='{tmp_path}'"]
    with subprocess.Popen(line, start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob("train/a/checkpoints/last.ckpt")):
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGINT and "resume=" in said.splitlines()[-1], said
    assert record(tmp_path / "train" / "a")["status"] == "stopped"


@pytest.mark.stress  # by the clock
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_says_how_to_go_on(cli, tmp_path, number):
    status, said = cli(*SMALL, "trainer.max_epochs=4000", "name=a", after=3.5, number=number)
    assert status == 128 + number and "resume=" in said.splitlines()[-1], said
    assert record(tmp_path / "train" / "a")["status"] == "stopped"


def test_a_stored_config_is_checked_before_anything_is_built(cli, tmp_path):
    assert cli(*SMALL, "name=a")[0] == 0
    run = tmp_path / "train" / "a"
    text = (run / "config.yaml").read_text()
    hostile = text.replace(
        "model:\n", f"model:\n  bad:\n    _target_: os.system\n    _args_: ['touch {tmp_path}/bad']\n", 1
    )
    hostile = hostile.replace("trusted: []", "trusted: [os]")
    assert hostile != text
    (run / "config.yaml").write_text(hostile)
    stopped(run)
    for key in ("resume=a", "rerun=a"):
        status, said = cli(key)
        assert status == 2 and "os.system" in said and not (tmp_path / "bad").exists(), said


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a small tmpfs, as root")
def test_a_full_disk_keeps_the_last_checkpoint(cli, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", small]).returncode:
        pytest.skip("no mount")
    try:
        assert cli(*SMALL, "model.hidden=[256,256]", "name=a", logs=small)[0] == 0
        run = small / "train" / "a"
        whole = results(run)
        stopped(run)
        (small / "filler").write_bytes(b"0" * (os.statvfs(small).f_bavail * os.statvfs(small).f_frsize - 200_000))
        status, said = cli("resume=a", logs=small)
        assert status == 2 and "cannot be written" in said and "No space left" in said and "Traceback" not in said, said
        (small / "filler").unlink()
        assert cli("resume=a", logs=small)[0] == 0
        assert not differences(results(run), whole)
    finally:
        subprocess.run(["umount", small])


def test_what_is_not_ours_is_never_deleted(cli, tmp_path):
    assert cli(*SMALL, "name=a", "trainer.max_epochs=1")[0] == 0
    run = tmp_path / "train" / "a"
    (run / "run.json").unlink()
    before = files(run)
    assert cli("resume=a", "trainer.max_epochs=2", "trainer=gpu")[0] == 2
    assert files(run) == before


def test_two_starts_of_one_name_are_one_run(context, tmp_path):
    started = []
    for number in range(2):
        line = [*SMALL, "name=two", f"log_dir='{tmp_path}'"]
        process = context.Process(target=stress_resume.child, args=(line, tmp_path / f"{number}.txt"))
        process.start()
        started.append(process)
    for process in started:
        process.join()
    said = [(tmp_path / f"{number}.txt").read_text() for number in range(2)]
    assert sorted(process.exitcode for process in started) == [0, 2], said
    assert record(tmp_path / "train" / "two")["status"] == "finished" and "is being" in "".join(said)


def test_other_weights_are_taken_again_where_no_step_is_left(cli, tmp_path):
    assert cli(*SMALL, "name=base")[0] == 0
    line = [*SMALL, "init_from=base", "seed=1"]
    assert cli(*line, "name=whole")[0] == 0 and cli(*line, "name=cut")[0] == 0
    whole, cut = (tmp_path / "train" / name for name in ("whole", "cut"))
    for again in (["resume=cut"], [*line, "name=cut"]):
        shutil.rmtree(cut / "checkpoints")  # as killed before the first
        stopped(cut)
        assert cli(*again)[0] == 0
        assert not differences(results(cut), results(whole))
    shutil.rmtree(cut / "checkpoints")
    stopped(cut)
    assert cli(*SMALL, "name=cut", "trainer.max_epochs=1")[0] == 0  # nothing is lost, so that it may be another one


def test_what_was_not_exact_stays_so(cli, tmp_path):
    assert cli(*SMALL, "name=a", "scheduler=constant")[0] == 0
    run = tmp_path / "train" / "a"
    assert cli("resume=a", "exact=false", "data.batch_size=8", "trainer.max_epochs=4")[0] == 0
    assert cli("resume=a", "trainer.max_epochs=5")[0] == 0
    assert record(run)["exact"] is False and "batch_size is 8, was 16" in record(run)["not_exact"]
    assert [each["after"] for each in record(run)["resumes"]] == ["finished", "finished"]
    assert all(each["versions"] == record(run)["versions"] for each in record(run)["resumes"])
    for key in ("data.batch_size=16", "callbacks=[ema]"):
        status, said = cli("resume=a", "trainer.max_epochs=6", key)
        assert status == 2 and "exact=false" in said
    assert cli(*SMALL, "name=b", "scheduler=cosine")[0] == 0
    assert cli("resume=b", "trainer.max_epochs=4")[0] == 0
    assert "stretched" in record(tmp_path / "train" / "b")["not_exact"]


def test_a_checkpoint_of_another_kind_is_passed_over(cli, tmp_path):
    assert cli(*SMALL, "name=a")[0] == 0
    run = tmp_path / "train" / "a"
    whole = results(run)
    for content in ({"state_dict": {}, "leyden": 5}, {"state_dict": {}, "leyden": {"resumable": True, "files": {}}}):
        torch.save(content, run / "checkpoints" / "last.ckpt")
        stopped(run)
        status, said = cli("resume=a")
        assert status == 0 and "going on from best.ckpt" in said and not differences(results(run), whole), said


def test_what_a_run_leaves_that_was_killed_at_once_is_its_own(cli, tmp_path):
    left = tmp_path / "train" / "a"
    left.mkdir(parents=True)
    for name in (".lock", ".run.json.part", "rank1.log", "train.log"):
        (left / name).write_text("")
    assert cli(*SMALL, "name=a", "trainer.max_epochs=1")[0] == 0
