"""Ranks: how many, their values and errors, and that none outlives the job, however that ends."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from leyden import UserError
from leyden.launch import ranks

SRC = Path(ranks.__file__).parents[2]
TRAINER = {"accelerator": "cpu", "devices": 2, "num_nodes": 1, "strategy": "ddp"}
SCRIPT = """
import json, math, os, signal, subprocess, sys, time
from pathlib import Path
from omegaconf import OmegaConf
from leyden import UserError
from leyden.launch import ranks

def run(cfg):
    rank, here = int(os.environ["RANK"]), Path(cfg.run_dir)
    worker = subprocess.Popen(["sleep", "600"])  # stands for a DataLoader worker
    (here / f"{rank}.pid").write_text(f"{os.getpid()} {worker.pid}")
    while len(list(here.glob("*.pid"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)
"""
MAIN = """
if __name__ == "__main__":
    if ranks.entered():
        ranks.enter(run)
    cfg = OmegaConf.load(sys.argv[1])
    ranks.start(sys.argv[0], cfg, Path(cfg.run_dir), 2)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "LEYDEN_RANK_PIPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    monkeypatch.setattr(ranks, "GRACE", 0.5)
    folder = tmp_path / "ein Lauf, größer"
    folder.mkdir()
    return folder


def config(folder: Path, **keys):
    return OmegaConf.create(
        {"run_dir": str(folder), "trainer": TRAINER, "timeout": 600, "seed": 7, "again": "${seed}"} | keys
    )


def script(folder: Path, body: str) -> Path:
    """A script of which `run` has the body; what a failing test leaves behind ends with the job process."""
    path = folder / "skript für Ränge.py"
    path.write_text(SCRIPT + textwrap.indent(textwrap.dedent(body), "    ") + MAIN, encoding="utf-8")
    return path


def start(folder: Path, body: str, processes: int = 2, **keys):
    return ranks.start(str(script(folder, body)), config(folder, **keys), folder, processes)


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def started(folder: Path) -> list[int]:
    return [int(pid) for file in folder.glob("*.pid") for pid in file.read_text().split()]


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def nothing_left(folder: Path, processes: int = 2) -> None:
    assert len(started(folder)) == 2 * processes
    until(lambda: not any(alive(pid) for pid in started(folder)), seconds=2)


@contextlib.contextmanager
def job(folder: Path, body: str):
    """The job as a process of its own, once all its ranks run the body."""
    path, cfg = script(folder, "(here / f'{rank}.ready').touch()\n" + textwrap.dedent(body)), folder / "cfg.yaml"
    OmegaConf.save(config(folder), cfg)
    process = subprocess.Popen([sys.executable, path, cfg], stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(list(folder.glob("*.ready"))) == 2)
        yield process
    finally:
        process.kill()
        process.wait()


# ---- how many


@pytest.mark.parametrize(
    ("devices", "processes"),
    [(1, 1), (3, 3), ("2", 2), ([0, 1], 2), ([3], 1), ("auto", 2), (-1, 2), ("-1", 2)],
)
def test_devices_in_any_notation(devices, processes, folder):
    assert ranks.count(OmegaConf.create({**TRAINER, "devices": devices})) == processes


@pytest.mark.parametrize("devices", [0, -2, "two", "1.5", [], [-1], "", 1.5])
def test_devices_that_are_none(devices):
    with pytest.raises(UserError, match="must be a number, auto or a list"):
        ranks.count(OmegaConf.create({**TRAINER, "devices": devices}))


def test_all_devices_of_a_machine_without_gpus():
    ddp = {"_target_": "lightning.pytorch.strategies.DDPStrategy", "static_graph": True}
    for strategy, accelerator, processes in [
        ("auto", "cpu", 1),
        ("fsdp", "cpu", 1),
        ("ddp_find_unused_parameters_true", "cpu", 2),
        (ddp, "cpu", 2),
    ]:
        trainer = {**TRAINER, "devices": "auto", "strategy": strategy, "accelerator": accelerator}
        assert ranks.count(OmegaConf.create(trainer)) == processes


@pytest.mark.slow
def test_only_all_devices_are_counted_and_torch_is_asked_only_where_there_may_be_gpus(folder):
    program = """
        import sys
        from omegaconf import OmegaConf
        from leyden.launch import ranks
        def count(**keys):
            trainer = dict(accelerator="auto", devices="auto", num_nodes=1, strategy="ddp") | keys
            return ranks.count(OmegaConf.create(trainer))
        assert count(devices=2) == count(devices=[0, 1], accelerator="gpu") == count(accelerator="cpu") == 2
        assert "torch" not in sys.modules
        import torch
        ranks.Path.glob, torch.cuda.device_count = lambda *_: ["/dev/nvidia0"], lambda: 3
        assert count() == count(devices=-1, strategy="auto") == count(accelerator="gpu") == 3
        assert count(accelerator="cpu", strategy="auto") == 1
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_several_machines_need_a_rendezvous(folder, monkeypatch):
    trainer = OmegaConf.create({**TRAINER, "num_nodes": 2})
    with pytest.raises(UserError, match="or torchrun --nnodes=2 --nproc-per-node=2 "):
        ranks.count(trainer)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ranks.outside() and ranks.count(trainer) == 2


def test_several_nodes_of_slurm_need_srun(folder, monkeypatch):
    monkeypatch.setenv("SLURM_NNODES", "2")
    with pytest.raises(UserError, match=r"A run on 2 nodes .* type srun python,"):
        ranks.count(OmegaConf.create(TRAINER))
    assert ranks.count(OmegaConf.create({**TRAINER, "devices": 1})) == 1  # on the first of them


def test_who_started_this_process(folder, monkeypatch):
    assert not ranks.outside() and not ranks.entered()
    monkeypatch.setenv("RANK", "0")
    assert not ranks.outside()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ranks.outside() and not ranks.entered()
    monkeypatch.setenv("LEYDEN_RANK_PIPE", "7")
    assert not ranks.outside() and ranks.entered()


# ---- values


def test_each_rank_knows_its_place_and_nothing_stays_behind(folder):
    environment, handlers = dict(os.environ), [signal.getsignal(number) for number in ranks.SIGNALS]
    files = len(os.listdir("/dev/fd"))
    keys = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"]
    body = f"""
        words = {{key: os.environ[key] for key in {keys}}}
        (here / f"{{rank}}.json").write_text(json.dumps([words, OmegaConf.to_container(cfg), sys.stdin.read()]))
        return {{"rank": rank, "again": cfg.again, "torch": "torch" in sys.modules}}
    """
    assert start(folder, body, processes=3, ort="Zürich") == {"rank": 0, "again": 7, "torch": False}
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]
    assert [words["RANK"] for words, _, _ in told] == [words["LOCAL_RANK"] for words, _, _ in told] == ["0", "1", "2"]
    for words, cfg, stdin in told:
        assert (words["WORLD_SIZE"], words["LOCAL_WORLD_SIZE"], words["GROUP_RANK"]) == ("3", "3", "0")
        assert words["TORCHELASTIC_RUN_ID"] == told[0][0]["TORCHELASTIC_RUN_ID"]
        assert cfg["again"] == "${seed}" and cfg["ort"] == "Zürich" and cfg["trainer"]["devices"] == 3
        assert stdin == ""
    nothing_left(folder, processes=3)
    assert os.environ == environment and len(os.listdir("/dev/fd")) == files
    assert [signal.getsignal(number) for number in ranks.SIGNALS] == handlers
    assert not list(folder.glob("rank*.log"))


@pytest.mark.parametrize(("devices", "found"), [([1, 3], [1, 3]), ("auto", 2)])
def test_a_list_of_gpus_keeps_its_numbers(devices, found, folder):
    body = "return OmegaConf.to_container(cfg.trainer)['devices']"
    assert start(folder, body, trainer={**TRAINER, "devices": devices}) == found


def test_what_a_rank_says_is_in_its_log(folder):
    start(folder, "if rank == 1: print('ein Wörtchen', flush=True)\nif rank == 2: print('\\n ')", processes=3)
    assert (folder / "rank1.log").read_text("utf-8") == "ein Wörtchen\n"
    assert not (folder / "rank2.log").exists() and not (folder / "rank0.log").exists()


def test_jobs_at_once_have_ports_of_their_own(folder):
    folders = [folder / str(number) for number in range(4)]
    body = """
        (here.parent / f"{here.name}.at_work").touch()
        while len(list(here.parent.glob("*.at_work"))) < 4:
            time.sleep(0.02)
        return int(os.environ["MASTER_PORT"])
    """
    for one in folders:
        one.mkdir()
    with ProcessPoolExecutor(4) as pool:
        assert len(set(pool.map(functools.partial(start, body=body, processes=1), folders))) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep a port")
def test_a_port_is_kept_for_rank_0(folder):
    body = """
        import socket
        def bind(reuse):
            taken = socket.socket()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            taken.bind(("", int(os.environ["MASTER_PORT"])))
            taken.listen()
        try:
            bind(0)
        except OSError as error:
            bind(1)
            return error.strerror
    """
    assert start(folder, body, processes=1) == "Address already in use"


@pytest.mark.slow
def test_processes_of_torch_meet(folder):
    body = """
        import torch
        torch.distributed.init_process_group("gloo")
        total = torch.tensor(rank + 1.0)
        torch.distributed.all_reduce(total)
        return total.item()
    """
    assert start(folder, body) == 3.0
    nothing_left(folder)
    assert not list(folder.glob("rank*.log"))


# ---- bad ends


def test_an_exception_names_its_rank_and_ends_the_others(folder):
    with pytest.raises(ranks.RankError, match=r"rank 1 failed: ValueError: schlechte Zahl; see .*rank1.log") as caught:
        start(folder, "if rank == 1: raise ValueError('schlechte Zahl')\ntime.sleep(600)")
    assert "ValueError" in (folder / "rank1.log").read_text("utf-8") and "rank 0" not in str(caught.value)
    nothing_left(folder)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others(victim, folder):
    with pytest.raises(ranks.RankError, match=rf"rank {victim} was ended by signal 9") as caught:
        start(folder, f"print('step 9')\nif rank == {victim}: os.kill(os.getpid(), 9)\ntime.sleep(600)")
    assert str(caught.value).endswith("rank1.log" if victim else "train.log")
    nothing_left(folder)


def test_the_first_to_fail_is_named_not_the_first_to_leave(folder):
    body = """
        import atexit
        if rank == 1:
            atexit.register(time.sleep, 600)
            (here / "failed").touch()
            raise ValueError("the cause")
        while not (here / "failed").exists():
            time.sleep(0.02)
        time.sleep(0.2)
        raise ConnectionError("the consequence")
    """
    with pytest.raises(ranks.RankError, match="rank 1 failed: ValueError: the cause; see"):
        start(folder, body)


def test_a_status_of_0_before_the_end_is_a_failure(folder):
    with pytest.raises(ranks.RankError, match="rank 1 left with status 0 before the end"):
        start(folder, "if rank == 1: sys.exit(0)\ntime.sleep(600)")
    nothing_left(folder)


def test_a_rank_that_stays_behind_is_ended(folder):
    with pytest.raises(ranks.RankError, match="rank 1 was ended by signal 9"):
        start(folder, "if rank == 1: time.sleep(600)", timeout=0.5)
    nothing_left(folder)


def test_a_mistake_of_the_user_arrives_as_one(folder, capfd):
    with pytest.raises(UserError, match=r"^keine Klasse: type 10$"):
        start(folder, "raise UserError('keine Klasse: type 10')")
    nothing_left(folder)
    assert not list(folder.glob("rank*.log")) and capfd.readouterr().err == ""


@pytest.mark.parametrize("number", ranks.SIGNALS)
def test_a_signal_reaches_the_ranks_once(number, folder):
    body = f"""
        def save(number, _):
            with open(here / f"{{rank}}.saved", "a") as file:
                file.write("x")
            sys.exit(128 + number)
        signal.signal({int(number)}, save)
        (here / f"{{rank}}.catching").touch()
        time.sleep(600)
    """
    with job(folder, body) as process:
        until(lambda: len(list(folder.glob("*.catching"))) == 2)
        process.send_signal(number)
        process.send_signal(number)  # as `timeout` does
        assert process.wait(20) == 128 + number
    assert [(folder / f"{rank}.saved").read_text() for rank in range(2)] == ["x", "x"]
    nothing_left(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_anybody_catches_it(number, folder):
    with job(folder, "time.sleep(600)") as process:
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    nothing_left(folder)


@pytest.mark.slow
def test_a_second_signal_kills(folder):
    with job(folder, "signal.signal(15, signal.SIG_IGN)\n(here / f'{rank}.deaf').touch()\ntime.sleep(600)") as process:
        until(lambda: len(list(folder.glob("*.deaf"))) == 2)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    nothing_left(folder)


def test_no_rank_outlives_a_job_that_is_killed(folder):
    with job(folder, "time.sleep(600)") as process:
        assert all(alive(pid) for pid in started(folder)) and len(started(folder)) == 4
        process.kill()
        until(lambda: not any(alive(pid) for pid in started(folder)), seconds=2)
