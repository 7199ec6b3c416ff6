"""How much memory each stage of an epoch takes, whether it grows, and what was in it when it was full."""

import logging
import os
import sys
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from leyden import UserError

log = logging.getLogger(__name__)
MIB = 2**20
EPOCHS = 5  # of growth in a row, by over 1 MiB each, that are no accident
HISTORY = 100_000  # allocations whose places in the code a snapshot knows


class Memory(Callback):
    """Logs, in MiB: what is resident on the host; of a GPU what is allocated, reserved, and the peak of the run so far.

    Args:
        directory: where a summary and a snapshot go when a GPU is out of memory
        empty_cache: never or epoch

    Raises:
        UserError: another word for empty_cache.
    """

    def __init__(self, directory: str, empty_cache: str = "never"):
        if empty_cache not in ("never", "epoch"):
            raise UserError(f"`callbacks.memory.empty_cache` must be never or epoch; got `{empty_cache}`.")
        self.directory, self.empty_cache = Path(directory), empty_cache
        self.held: list[float] = []  # MiB at the end of each epoch: of the GPU where there is one, else of the host
        self.said = False

    def setup(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        self.cuda = trainer.strategy.root_device.type == "cuda"
        if self.cuda and stage == "fit":
            torch.cuda.memory._record_memory_history(max_entries=HISTORY)

    def teardown(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        if self.cuda and stage == "fit":
            torch.cuda.memory._record_memory_history(enabled=None)

    def on_validation_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.measure(trainer, "val")

    def on_test_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.measure(trainer, "test")

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        found = self.measure(trainer, "train")
        self.held = [*self.held[-EPOCHS:], found.get("allocated", found["resident"])]
        grows = all(after > before + 1 for before, after in zip(self.held, self.held[1:], strict=False))
        if grows and len(self.held) > EPOCHS and not self.said:
            self.said = True
            log.warning(
                "Memory of the %s grew in each of the last %d epochs, from %.0f to %.0f MiB: look for a list that "
                "keeps losses or outputs with their graphs; append loss.detach(), and clear it after each epoch.",
                "GPU" if self.cuda else "host", EPOCHS, self.held[0], self.held[-1],
            )  # fmt: skip
        if self.cuda and self.empty_cache == "epoch":
            torch.cuda.empty_cache()

    def measure(self, trainer: Trainer, stage: str) -> dict[str, float]:
        """The numbers of now, logged."""
        found = {"resident": resident()}
        if self.cuda:
            device = trainer.strategy.root_device
            found["allocated"] = torch.cuda.memory_allocated(device) / MIB
            found["reserved"] = torch.cuda.memory_reserved(device) / MIB
            found["peak"] = torch.cuda.max_memory_allocated(device) / MIB
        if trainer.is_global_zero:
            log.info("memory, %s: %s", stage, ", ".join(f"{name} {value:.0f} MiB" for name, value in found.items()))
        for logger in trainer.loggers:
            logger.log_metrics({f"memory/{stage}_{name}": value for name, value in found.items()}, trainer.global_step)
        return found

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if self.cuda and isinstance(exception, torch.OutOfMemoryError):
            rank = trainer.global_rank or ""
            text = torch.cuda.memory_summary(trainer.strategy.root_device)
            (self.directory / f"memory_summary{rank}.txt").write_text(text)
            torch.cuda.memory._dump_snapshot(str(self.directory / f"memory_snapshot{rank}.pickle"))
            log.warning("memory_summary%s.txt and memory_snapshot%s.pickle say what was in memory.", rank, rank)


def resident() -> float:
    """MiB of this process in memory; on macOS the most that it ever had, nan on Windows."""
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    if sys.platform == "win32":
        return float("nan")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB
