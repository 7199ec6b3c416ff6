"""How much memory each stage of an epoch takes, whether it grows, and what was in it when it was full."""

import logging
import math
import os
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

log = logging.getLogger(__name__)
MIB = 2**20
EPOCHS = 5  # of growth in a row, by over 1 MiB each, that are no accident


class Memory(Callback):
    """Logs, in MiB: what is resident on the host; of a GPU what is allocated, reserved, and the peak of the run so far.

    Args:
        directory: where a summary and a snapshot go when a GPU is out of memory
        empty_cache: give back what the allocator of a GPU holds unused, after each epoch
    """

    def __init__(self, directory: str, empty_cache: bool = False):
        self.directory, self.empty_cache = Path(directory), empty_cache
        self.last, self.grown = math.inf, 0  # MiB after the last epoch, and epochs of growth in a row

    def setup(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        self.cuda = trainer.strategy.root_device.type == "cuda"
        if self.cuda:
            torch.cuda.memory._record_memory_history(max_entries=100_000)

    def teardown(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        if self.cuda:
            torch.cuda.memory._record_memory_history(enabled=None)

    def measure(self, trainer: Trainer, task: LightningModule) -> None:
        """Log the numbers of now."""
        self.found = {"resident": resident()}
        if self.cuda:
            self.found["allocated"] = torch.cuda.memory_allocated() / MIB
            self.found["reserved"] = torch.cuda.memory_reserved() / MIB
            self.found["peak"] = torch.cuda.max_memory_allocated() / MIB
        if not trainer.sanity_checking:
            stage = trainer.state.stage.dataloader_prefix
            log.info("memory, %s: %s", stage, ", ".join(f"{name} {mib:.0f} MiB" for name, mib in self.found.items()))
            for logger in trainer.loggers:
                values = {f"memory/{stage}_{name}": mib for name, mib in self.found.items()}
                logger.log_metrics(values, trainer.global_step)

    on_validation_epoch_end = on_test_epoch_end = measure

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.measure(trainer, task)
        held = self.found.get("allocated", self.found["resident"])
        self.last, self.grown = held, self.grown + 1 if held > self.last + 1 else 0
        if self.grown == EPOCHS:
            what = "look for a list that keeps losses or outputs with their graphs, and append loss.detach()"
            log.warning("Memory grew in each of the last %d epochs, to %.0f MiB; %s.", EPOCHS, held, what)
        if self.cuda and self.empty_cache:
            torch.cuda.empty_cache()

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, torch.OutOfMemoryError):
            rank = trainer.global_rank or ""
            (self.directory / f"memory_summary{rank}.txt").write_text(torch.cuda.memory_summary())
            torch.cuda.memory._dump_snapshot(str(self.directory / f"memory_snapshot{rank}.pickle"))
            log.warning("memory_summary%s.txt and memory_snapshot%s.pickle say what was in memory.", rank, rank)


def resident() -> float:
    """MiB of this process in memory; nan where the system has no /proc."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB if file.exists() else math.nan
