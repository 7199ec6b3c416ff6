"""What holds for the whole process of a run: seed, threads, precision of products, memory, and less noise."""

import atexit
import ctypes
import gc
import itertools
import logging
import multiprocessing
import os
import platform
import random
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning
import numpy as np
import torch
from omegaconf import DictConfig
from torch.backends import cudnn

from leyden import UserError
from leyden.data.datamodule import cores
from leyden.resume import compiled

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
JOBS = itertools.count()  # of this process
LOGGERS = ("lightning.pytorch", "lightning.fabric", "lightning")
FLAGS = (  # what holds for the whole process: how to read it, and to set it
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_rng_state, torch.set_rng_state),
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
)


@contextmanager
def restored() -> Iterator[None]:
    """Leave the process as a job found it, however the job ends; what an earlier one has left is freed first."""
    if next(JOBS):
        gc.collect()  # 0.4 s
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    loggers = {name: (logger := logging.getLogger(name), logger.handlers[:], logger.level) for name in LOGGERS}
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    drawn = ((torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),) if torch.cuda.is_initialized() else ()
    flags: list[tuple[Any, Any]] = [(put, get()) for get, put in (*FLAGS, *drawn)]
    environment, errors = dict(os.environ), logging.raiseExceptions
    kernels: dict[str, Any] = {name: getattr(cudnn, name) for name in ("enabled", "benchmark", "deterministic")}
    inductor = torch._inductor.config.deterministic
    try:
        with compiled.by_the_run_alone(), warnings.catch_warnings():
            yield
    finally:
        for put, value in flags:
            put(value)
        torch._inductor.config.deterministic = inductor
        for name, value in kernels.items():
            setattr(cudnn, name, value)
        for logger, before, level in loggers.values():
            logger.handlers[:] = before
            logger.setLevel(level)
        logging.raiseExceptions = errors
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        main = threading.current_thread() is threading.main_thread()  # others may set no handlers
        for number, handler in handlers.items() if main else ():
            if handler is not None and signal.getsignal(number) != handler:  # None: not one of Python's
                signal.signal(number, handler)


def switches(cfg: DictConfig) -> None:
    """Set what holds for the whole process: seed, threads, precision of products, and less noise."""
    for name in LOGGERS:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.WARNING)
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)
    if not torch.cuda.is_available():  # else each optimizer step tries to load NVML again, 200 us
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    set_malloc_thresholds()
    torch.set_num_threads(threads(cfg))
    if cfg.matmul_precision not in ("highest", "high", "medium"):
        raise UserError(f"matmul_precision={cfg.matmul_precision} is none; choose highest, high or medium.")
    torch.set_float32_matmul_precision(cfg.matmul_precision)
    torch.backends.cudnn.deterministic = bool(cfg.trainer.deterministic)  # the Trainer sets the rest before CUDA starts
    if not 0 <= cfg.seed < 2**32:
        raise UserError(f"`seed` must be from 0 to 4294967295; got `{cfg.seed}`.")
    lightning.seed_everything(cfg.seed, workers=True, verbose=False)


def set_malloc_thresholds() -> None:
    """Let glibc keep the big buffers of a step for the next one; to give them back and fault them in costs 15 %."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: its largest value
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


@atexit.register
def end_workers() -> None:
    """Kill loader processes that an error left behind: they ignore the SIGTERM that Python sends."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def threads(cfg: DictConfig) -> int:
    """CPU threads of this process: as asked, by OMP_NUM_THREADS, or the cores divided among the processes."""
    if cfg.threads is not None and cfg.threads < 1:
        raise UserError(f"`threads` must be at least 1; got `{cfg.threads}`.")
    if cfg.threads:
        return cfg.threads
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    return cores()
