"""Errors of a step, in a sentence that says what to change."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

import torch
from lightning import LightningModule, Trainer
from torch import nn

from leyden import UserError, said
from leyden.debug.layers import sizes

MEMORY = "out of memory|allocate memory|not enough memory|bad_alloc"
SIZES = r"\b(shape|size|dim|channel|element|[1-5]D\b|batch_size)|mat1 and mat2|out of (range|bounds)|must match"
STEPS = ("training_step", "validation_step", "test_step", "predict_step", "configure_optimizers")
TORCH = str(Path(torch.__file__).parent)


@contextmanager
def explained(trainer: Trainer, task: LightningModule) -> Iterator[None]:
    """Raises UserError in place of an error that the user can mend; others pass."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError, MemoryError) as error:
        if sentence := explain(trainer, task, error):
            raise UserError(sentence) from error
        raise


def explain(trainer: Trainer, task: LightningModule, error: Exception) -> str | None:
    """What to change; None where the error is no known one."""
    whole, text = str(error), said(error)[:300]
    step, place = find(task, error)
    if isinstance(error, TypeError):
        if step != "configure_optimizers" or "unexpected keyword" not in text:
            return None
        return f"{text}; leyden.tasks.configure_optimizers(self, optimizer, scheduler) takes those of the config."
    if isinstance(error, MemoryError) or re.search(MEMORY, whole, re.I):
        size, every = getattr(trainer.datamodule, "batch_size", None), trainer.accumulate_grad_batches
        half = f"data.batch_size={size // 2}" if isinstance(size, int) else "half the batch and"
        same = f"{half} trainer.accumulate_grad_batches={2 * every} (the same effective batch)"
        return f"Out of memory ({text}); type {same}, trainer.precision=bf16-mixed or 'callbacks=[memory]'."
    if found := re.search(r"^(\S+) does not have a deterministic implementation", text):
        where = f"{found[1]} has no deterministic form on {task.device.type}, and is called in"
        return f"{where} {place if step else 'backward'}; replace it, or type trainer.deterministic=warn."
    if found := re.search(r"Function '(\w+?)(?:Backward\d*)?' returned nan values", text):
        return f"The gradient of {found[1]} is NaN; the traceback in train.log ends at its line."
    if re.search("metric .* is not available", text):  # of early stopping
        return f"{text}."
    if step and re.search(SIZES, whole, re.I):
        return f"{step} fails on sizes in {place}; change it or what comes before it. Torch says: {text}."
    return None


def find(task: LightningModule, error: Exception) -> tuple[str, str]:
    """The step that failed, and where: its innermost layer with what it got, else its innermost line out of torch."""
    names = {module: name for name, module in task.named_modules() if name}
    step = layer = line = ""
    for frame, number in walk_tb(error.__traceback__):
        code, local = frame.f_code, frame.f_locals
        if code.co_name in STEPS and local.get("self") is task:
            step = code.co_name
        if code is nn.Module.__call__.__code__ and (module := local["self"]) in names:
            got = sizes([local["args"], local["kwargs"]])
            layer = f"{names[module]}: {type(module).__name__}({module.extra_repr()}), which got {got}"
        if not code.co_filename.startswith(TORCH):
            line = f"line {number} of {code.co_filename}"
    return step, layer or line
