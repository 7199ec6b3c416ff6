"""A callback that makes jobs of a sweep fail by their numbers."""

import math
import os
import signal
from pathlib import Path

from lightning.pytorch.callbacks import Callback


class Trouble(Callback):
    """`val/score`: best where lr is 1e-2.

    Args:
        lr: the job's
        raises: jobs that raise
        nan: jobs whose score is none
        killed: jobs that end by kill -9, each time
        stopped: jobs that are asked to stop, once
        flags: a folder for what was done once
    """

    def __init__(self, lr, raises=(), nan=(), killed=(), stopped=(), flags="."):
        self.lr, self.raises, self.nan, self.killed, self.stopped = lr, raises, nan, killed, stopped
        self.flags = Path(flags)

    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        job = int(Path(trainer.default_root_dir).name)
        if trainer.global_step < 3:
            return
        if job in self.raises:
            raise RuntimeError("boom")
        if job in self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if job in self.stopped and not (flag := self.flags / f"stopped-{job}").exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_epoch_end(self, trainer, task):
        job = int(Path(trainer.default_root_dir).name)
        self.log("val/score", math.nan if job in self.nan else -((math.log10(self.lr) + 2) ** 2))


class Resident(Callback):
    """Writes how much memory the process of a sweep has when a job begins, in MB, into a file of the sweep."""

    def on_fit_start(self, trainer, task):
        job = Path(trainer.default_root_dir)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        with open(job.parent / "memory.txt", "a") as file:
            file.write(f"{pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.0f}\n")
