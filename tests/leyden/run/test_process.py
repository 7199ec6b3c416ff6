import gc
import logging
import os
import platform
import signal
import warnings
import weakref

import lightning
import pytest
import torch
from torch.backends import cudnn

from leyden import UserError
from leyden.debug.watch import resident
from leyden.run import process


def state():
    """What a job must leave as it was."""
    return {
        "flags": [str(getattr(torch, f"get_{name}")()) for name in process.FLAGS],
        "autograd": (torch.is_anomaly_enabled(), torch.is_grad_enabled()),
        "kernels": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch._inductor.config.deterministic),
        "compile": torch._dynamo.config.get_config_copy(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "loggers": [(logger.handlers[:], logger.level) for logger in map(logging.getLogger, [None, *process.LOGGERS])],
        "warnings": warnings.filters[:],
        "environment": dict(os.environ),
    }


def disturb(end):
    """What a module of the user's own may do to the process."""
    torch.set_num_threads(2)
    torch.autograd.set_detect_anomaly(True)
    torch._dynamo.config.recompile_limit = 3
    cudnn.benchmark = True
    os.environ["OF_A_JOB"] = "1"
    signal.signal(signal.SIGUSR2, lambda *_: None)
    warnings.simplefilter("ignore")
    if end == "failed":
        torch.set_default_dtype(torch.float64)
        raise KeyError
    if end == "stopped":
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("end", ["finished", "failed", "stopped"])
def test_a_job_leaves_the_process_as_it_was(train, monkeypatch, end):
    from lab.tasks.classification import Classification

    step = Classification.validation_step
    kept = []

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking and not kept:
            kept.extend(map(weakref.ref, (self, self.trainer, self.trainer.datamodule)))
            disturb(end)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "validation_step", validation_step)
    monkeypatch.setattr(logging.getLogger("leyden.file"), "disabled", True)  # pytest would keep the traceback
    before = state()
    try:
        train("trainer.deterministic=true", "trainer.max_epochs=1")
        assert end == "finished"
    except KeyError:
        assert end == "failed"
    except SystemExit as left:
        assert end == "stopped" and left.code == 128 + signal.SIGTERM
    after = state()
    assert {name: after[name] for name in before if after[name] != before[name]} == {}
    gc.collect()
    assert len(kept) == 3 and [part() for part in kept] == [None, None, None]


@pytest.mark.slow
def test_what_an_earlier_job_left_is_freed_when_the_next_begins(train, monkeypatch):
    kept, fit = [], lightning.Trainer.fit

    def watch(self, task, **keywords):
        assert all(part() is None for part in kept)
        kept.append(weakref.ref(task))
        fit(self, task, **keywords)

    monkeypatch.setattr(lightning.Trainer, "fit", watch)
    for folder in "ab":
        train("trainer.max_epochs=1", folder=folder)
    assert len(kept) == 2


def test_the_same_seed_draws_the_same_and_threads_are_set(configure):
    drawn = []
    for _ in range(2):
        process.set_global_torch_flags(configure("seed=3", "threads=1"))
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1] and torch.get_num_threads() == 1


def test_threads_follow_the_environment_unless_they_are_said(configure, monkeypatch):
    for environment, keys, low, high in (("3", [], 3, 3), ("3", ["threads=2"], 2, 2), ("", [], 1, os.cpu_count())):
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
        with process.restored():
            process.set_global_torch_flags(configure(*keys))
            assert low <= torch.get_num_threads() <= high


def test_a_precision_of_products_that_is_none_is_refused(configure):
    with pytest.raises(UserError, match="matmul_precision"):
        process.set_global_torch_flags(configure("matmul_precision=low"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc alone")
def test_malloc_keeps_the_buffers_of_a_step():
    process.set_malloc_thresholds()
    buffers = [torch.ones(6 * 2**20) for _ in range(3)]  # 72 MiB, which go back to the system without it
    before = resident()
    buffers.clear()
    assert before - resident() < 5
