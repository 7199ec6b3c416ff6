"""What runs beside this process: ranks that torchrun or SLURM has started, and other jobs of a sweep."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError, require
from leyden.files import lock
from leyden.launch import ranks

WAIT = timedelta(minutes=10)  # that the ranks wait for each other
SHARED: list[Any] = []  # the store, which ends when rank 0 lets go of it
HELD: list[Any] = []  # the lock of this process's GPU, until it ends


# ranks: one of them decides, the others do as it does


def translate() -> None:
    """Give a task of srun the variables that torchrun would have set, so that there is one kind of rank.

    Lightning then leaves SLURM alone, its own way to requeue a job with it.
    """
    slurm = {name[6:]: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    tasks = int(slurm.get("NTASKS") or 1)
    if "PROCID" not in slurm or "RANK" in os.environ or tasks == 1 or ranks.entered():
        return
    nodes = slurm.get("STEP_NODELIST") or slurm.get("NODELIST", "127.0.0.1")
    each = tasks // int(slurm.get("NNODES") or slurm.get("JOB_NUM_NODES") or 1)
    words = {"RANK": slurm["PROCID"], "WORLD_SIZE": tasks, "LOCAL_RANK": slurm["LOCALID"], "LOCAL_WORLD_SIZE": each}
    words |= {"GROUP_RANK": slurm["NODEID"], "TORCHELASTIC_RUN_ID": slurm["JOB_ID"]}
    words["MASTER_ADDR"] = re.sub(r"\[(\d+).*", r"\1", nodes).split(",")[0]  # of a list such as node[01-04,7],gpu2
    words["MASTER_PORT"] = 15_000 + int(slurm["JOB_ID"]) % 10_000
    for name, word in words.items():
        os.environ.setdefault(name, str(word))


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def fit(trainer: DictConfig) -> None:
    """Set the trainer's processes to those that were started.

    Raises:
        UserError: the config asks for other numbers.
    """
    world = int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    for key, number in (("devices", here), ("num_nodes", world // here)):
        good = str(trainer[key]) in ("auto", "-1", "1", str(number))
        require(good, f"trainer.{key}", f"{number}, as many as were started, or left out", trainer[key])
        trainer[key] = number
    if trainer.strategy == "auto" and world > 1:
        trainer.strategy = "ddp"


def share(text: str) -> None:
    """Give the others a config as rank 0, or the status that they are to leave with; the first word counts."""
    if not SHARED:
        SHARED.append(None)  # after a signal, or where nobody comes, not a second time
        SHARED[0] = store()
        SHARED[0].set("config", text)


@contextmanager
def awaited() -> Iterator[None]:
    """Let the others leave as rank 0 does, if it has not come to a config."""
    try:
        yield
    finally:
        if ranks.outside():
            left = sys.exc_info()[1]
            code = getattr(left, "code", getattr(left, "status", 1))
            share("0" if left is None else str(code or 0))


def store() -> Any:
    """What all ranks share before there is a process group.

    Raises:
        UserError: they do not come.
    """
    from torch.distributed import PrefixStore, rendezvous

    world = os.environ["WORLD_SIZE"]
    if rank() == 0:
        print(f"waiting for {world} ranks, which srun or torchrun must start", file=sys.stderr)
    try:
        return PrefixStore("leyden", hearing(lambda: next(iter(rendezvous("env://", timeout=WAIT)))[0]))
    except Exception as error:  # of sockets, of torch, of the time
        raise UserError(f"The {world} ranks did not meet ({error}); start them by srun or torchrun.") from error


def hearing(wait: Callable[[], Any]) -> Any:
    """What a function of C++ returns at last; meanwhile a signal is heard, which ends the process."""
    return ThreadPool(1).apply_async(wait).get()


def join(function: Callable[[DictConfig], Any]) -> Any:
    """Run the function on rank 0's config, as another rank; leave as rank 0 did where it has none."""
    text = hearing(partial(store().get, "config")).decode()
    if text.isdecimal():
        sys.exit(int(text))
    cfg = OmegaConf.create(text)
    OmegaConf.set_struct(cfg, True)  # as Hydra does
    return function(cfg)


# jobs of a sweep at a time on one machine


def at_once(launcher: Any, jobs: int) -> int:
    """Jobs that a launcher runs at a time on this machine."""
    many = launcher.get("n_jobs")  # of joblib
    if many is not None:
        cores = os.cpu_count() or 1
        return max(1, min(jobs, many if many > 0 else cores + 1 + many))
    return jobs if str(launcher.get("_target_")).endswith("LocalLauncher") else 1


def take_gpu(trainer: DictConfig) -> None:
    """Of several jobs at a time on a machine with several GPUs, give each process one that no other has."""
    if HELD or int(os.environ.get("LEYDEN_PARALLEL", 1)) == 1 or str(trainer.devices) not in ("auto", "1", "-1"):
        return
    count = ranks.gpus(trainer.accelerator)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for name in names if count > 1 else ():
        held = lock(Path(tempfile.gettempdir(), f"leyden-gpu-{name}.lock"))
        try:
            held.acquire(blocking=False)
        except OSError:  # another job, or another user, has it
            continue
        HELD.append(held)
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        return
