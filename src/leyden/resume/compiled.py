"""torch.compile as a function of the run alone: not of what the process has seen before."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.fx.experimental._config as shapes
from torch._dynamo import config

limits: list[str] = []  # what met the limit of recompilations in this job


def note_limit(record: logging.LogRecord) -> bool:
    """A filter that sees torch give up compiling a function, which it tells its log alone."""
    if "hit config" in str(record.msg):
        name = next((str(part) for part in record.args or () if "(" in str(part)), "a function")
        limits.append(f"torch.compile met its limit of recompilations in {name}; type task.compile=false")
    return True


@contextmanager
def by_the_run_alone() -> Iterator[None]:
    """Compile for static or dynamic sizes as torch.compile is told, with nothing left of an earlier job.

    By itself torch makes a size dynamic when it has seen two, and lets two that are equal at first be one.
    """
    torch.compiler.reset()
    limits.clear()
    logger = logging.getLogger("torch._dynamo.convert_frame")
    logger.addFilter(note_limit)
    before = config.get_config_copy()
    config.automatic_dynamic_shapes = config.automatic_dynamic_local_pgo = False
    try:
        with shapes.patch(use_duck_shape=False):
            yield
    finally:
        after = config.get_config_copy()
        for name in [name for name in before if after[name] != before[name]]:  # what a job has set, too
            setattr(config, name, before[name])
        logger.removeFilter(note_limit)
