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
from leyden.launch import cluster, ranks
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


def test_a_step_of_slurm_speaks_the_words_of_torchrun(monkeypatch):
    words = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
             "SLURM_JOB_ID": "123456", "SLURM_NODELIST": "gpu[07-08],other"}  # fmt: skip
    monkeypatch.setattr(os, "environ", words)
    cluster.translate()  # a batch script, whose tasks nobody has started; Lightning must not think so either
    assert "RANK" not in words and "SLURM_NTASKS" not in words
    words |= {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[07-08]"}
    monkeypatch.setattr(os, "environ", words | {"SLURM_STEP_NUM_TASKS": "1"})
    cluster.translate()
    assert "RANK" not in os.environ
    monkeypatch.setattr(os, "environ", words)
    cluster.translate()
    assert words["RANK"] == "5" and words["WORLD_SIZE"] == "8" and words["LOCAL_WORLD_SIZE"] == "4"
    assert words["MASTER_ADDR"] == "gpu07" and words["MASTER_PORT"] == "18456" and words["GROUP_RANK"] == "1"
    monkeypatch.setattr(cluster, "SHARED", [Store()])

    def asked(**keys):
        trainer = {"devices": "auto", "num_nodes": 1, "strategy": "auto", "accelerator": "cpu"} | keys
        return cluster.lead(lambda cfg: cfg.trainer, OmegaConf.create({"trainer": trainer}))

    assert asked() == {"devices": 4, "num_nodes": 2, "strategy": "ddp", "accelerator": "cpu"}
    with pytest.raises(UserError, match="must be 4, as many"):
        asked(devices=3)
    with pytest.raises(UserError, match="must be 2, as many"):
        asked(devices=4, num_nodes=5)


class Store(dict):
    """What the ranks share, of one process."""

    def set(self, name: str, value: str) -> None:
        self[name] = value.encode()

    def multi_get(self, names: list[str]) -> list[bytes]:
        return [self[name] for name in names]


@pytest.fixture
def rank_5(monkeypatch):
    """What rank 5 of 8, on the second of two machines, shares with the others."""
    store = Store({f"alive {number}": b"" for number in range(8)})
    monkeypatch.setattr(os, "environ", {"RANK": "5", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "8"})
    monkeypatch.setattr(cluster, "SHARED", [store])
    return store


@pytest.mark.parametrize(("seen", "local", "asked"), [(1, "0", (1, 8)), (4, "1", (4, 2))])
def test_a_task_that_sees_one_gpu_has_number_0(rank_5, monkeypatch, seen, local, asked):
    monkeypatch.setattr(ranks, "gpus", lambda accelerator: seen)
    cfg = OmegaConf.create({"trainer": {"devices": 4, "num_nodes": 2, "accelerator": "gpu"}})
    found = cluster.together(lambda cfg: (cfg.trainer.devices, cfg.trainer.num_nodes), cfg)
    assert found == asked and os.environ["LOCAL_RANK"] == local and os.environ["RANK"] == "5"


def test_a_lost_rank_is_named(rank_5, monkeypatch):
    cfg = OmegaConf.create({"trainer": {"devices": 4, "accelerator": "cpu"}})

    def live(seconds: float) -> None:
        rank_5.update({f"alive {number}": b"later" for number in range(8) if number != dead})

    def fail(cfg):
        raise ValueError("a bad number")

    monkeypatch.setattr(cluster.time, "sleep", live)
    dead = None
    with pytest.raises(ValueError, match="a bad number"):  # its own fault
        cluster.together(fail, cfg)
    dead = 3
    rank_5.update({f"alive {number}": b"" for number in range(8)})
    with pytest.raises(ranks.RankError, match="rank 3 was lost"):
        cluster.together(fail, cfg)


def test_a_job_that_slurm_starts_again_finds_what_it_had_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEYDEN_COMMAND", "python src/train.py seed=1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    for name, job, seed in (("a", "7", 1), ("b", "7", 1), ("c", "7", 2), ("d", "8", 1)):
        (tmp_path / name).mkdir()
        Run(tmp_path / name).update(command=f"python src/train.py seed={seed}", slurm={"job": job, "restarts": 0})
    assert cluster.requeued(tmp_path) is None  # its first start
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert cluster.requeued(tmp_path) == tmp_path / "b" and "job 7 again (restart 2)" in capsys.readouterr().out
    monkeypatch.delenv("SLURM_JOB_ID")
    assert cluster.requeued(tmp_path) is None


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


@pytest.mark.slow
def test_a_sweep_under_torchrun_is_refused(command):
    refused = command("train.py", "-m", "seed=1,2", env=os.environ | {"RANK": "0", "WORLD_SIZE": "1",
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
from leyden.launch import cluster, ranks
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
with cluster.awaited():
    pass
"""


@pytest.mark.slow
def test_a_signal_ends_a_rank_that_waits_for_the_others():
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env["PYTHONPATH"] = str(paths.PROJECT / "src")
    with subprocess.Popen([sys.executable, "-c", WAITS], env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline().startswith("waiting for 2 ranks")
        time.sleep(3)  # torch is imported
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


def test_jobs_at_a_time():
    assert cluster.at_once(3, 8) == 3 and cluster.at_once(8, 2) == 2 and cluster.at_once(None, 5) == 1
    assert cluster.at_once(-1, 10**6) == os.cpu_count()


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
