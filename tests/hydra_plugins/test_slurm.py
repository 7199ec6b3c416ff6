"""Runs and sweeps on a real SLURM, which tests/slurm_cluster.py starts: what is warned, killed, cancelled, refused."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_cluster
from leyden.run import paths
from leyden.run.run import Run, Status
from slurm_cluster import said, until

pytestmark = [pytest.mark.stress, pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())]
TRAIN = str(paths.PROJECT / "src" / "train.py")
SMALL = ["data=fake", "data.shape=[1,8,8]", "model=mlp", "threads=1", "logger=[]", "trainer.max_epochs=1"]
FAST = [*SMALL, "data.num_samples=103"]
LONG = [*SMALL, "data.num_samples=50000", "data.batch_size=8"]  # some 15 seconds, all in one epoch
JOBS = ["hydra/launcher=slurm", "trainer=cpu", "trainer.devices=1"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The variables of commands on the cluster."""
    with slurm_cluster.started(tmp_path_factory.mktemp("slurm")) as env:
        yield env | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(paths.PROJECT / "src")}


@pytest.fixture
def command(slurm, tmp_path):
    """Run train.py on the login node; returns status, output and errors."""

    def run(*keys: str) -> tuple[int, str, str]:
        line = [sys.executable, TRAIN, *keys, f"log_dir='{tmp_path}'"]
        ran = subprocess.run(line, env=slurm, cwd=paths.PROJECT, capture_output=True, text=True, timeout=400)
        return ran.returncode, ran.stdout, ran.stderr

    return run


@pytest.fixture
def sbatch(slurm, tmp_path):
    """Submit a script that runs train.py; returns its job, and the file of what it says."""

    def submit(*options: str, keys: list[str], srun: str = "srun --unbuffered") -> tuple[str, Path]:
        script, out = tmp_path / "job.sh", tmp_path / "out.txt"
        typed = " ".join(f"'{key}'" for key in [sys.executable, TRAIN, *keys, f"log_dir={tmp_path}"])
        script.write_text(f"#!/bin/bash\n{srun} {typed}\necho status $?\n")
        job = said(slurm, "sbatch", "--parsable", "--open-mode=append", f"--output={out}", *options, str(script))
        return job.strip(), out

    return submit


def trains(run: Run) -> bool:
    """Whether it is in its first epoch."""
    return "world_size" in run.record and run.status == Status.RUNNING


def runs(folder: Path) -> list[Run]:
    return [Run(path.parent) for path in sorted(folder.rglob("run.json"))]


def sha(run: Run) -> str:
    return run.metrics["weights_sha256"]


def test_a_run_that_is_warned_goes_on_by_itself_with_the_same_bits(slurm, sbatch, command, tmp_path):
    """In the middle of an epoch, twice, without a name; in a job array, whose tasks have numbers of their own."""
    assert command(*LONG, "trainer=cpu", "name=alone")[0] == 0
    job, out = sbatch("--requeue", "--array=3", keys=[*LONG, "trainer=cpu"])
    for restarts in (1, 2):
        until(lambda n=restarts: any(map(trains, runs(tmp_path))) and out.read_text().count("parameters on") == n)
        said(slurm, "scancel", f"--signal=USR{restarts}", job)
        until(lambda n=restarts: out.read_text().count("SLURM starts its job again, and it goes on by itself") == n)
    until(lambda: "status 0" in out.read_text())
    cut, alone = runs(tmp_path)
    assert cut.status == alone.status == "finished" and sha(cut) == sha(alone)
    assert cut.record["slurm"]["restarts"] == 2
    assert [each["after"] for each in cut.record["resumes"]] == ["SIGUSR1", "SIGUSR2"]
    assert f"(restart 2)\ngoing on with {cut.directory}" in out.read_text()


def test_a_run_that_is_not_to_be_requeued_says_what_to_type(slurm, sbatch, tmp_path):
    job, out = sbatch("--no-requeue", keys=[*LONG, "trainer=cpu"])
    until(lambda: any(map(trains, runs(tmp_path))))
    said(slurm, "scancel", "--signal=USR1", job)
    until(lambda: "status 138" in out.read_text())
    assert "go on with: python src/train.py resume=" in out.read_text() and runs(tmp_path)[0].status == "stopped"


def test_a_sweep_outlives_jobs_that_are_killed_cancelled_or_warned(slurm, command, tmp_path):
    line = [sys.executable, TRAIN, "-m", "seed=1,2,3,4", *JOBS, *LONG, f"log_dir='{tmp_path}'"]
    line.append("hydra.launcher.array_parallelism=3")
    with subprocess.Popen(line, env=slurm, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        until(lambda: sum(trains(run) for run in runs(tmp_path)) == 3)
        killed, warned, _ = runs(tmp_path)
        array = said(slurm, "squeue", "-h", "-r", "-o", "%i").split("_")[0]
        os.kill(killed.record["pid"], signal.SIGKILL)
        said(slurm, "scancel", "--signal=USR2", f"{array}_1")
        said(slurm, "scancel", f"{array}_3")
        shown, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 1 and "2 failed, 2 finished" in shown and "sacct" not in shown + errors
    assert "Traceback" not in errors and "sweep=" in errors
    *_, cancelled = runs(tmp_path)
    assert killed.record["reason"].startswith("SLURM says FAILED of its job")
    assert cancelled.record["reason"].startswith("SLURM says CANCELLED of its job")
    assert [each["after"] for each in warned.record["resumes"]] == ["SIGUSR2"]
    assert "goes on by itself" in warned.log_file.read_text()
    status, shown, _ = command("sweep=latest")
    assert status == 0 and "jobs: 4 finished" in shown
    assert command(*LONG, "trainer=cpu", "seed=2", "name=alone")[0] == 0
    assert sha(warned) == sha(Run(tmp_path / "train" / "alone"))
    assert (warned.directory / ".hydra" / "overrides.yaml").is_file()


def test_what_sbatch_refuses_is_a_sentence_and_leaves_nothing(command, tmp_path):
    for keys, word in (
        (["hydra.launcher.partition=none"], "type hydra.launcher.partition"),
        (["trainer.accelerator=auto"], "type trainer=cpu"),
        (["hydra.launcher.mem_gb=900"], "type hydra.launcher.mem_gb"),
        (["+hydra.launcher.wonder=1"], "wonder"),
        (
            ["hydra.launcher.wait=false", "search=optuna", "optimizer.lr=interval(1e-3,1e-2)"],
            "`hydra.launcher.wait` must",
        ),
    ):
        status, shown, sentence = command("-m", "seed=1,2", *JOBS, *FAST, *keys)
        assert (status, shown) == (2, "") and word in sentence and len(sentence.splitlines()) == 1, sentence
    assert not list(tmp_path.rglob("*.json")) and not list((tmp_path / "sweep").glob("*"))


def test_who_does_not_wait_is_told_the_jobs_and_the_table(command, tmp_path):
    status, shown, _ = command("-m", "seed=1,2", *JOBS, *FAST, "hydra.launcher.wait=false")
    assert status == 0 and re.search(r"2 jobs, from \d+_0 to \d+_1\n", shown), shown
    until(lambda: [run.status for run in runs(tmp_path)] == ["finished"] * 2)
    table = [sys.executable, *re.search(r"python (src/report.py \S+)", shown)[1].split()]
    ran = subprocess.run(table, cwd=paths.PROJECT, capture_output=True, text=True)
    assert ran.returncode == 0 and "finished" in ran.stdout, ran.stderr


def test_tasks_that_nobody_started_are_started(slurm, sbatch, tmp_path):
    _, out = sbatch("--ntasks=2", keys=[*FAST, "trainer=ddp"], srun="")
    until(lambda: out.exists() and "status" in out.read_text())
    assert "status 0" in out.read_text() and "srun" not in out.read_text()
    assert runs(tmp_path)[0].record["world_size"] == 2
    out.unlink()
    _, out = sbatch("--nodes=2", "--ntasks=2", keys=[*FAST, "trainer=ddp"], srun="")
    until(lambda: out.exists() and "status" in out.read_text())
    assert "status 2" in out.read_text()
    assert "A run on 2 nodes needs a start on each: type srun python," in out.read_text()


def test_a_rank_of_srun_that_is_lost_is_named(slurm, sbatch, tmp_path):
    _, out = sbatch("--nodes=2", "--ntasks=2", "--no-requeue", keys=[*LONG, "trainer=ddp"])
    until(lambda: any(map(trains, runs(tmp_path))))
    (run,) = runs(tmp_path)
    assert run.record["world_size"] == 2
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another's
            mine = f"log_dir={tmp_path}".encode() in (environ.parent / "cmdline").read_bytes()
            if mine and b"SLURM_PROCID=1" in environ.read_bytes().split(b"\0"):
                os.kill(int(environ.parent.name), signal.SIGKILL)
    until(lambda: "status 1" in out.read_text())
    assert run.status == "failed" and "rank 1 was lost" in run.record["reason"]
    assert json.loads((run.directory / "run.json").read_text())["slurm"]["restarts"] == 0


def test_the_commands_of_the_readme(slurm, sbatch, command, tmp_path):
    text = (paths.PROJECT / "README.md").read_text(encoding="utf-8")
    options, srun, run = re.search(r"`sbatch (.*?) job.sh`.*`(srun) python src/train.py (.*?)`", text).groups()
    options = [option for option in options.replace("node=4", "node=1").split() if "gpus" not in option]
    _, out = sbatch(*options, keys=[*run.split(), *FAST], srun=srun)
    until(lambda: out.exists() and "status" in out.read_text())
    assert "status 0" in out.read_text() and runs(tmp_path)[0].record["world_size"] == 2
    row = re.search(r"\| a sweep as SLURM jobs \| (.*)", text)[1]
    swept, again = re.findall(r"`python src/train.py (.*?)`", row)
    wait, dry = re.findall(r"`(hydra.launcher.\w+=\w+)`", row)
    swept = [*swept.split(), "trainer=cpu", *FAST]
    assert "#SBATCH --signal=USR2@120" in command(*swept, dry)[1]
    status, shown, errors = command(*swept)
    assert status == 0 and "jobs: 3 finished" in shown, errors
    assert "3 jobs, from" in command(*swept, wait)[1]
    assert command(again)[0] == 0
