"""What holds for the whole process: seed, threads, precision of products, memory, and less noise."""

import atexit
import ctypes
import gc
import logging
import multiprocessing
import os
import platform
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import lightning
import torch
from lightning.fabric.utilities.warnings import disable_possible_user_warnings
from omegaconf import DictConfig
from torch._inductor import config as inductor
from torch.backends import cudnn

from leyden import require
from leyden.data.datamodule import cores
from leyden.resume import compiled, stopping

NOISE = (  # in warnings
    "AMP with fp16 is not supported on CPU",  # build.trainer says it
    "callbacks used to create the checkpoint",  # of training
    "lr_scheduler.step.*before.*optimizer.step",  # fires falsely when a scaler skips its first step
    "isinstance.treespec, LeafSpec|across ranks is zero",
    "requested to overfit but enabled .* shuffling",
    "You have overridden .*transfer_batch",
    "nn.Module. and is already saved",
    "WeightAveraging callback with a model that overrides the configure_model",
)
FLAGS = ("num_threads", "default_dtype", "float32_matmul_precision", "deterministic_debug_mode")  # of torch
LOGGERS = ("lightning.pytorch", "lightning.fabric", "lightning")


@contextmanager
def restored() -> Iterator[None]:
    """Leave the process as a job found it, however it ends; what an earlier one has left is freed first."""
    if gc.get_freeze_count():
        gc.collect()
    else:
        gc.freeze()  # what is imported stays; to look at it again takes 0.4 s a job

    torch.cuda.empty_cache()
    switches = [(cudnn, "enabled"), (cudnn, "benchmark"), (cudnn, "deterministic"), (inductor, "deterministic")]
    with ExitStack() as after, compiled.by_the_run_alone(), warnings.catch_warnings():
        for name in FLAGS:
            after.callback(getattr(torch, f"set_{name}"), getattr(torch, f"get_{name}")())
        after.callback(torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled())
        after.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        for owner, name in [*switches, (logging, "raiseExceptions")]:
            after.callback(setattr, owner, name, getattr(owner, name))
        for logger in map(logging.getLogger, (None, *LOGGERS)):
            after.callback(setattr, logger, "handlers", logger.handlers[:])
            after.callback(logger.setLevel, logger.level)
        after.callback(logging.captureWarnings, False)
        after.callback(os.environ.update, dict(os.environ))
        after.callback(os.environ.clear)

        if threading.current_thread() is threading.main_thread():  # others may not
            for number in stopping.SIGNALS:
                after.callback(signal.signal, number, signal.getsignal(number) or signal.SIG_DFL)
        yield


def set_global_torch_flags(cfg: DictConfig) -> None:
    """Set what the config says of the process, and take away noise."""
    seed, threads, precision = cfg.seed, cfg.threads, cfg.matmul_precision
    require(type(seed) is int and 0 <= seed < 2**32, "seed", "a whole number from 0 to 4294967295", seed)
    good = threads is None or (type(threads) is int and threads > 0)
    require(good, "threads", "null or a whole number from 1 up", threads)
    require(precision in ("highest", "high", "medium"), "matmul_precision", "one of highest, high, medium", precision)

    for logger in map(logging.getLogger, LOGGERS):
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", f".*({'|'.join(NOISE)})")
    disable_possible_user_warnings()  # guesses of Lightning

    if not torch.cuda.is_available():  # else each step tries to load NVML, 200 us
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    set_malloc_thresholds()

    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(threads or (int(asked) if asked.isdecimal() else 0) or cores())
    torch.set_float32_matmul_precision(precision)
    cudnn.deterministic = bool(cfg.trainer.deterministic)  # the Trainer sets the rest
    lightning.seed_everything(seed, workers=True, verbose=False)


def set_malloc_thresholds() -> None:
    """Let glibc keep a step's big buffers for the next: to fault them in again costs 15 %."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: its largest value
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


@atexit.register
def end_workers() -> None:
    """Kill loader processes that an error left: they ignore Python's SIGTERM."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
