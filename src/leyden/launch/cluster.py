"""What runs beside this process: ranks of torchrun or SLURM, and jobs of a sweep."""

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError, require, said
from leyden.files import lock, read_json
from leyden.launch import ranks
from leyden.run.run import Run, Status, started_again

SHARED: list[Any] = []  # the store, which ends when rank 0 lets go of it
HELD: list[Any] = []  # the lock of this process's GPU, until it ends


# ranks


def translate() -> None:
    """Give a task of srun the variables of torchrun: there is one kind of rank."""
    env = os.environ
    env.pop("SLURM_NTASKS", None)  # then Lightning does not requeue jobs in its own way
    tasks = int(env.get("SLURM_STEP_NUM_TASKS") or 1)  # a batch script starts none
    if tasks == 1 or "RANK" in env or ranks.entered():
        return

    nodes, job = int(env["SLURM_STEP_NUM_NODES"]), env["SLURM_JOB_ID"]
    env.update(RANK=env["SLURM_PROCID"], LOCAL_RANK=env["SLURM_LOCALID"], GROUP_RANK=env["SLURM_NODEID"])
    env.update(WORLD_SIZE=str(tasks), LOCAL_WORLD_SIZE=str(tasks // nodes), TORCHELASTIC_RUN_ID=job)
    first = re.sub(r"\[(\d+).*", r"\1", env["SLURM_STEP_NODELIST"]).split(",")[0]  # such as node[01-04,7],gpu2
    env.setdefault("MASTER_ADDR", first)
    env.setdefault("MASTER_PORT", str(15_000 + int(job) % 10_000))


def follows() -> bool:
    """Whether this process does as rank 0 does."""
    return ranks.outside() and os.environ["RANK"] != "0"


def share(text: str) -> None:
    """Give the others a config, or a status to leave with; only the first word counts."""
    if not SHARED:
        SHARED.append(None)  # where nobody comes, not a second time
        print(f"waiting for {os.environ['WORLD_SIZE']} ranks of srun or torchrun", file=sys.stderr)
        SHARED[0] = store()
        SHARED[0].set("config", text)


@contextmanager
def awaited() -> Iterator[None]:
    """Let the others leave as rank 0 does, where it has shared no config."""
    try:
        yield
    finally:
        if ranks.outside():
            left = sys.exc_info()[1]
            share(str(getattr(left, "code", getattr(left, "status", int(left is not None))) or 0))


def store() -> Any:
    """What all ranks share; UserError if they do not come."""
    from torch.distributed import rendezvous

    meeting = ThreadPool(1).apply_async(lambda: next(iter(rendezvous("env://")))[0])
    try:
        return meeting.get()  # meanwhile a signal is heard, which ends the process
    except Exception as error:  # of sockets, of torch
        raise UserError(f"The ranks did not meet ({said(error)}); start all of them by srun or torchrun.") from error


def lead(function: ranks.Function, cfg: DictConfig) -> Any:
    """Run the function as rank 0, on a config that the others get; UserError for other numbers of them."""
    trainer, world = cfg.trainer, int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    for key, number in (("devices", here), ("num_nodes", world // here)):
        good = str(trainer[key]) in ("auto", "-1", "1", str(number))
        require(good, f"trainer.{key}", f"{number}, as many as were started, or left out", trainer[key])
        trainer[key] = number
    if trainer.strategy == "auto" and world > 1:
        trainer.strategy = "ddp"
    share(OmegaConf.to_yaml(cfg))
    return together(function, cfg)


def join(function: ranks.Function) -> Any:
    """Run the function on rank 0's config, or leave as it did."""
    SHARED.append(store())
    text = SHARED[0].get("config").decode()
    if text.isdecimal():
        sys.exit(int(text))

    cfg: Any = OmegaConf.create(text, flags={"struct": True})
    return together(function, cfg)


def together(function: ranks.Function, cfg: DictConfig) -> Any:
    """Run the function in one of several ranks; RankError where another one is lost."""
    if cfg.trainer.devices > 1 and ranks.gpus(cfg.trainer.accelerator) == 1:  # each sees its own, as number 0
        os.environ.update(LOCAL_RANK="0", GROUP_RANK=os.environ["RANK"])
        cfg.trainer.update(devices=1, num_nodes=int(os.environ["WORLD_SIZE"]))

    alive, ended = f"alive {os.environ['RANK']}", threading.Event()
    SHARED[0].set(alive, "")

    def show_life() -> None:
        with suppress(RuntimeError):  # rank 0 is gone
            while not ended.wait(1):
                SHARED[0].set(alive, str(time.time()))

    threading.Thread(target=show_life, daemon=True).start()
    try:
        return function(cfg)
    except Exception:
        if not (lost := lost_ranks()):
            raise
        why = f"rank {lost} was lost; SLURM or its own output says why"
        if not follows():
            Run(cfg.run_dir).end(Status.FAILED, why)
        raise ranks.RankError(why) from None  # what the collectives say of it is in train.log
    finally:
        ended.set()


def lost_ranks() -> str:
    """The ranks that give no sign of life, if any."""
    everyone = [f"alive {rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    try:
        before = SHARED[0].multi_get(everyone)
        time.sleep(5)
        after = SHARED[0].multi_get(everyone)
    except RuntimeError:  # the store has gone with its rank
        return "0"

    return ", ".join(str(rank) for rank, last in enumerate(after) if last == before[rank])


def requeued(folder: Path) -> Path | None:
    """The directory that this command made in this job before SLURM started it again."""
    restart = os.environ.get("SLURM_RESTART_COUNT")
    for path in sorted(folder.glob("*/"), reverse=True) if restart else []:
        then = Run(path).record or read_json(path / "sweep.json")
        if then.get("command") == os.environ.get("LEYDEN_COMMAND") and started_again(then):
            print(f"SLURM has started job {os.environ['SLURM_JOB_ID']} again (restart {restart})")
            return path
    return None


# jobs of a sweep


def at_once(n_jobs: int | None, jobs: int) -> int:
    """How many of some jobs joblib runs at a time; -1: as many as there are cores."""
    many = n_jobs or 1
    return max(1, min(jobs, many if many > 0 else many + 1 + (os.cpu_count() or 1)))


def take_gpu(trainer: DictConfig) -> None:
    """Of several jobs at a time on several GPUs, give each one of its own."""
    if HELD or int(os.environ.get("LEYDEN_PARALLEL", 1)) == 1 or str(trainer.devices) not in ("auto", "1", "-1"):
        return

    count = ranks.gpus(trainer.accelerator)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for name in names if count > 1 else []:
        held = lock(Path(tempfile.gettempdir(), f"leyden-gpu-{name}.lock"))
        with suppress(OSError):  # another job, or user, has it
            held.acquire(blocking=False)
            HELD.append(held)
            os.environ["CUDA_VISIBLE_DEVICES"] = name
            return
