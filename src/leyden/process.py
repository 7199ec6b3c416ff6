"""What holds for the whole process of a run: seed, threads, precision of products, memory, and less noise."""

import atexit
import logging
import multiprocessing
import os
import warnings

import lightning
import torch
from omegaconf import DictConfig

from leyden import UserError, heap
from leyden.data.datamodule import cores

NOISE = (
    ".*does not have many workers.*",
    ".*sync_dist=True.*",  # lightning_internals.RankLogger joins all values
    ".*number of training batches.*is smaller than the logging interval.*",
    ".*AMP with fp16 is not supported on CPU.*",  # said by `trainer` below, and stored
    ".*Checkpoint directory.*exists and is not empty.*",
    ".*callbacks used to create the checkpoint.*",  # an evaluation needs no keeper
    ".*resuming from a checkpoint that ended before the epoch ended.*",  # exact.fast_forward
    ".*lr_scheduler.step.*before.*optimizer.step.*",  # fires falsely when a scaler skips its first step
    ".*isinstance.treespec, LeafSpec.*",
    ".*across ranks is zero.*",
    ".*requested to overfit but enabled .* shuffling.*",
    ".*You have overridden .*transfer_batch.*",
)


def switches(cfg: DictConfig) -> None:
    """Set what holds for the whole process: seed, threads, precision of products, and less noise."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.WARNING)
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)
    if not torch.cuda.is_available():  # else each optimizer step tries to load NVML again, 200 us
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    heap.keep()
    torch.set_num_threads(threads(cfg))
    if cfg.matmul_precision not in ("highest", "high", "medium"):
        raise UserError(f"matmul_precision={cfg.matmul_precision} is none; choose highest, high or medium.")
    torch.set_float32_matmul_precision(cfg.matmul_precision)
    torch.backends.cudnn.deterministic = bool(cfg.trainer.deterministic)  # the Trainer sets the rest before CUDA starts
    lightning.seed_everything(cfg.seed, workers=True, verbose=False)


@atexit.register
def end_workers() -> None:
    """Kill loader processes that an error left behind: `exact.deaf` ones do not hear the SIGTERM that Python sends."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def threads(cfg: DictConfig) -> int:
    """CPU threads of this process: as asked, by OMP_NUM_THREADS, or the cores divided among the processes."""
    if cfg.threads:
        return cfg.threads
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    return cores()
