"""Runs that torchrun, srun and the launchers of Hydra start: one run directory for each, however many ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import two_nodes
from leyden import UserError
from leyden.launch import cluster
from leyden.run import paths
from leyden.run.run import Run

TRAIN = str(paths.PROJECT / "src" / "train.py")
FAST = ["data=fake", "data.num_samples=103", "data.shape=[1,8,8]", "model=mlp", "debug=fast", "threads=1"]


def records(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("run.json"))]


def one_run(folder: Path) -> None:
    (record,) = records(folder)
    assert record["status"] == "finished" and record["world_size"] == 2
    run = next(folder.rglob("run.json")).parent
    assert len({path.name.split(".")[-2] for path in run.glob("tensorboard/events*")}) == 1  # of one process
    assert json.loads((run / "metrics.json").read_text())["test"]["checkpoint"] == "checkpoints/best.ckpt"


@pytest.mark.slow
def test_torchrun_makes_one_run(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TRAIN]
    ran = subprocess.run([*torchrun, *FAST, f"log_dir='{tmp_path}'"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    one_run(tmp_path)
    refused = subprocess.run([*torchrun, "modl=mlp", f"log_dir='{tmp_path}/x'"], capture_output=True, text=True)
    assert refused.returncode and "did you mean model?" in refused.stderr and not (tmp_path / "x").exists()


def tasks(tmp_path: Path, arguments: list[str], **words: str) -> list[subprocess.CompletedProcess]:
    """The tasks of srun: the variables that it sets, in two processes."""
    started = []
    for rank in "01":
        env = os.environ | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}
        env |= {"SLURM_NODEID": "0", "SLURM_JOB_ID": "815", "SLURM_NODELIST": "localhost"} | words
        line = [sys.executable, TRAIN, *FAST, *arguments, f"log_dir='{tmp_path}'"]
        started.append(subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=300) for process in started]
    return [subprocess.CompletedProcess([], p.returncode, *s) for p, s in zip(started, said, strict=True)]


@pytest.mark.stress
def test_srun_makes_one_run_and_goes_on_with_it_when_requeued(tmp_path):
    for ran in tasks(tmp_path, ["trainer=ddp", "name=job"]):
        assert ran.returncode == 0, ran.stderr
    one_run(tmp_path)
    run = tmp_path / "train" / "job"
    assert records(tmp_path)[0]["slurm"] == {"job": "815", "restarts": 0}
    Run(run).update(status="running", host="another")  # the node that went away
    for ran in tasks(tmp_path, ["trainer=ddp", "name=job"], SLURM_RESTART_COUNT="1"):
        assert ran.returncode == 0, ran.stderr
    assert len(records(tmp_path)[0]["resumes"]) == 1
    for ran in tasks(tmp_path, ["trainer=ddp", "name=job"]):  # complete
        assert ran.returncode == 0, ran.stderr


def test_a_job_of_slurm_speaks_the_words_of_torchrun(monkeypatch):
    words = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
             "SLURM_JOB_ID": "123456", "SLURM_NODELIST": "gpu[07-08],other"}  # fmt: skip
    monkeypatch.setattr(os, "environ", words | {"SLURM_NTASKS": "1"})
    cluster.translate()  # a job of one task
    assert "RANK" not in os.environ
    monkeypatch.setattr(os, "environ", words)
    cluster.translate()
    assert words["RANK"] == "5" and words["WORLD_SIZE"] == "8" and words["LOCAL_WORLD_SIZE"] == "4"
    assert words["MASTER_ADDR"] == "gpu07" and words["MASTER_PORT"] == "18456" and words["GROUP_RANK"] == "1"
    trainer = OmegaConf.create({"devices": "auto", "num_nodes": 1, "strategy": "auto"})
    cluster.fit(trainer)
    assert trainer == {"devices": 4, "num_nodes": 2, "strategy": "ddp"}
    with pytest.raises(UserError, match="must be 4, as many"):
        cluster.fit(OmegaConf.create({"devices": 3, "num_nodes": 1, "strategy": "ddp"}))
    with pytest.raises(UserError, match="must be 2, as many"):
        cluster.fit(OmegaConf.create({"devices": 4, "num_nodes": 5, "strategy": "ddp"}))


@pytest.mark.slow
def test_the_script_of_a_slurm_job(script, tmp_path):
    pytest.importorskip("submitit")
    sweep = ["-m", "seed=1,2", "hydra/launcher=slurm", "hydra.launcher.dry_run=true", "trainer=ddp", *FAST]
    sweep += [f"log_dir='{tmp_path}'"]
    devices = ["trainer.devices=4", "trainer.num_nodes=2", "trainer.accelerator=gpu"]
    status, shown, errors = script("train.py", *sweep, *devices)
    assert status == 0, errors
    for line in ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--requeue", "--signal=USR2@120"):
        assert f"#SBATCH {line}\n" in shown
    for wrong, word in (
        (["trainer.devices=2", "hydra.launcher.tasks_per_node=3"], "tasks_per_node"),
        (["trainer.devices=auto"], "`trainer.devices` must be a number"),
        (["trainer.devices=2", "trainer.num_nodes=1,2"], "the same in all jobs"),
    ):
        status, _, sentence = script("train.py", *sweep, *wrong)
        assert status == 2 and word in sentence and "Traceback" not in sentence, sentence
    assert not records(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "seeds"), [pytest.param("joblib", [1, 2], marks=pytest.mark.stress), ("submitit_local", [3])]
)
def test_launchers_of_hydra_start_ranks(command, tmp_path, launcher, seeds):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    typed = f"seed={','.join(map(str, seeds))}"
    swept = command("train.py", "-m", typed, f"hydra/launcher={launcher}", "trainer=ddp", *FAST)
    assert swept.returncode == 0, swept.stderr
    assert [(record["seed"], record["status"]) for record in records(tmp_path)] == [(n, "finished") for n in seeds]
    assert {record["world_size"] for record in records(tmp_path)} == {2}


def test_a_sweep_under_torchrun_is_refused(command):
    refused = command("train.py", "-m", "seed=1,2", env=os.environ | {"RANK": "0", "WORLD_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871"})  # fmt: skip
    assert refused.returncode == 2 and "hydra/launcher=slurm" in refused.stderr


@pytest.mark.stress
def test_a_hanging_rank_ends_with_the_timeout(tmp_path):
    stuck = tmp_path / "stuck.py"
    stuck.write_text(
        "import os, time\nfrom lightning.pytorch.callbacks import Callback\n"
        "class Stuck(Callback):\n    def on_train_batch_start(self, *_):\n"
        "        time.sleep(10**6 * int(os.environ['RANK']))\n"
    )
    line = [sys.executable, TRAIN, *FAST, "trainer=ddp", "timeout=4", "+callbacks.stuck._target_=stuck.Stuck"]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([*line, f"log_dir='{tmp_path}'"], env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    (record,) = records(tmp_path)
    assert record["status"] == "failed" and "rank 0" in record["reason"], record


@pytest.mark.slow
def test_fsdp_trains_and_its_checkpoint_loads_in_one_process(command, script, tmp_path):
    trained = command("train.py", "trainer=fsdp", *FAST)
    assert trained.returncode == 0, trained.stderr
    status, _, errors = script("eval.py", "run=latest", f"log_dir='{tmp_path / 'logs'}'")
    assert status == 0, errors
    found = [json.loads(path.read_text())["test"] for path in sorted(tmp_path.rglob("metrics.json"))]
    assert found[0]["test/loss"] == pytest.approx(found[1]["test/loss"], abs=1e-5)


@pytest.mark.slow
def test_two_nodes_make_one_run(tmp_path):
    """For real: torchrun on two machines, which are network namespaces joined by a cable."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("network namespaces need root on Linux")
    try:
        with two_nodes.nodes() as holders:
            started = []
            for number, holder in enumerate(holders):
                torchrun = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=7"]
                torchrun += ["--rdzv-endpoint=10.77.0.1:29500", f"--local-addr=10.77.0.{number + 1}"]
                torchrun += [f"--rdzv-conf=is_host={number == 0}"]  # which names cannot tell here
                torchrun += [TRAIN, *FAST, f"log_dir='{tmp_path}'"]
                enter = ["nsenter", "-t", str(holder.pid), "-n", sys.executable, "-m", "torch.distributed.run"]
                env = os.environ | {"GLOO_SOCKET_IFNAME": f"node{number}"}
                started.append(subprocess.Popen([*enter, *torchrun], env=env, stderr=subprocess.PIPE, text=True))
            said = [process.communicate(timeout=240)[1] for process in started]
            assert [process.returncode for process in started] == [0, 0], said
    except OSError as error:
        pytest.skip(f"no two networks here: {error}")
    one_run(tmp_path)
    assert json.loads(next(tmp_path.rglob("run.json")).read_text())["effective_batch"] == 72  # all that the ranks have


WAITS = """
import signal, sys
from leyden.launch import cluster
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
rendezvous = cluster.hearing
cluster.hearing = lambda wait: (print("waits", flush=True), rendezvous(wait))[1]
with cluster.awaited():
    pass
"""


def test_a_signal_ends_a_rank_that_waits_for_the_others():
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env["PYTHONPATH"] = str(paths.PROJECT / "src")
    with subprocess.Popen([sys.executable, "-c", WAITS], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.5)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


def test_jobs_at_a_time():
    assert cluster.at_once({"n_jobs": 3}, 8) == 3 and cluster.at_once({"n_jobs": 8}, 2) == 2
    assert cluster.at_once({"n_jobs": -1}, 10**6) == os.cpu_count()
    assert cluster.at_once({"_target_": "x.LocalLauncher"}, 5) == 5 and cluster.at_once({"_target_": "x.Slurm"}, 5) == 1


TAKES = """
import os, sys
sys.path[:0] = [{src!r}]
from omegaconf import OmegaConf
from leyden.launch import cluster, ranks
ranks.gpus = lambda accelerator: 2
cluster.take_gpu(OmegaConf.create({{"devices": "auto", "accelerator": "auto"}}))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


def test_jobs_at_a_time_have_a_gpu_each(tmp_path):
    env = os.environ | {"LEYDEN_PARALLEL": "3", "CUDA_VISIBLE_DEVICES": "4,7", "TMPDIR": str(tmp_path)}
    text = TAKES.format(src=str(paths.PROJECT / "src"))
    started, taken = [], []
    for _ in range(3):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", text], env=env, **pipes))
        taken.append(started[-1].stdout.readline().strip())
    for process in started:
        process.communicate()
    assert taken == ["4", "7", "4,7"]
