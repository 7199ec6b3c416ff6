"""What runs beside this process: ranks that torchrun or SLURM has started, and other jobs of a sweep."""

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError, require, said
from leyden.files import lock
from leyden.launch import ranks
from leyden.run.run import Run, Status, slurm_job

WAIT = timedelta(minutes=10)  # that the ranks wait for each other
SILENCE = 5  # seconds without a sign of life, after which a rank is lost
SHARED: list[Any] = []  # the store, which ends when rank 0 lets go of it
HELD: list[Any] = []  # the lock of this process's GPU, until it ends


# ranks: one of them decides, the others do as it does


def translate() -> None:
    """Give a task of srun the variables that torchrun would have set, so that there is one kind of rank.

    A batch script is no step: nobody has started its tasks.
    """
    os.environ.pop("SLURM_NTASKS", None)  # then Lightning leaves SLURM alone, its own way to requeue a job with it
    slurm = {name[6:]: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    tasks = int(slurm.get("STEP_NUM_TASKS") or 1)
    if tasks == 1 or "RANK" in os.environ or ranks.entered():
        return
    nodes, number = slurm["STEP_NODELIST"], int(slurm["STEP_NUM_NODES"])
    each = tasks // number
    require(each * number == tasks, "--ntasks", f"as many on each of the {number} nodes", tasks)
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


def lead(function: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """Run the function as rank 0, on a config that the other ranks get, too."""
    fit(cfg.trainer)
    share(OmegaConf.to_yaml(cfg))
    try:
        return together(function, cfg)
    except ranks.RankError as error:
        Run(cfg.run_dir).end(Status.FAILED, str(error))
        raise


def join(function: Callable[[DictConfig], Any]) -> Any:
    """Run the function on rank 0's config, as another rank; leave as rank 0 did where it has none."""
    SHARED.append(store())
    text = hearing(partial(SHARED[0].get, "config")).decode()
    if text.isdecimal():
        sys.exit(int(text))
    cfg: Any = OmegaConf.create(text)
    OmegaConf.set_struct(cfg, True)  # as Hydra does
    return together(function, cfg)


def together(function: Callable[[DictConfig], Any], cfg: DictConfig) -> Any:
    """Run the function in one of several ranks; RankError where another one has failed, or is gone."""
    world, ended = int(os.environ["WORLD_SIZE"]), threading.Event()
    if cfg.trainer.devices > 1 and ranks.gpus(cfg.trainer.accelerator) == 1:  # each sees its own, as number 0
        os.environ.update(LOCAL_RANK="0", GROUP_RANK=os.environ["RANK"])
        cfg.trainer.update(devices=1, num_nodes=world)
    SHARED[0].set(f"alive {rank()}", "")
    threading.Thread(target=show_life, args=[ended], daemon=True).start()
    try:
        return function(cfg)
    except Exception as error:
        if why := other_failure(error, world):
            raise ranks.RankError(why) from None  # what the collectives say of it is in train.log
        raise
    finally:
        ended.set()


def show_life(ended: threading.Event) -> None:
    """Let the others see that this process lives."""
    with suppress(RuntimeError):  # rank 0 is gone
        while not ended.wait(1):
            SHARED[0].set(f"alive {rank()}", str(time.time()))


def other_failure(error: Exception, world: int) -> str:
    """How another rank failed, which ends the collectives of all; empty where this one is the first to fail."""
    everyone = [f"alive {number}" for number in range(world)]
    try:
        if SHARED[0].check(["failure"]):
            return SHARED[0].get("failure").decode()
        before = SHARED[0].multi_get(everyone)
        time.sleep(SILENCE)
        pairs = enumerate(zip(before, SHARED[0].multi_get(everyone), strict=True))
        lost = ", ".join(str(number) for number, (then, now) in pairs if then == now)
        why = f"rank {lost} was lost; SLURM or its own output says why" if lost else ""
        SHARED[0].set("failure", why or f"rank {rank()} failed: {said(error)}")
        return why
    except RuntimeError:  # the store has gone with its rank
        return "rank 0 was lost; SLURM or its own output says why"


def requeued(folder: Path, read: Callable[[Path], dict[str, Any]]) -> Path | None:
    """The directory in a folder that the same command made in this job of SLURM, before SLURM started the job again.

    `read` gives what a directory says of its command and its job.
    """
    job = slurm_job()
    for path in sorted(folder.glob("*/"), reverse=True) if job and job["restarts"] else []:
        then = read(path)
        same = then.get("command") == os.environ.get("LEYDEN_COMMAND")
        if job and same and isinstance(then.get("slurm"), dict) and then["slurm"].get("job") == job["job"]:
            print(f"SLURM has started job {job['job']} again (restart {job['restarts']})")
            return path
    return None


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
