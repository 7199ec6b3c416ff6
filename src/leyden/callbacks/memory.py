"""How much memory each stage of an epoch takes, whether it grows, and what was in it when it was full."""

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from leyden import UserError, heap

log = logging.getLogger(__name__)
MIB = 2**20
EPOCHS = 5  # of growth in a row that are no accident
SLOPE = 0.05, 0.0005  # MiB of an epoch, and of a step, below which growth is noise
HISTORY = 100_000  # allocations whose places in the code a snapshot knows


class Memory(Callback):
    """Logs, in MiB: of a GPU what is allocated, reserved and was at most, of the host what is resident and allocated.

    Growth is looked for in what is allocated: the resident set grows late, as freed memory is used again.

    Args:
        directory: where a summary and a snapshot go when a GPU is out of memory
        empty_cache: never or epoch

    Raises:
        UserError: another word for empty_cache.
    """

    def __init__(self, directory: str, empty_cache: str = "never"):
        if empty_cache not in ("never", "epoch"):
            raise UserError(f"callbacks.memory.empty_cache={empty_cache} is none; choose never or epoch.")
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

    def on_train_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(trainer.strategy.root_device)

    def on_validation_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.on_train_epoch_start(trainer, task)

    def on_test_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.on_train_epoch_start(trainer, task)

    def on_validation_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.tell(trainer, "val")

    def on_test_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.tell(trainer, "test")

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        found = self.tell(trainer, "train")
        self.held = [*self.held[-EPOCHS:], found.get("allocated", found["resident"])]
        grown = [after - before for before, after in zip(self.held, self.held[1:], strict=False)]
        slope = sum(grown) / EPOCHS
        noise = max(SLOPE[0], SLOPE[1] * trainer.fit_loop.epoch_loop.batch_progress.current.completed)
        if len(grown) == EPOCHS and min(grown) > 0 and slope > noise and not self.said:
            self.said = True
            log.warning(
                "Memory of the %s grew in each of the last %d epochs, by %.3g MiB an epoch, to %.0f MiB: something "
                "keeps what each step makes, such as a list of losses or outputs with their graphs; append "
                "loss.detach() or loss.item(), and clear the list after an epoch.",
                "GPU" if self.cuda else "host", EPOCHS, slope, self.held[-1],
            )  # fmt: skip
        if self.cuda and self.empty_cache == "epoch":
            torch.cuda.empty_cache()

    def tell(self, trainer: Trainer, stage: str) -> dict[str, float]:
        """The numbers of now, logged."""
        found = measure(trainer.strategy.root_device if self.cuda else None)
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

    def state_dict(self) -> dict[str, Any]:
        return {"said": self.said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.said = state["said"]


def measure(device: torch.device | None) -> dict[str, float]:
    """MiB that are in use: of a GPU, or of this process on the host."""
    if device is None:
        return {"resident": resident() / MIB} | ({"allocated": used / MIB} if (used := heap.used()) else {})
    stats = torch.cuda.memory_stats(device)
    names = {"allocated": "allocated_bytes.all.current", "reserved": "reserved_bytes.all.current",
             "peak": "allocated_bytes.all.peak"}  # fmt: skip
    return {name: stats.get(key, 0) / MIB for name, key in names.items()} | {"resident": resident() / MIB}


def resident() -> float:
    """Bytes of this process in the machine's memory; where the system does not say, the most that it ever had."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return most()
    import resource

    return int(pages) * resource.getpagesize()


def most() -> float:
    """Bytes of this process at most, as Unix counts them; nan on other systems."""
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
