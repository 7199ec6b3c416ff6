"""Jobs of a sweep that run at a time on one machine: how many, and which GPU each has."""

import os
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig

from leyden.launch import ranks


def at_once(launcher: Any, jobs: int) -> int:
    """Jobs that a launcher runs at a time on this machine."""
    many = launcher.get("n_jobs")  # of joblib
    if many is not None:
        cores = os.cpu_count() or 1
        return max(1, min(jobs, many if many > 0 else cores + 1 + many))
    return jobs if str(launcher.get("_target_")).endswith("LocalLauncher") else 1


HELD: list[FileLock] = []  # the lock of this process's GPU, until it ends


def take_gpu(trainer: DictConfig) -> None:
    """Of several jobs at a time on a machine with several GPUs, give each process one that no other has."""
    if HELD or int(os.environ.get("LEYDEN_PARALLEL", 1)) == 1 or str(trainer.devices) not in ("auto", "1", "-1"):
        return
    count = ranks.gpus(trainer.accelerator)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for name in names if count > 1 else ():
        lock = FileLock(Path(tempfile.gettempdir(), f"leyden-gpu-{name}.lock"))
        try:
            lock.acquire(blocking=False)
        except OSError:  # another job, or another user, has it
            continue
        HELD.append(lock)
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        return
