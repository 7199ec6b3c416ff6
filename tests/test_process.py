import os
import platform

import pytest
import torch

from leyden import UserError, process
from leyden.callbacks.memory import resident


def test_the_same_seed_draws_the_same_and_threads_are_set(configure):
    drawn = []
    for _ in range(2):
        process.switches(configure("seed=3", "threads=1"))
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1] and torch.get_num_threads() == 1


def test_threads_follow_the_environment_unless_they_are_said(configure, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert process.threads(configure()) == 3 and process.threads(configure("threads=2")) == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= process.threads(configure()) <= (os.cpu_count() or 1)


def test_a_precision_of_products_that_is_none_is_refused(configure):
    with pytest.raises(UserError, match="matmul_precision"):
        process.switches(configure("matmul_precision=low"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc alone")
def test_malloc_keeps_the_buffers_of_a_step():
    process.set_malloc_thresholds()
    buffers = [torch.ones(6 * 2**20) for _ in range(3)]  # 72 MiB, which go back to the system without it
    before = resident()
    buffers.clear()
    assert before - resident() < 5
