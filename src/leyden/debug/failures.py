"""What torch's errors in a step mean, in words that say what to change."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from leyden import UserError
from leyden.debug.tensors import sizes

FULL = re.compile(r"out of memory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory", re.I)
SIZES = re.compile(
    r"\b(shapes?|sizes?|dimensions?|dims?|channels?|normalized_shape|elements|[1-5]D|batch_size)\b|mat1 and mat2|"
    r"index out of range|out of bounds|must match",
    re.I,
)
STEPS = ("training_step", "validation_step", "test_step", "predict_step")


@contextmanager
def explained(trainer: Trainer, task: LightningModule) -> Iterator[None]:
    """Say errors of torch that a user can mend as such.

    Raises:
        UserError: memory was too small, an operator has no deterministic form, or a forward failed on sizes.
    """
    try:
        yield
    except (RuntimeError, ValueError, IndexError, MemoryError, MisconfigurationException) as error:
        sentence = of_memory(trainer, error) or of_determinism(task, error) or of_sizes(task, error)
        sentence = sentence or of_anomaly(error) or of_names(trainer, error)
        if sentence:
            raise UserError(sentence) from error
        raise


def of_memory(trainer: Trainer, error: Exception) -> str | None:
    """What to type where memory was too small, with the numbers to try; None for other errors."""
    if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or FULL.search(str(error))):
        return None
    size, every = getattr(trainer.datamodule, "batch_size", None), trainer.accumulate_grad_batches
    cuda, here, tries = trainer.strategy.root_device.type == "cuda", "", []
    if isinstance(size, int) and size > 1:
        here = f"{size} samples a step, "
        tries = [f"data.batch_size={size // 2} trainer.accumulate_grad_batches={2 * every} (the same effective batch)"]
    if "16" not in trainer.precision:
        tries.append("trainer.precision=bf16-mixed")
    if cuda:
        tries.append("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the command (against fragmentation)")
    tries.append("'callbacks=[memory]' for what is in it" if cuda else "data.num_workers=0")
    where = "the GPU" if cuda else "this machine"
    return f"Out of memory on {where} with {here}{trainer.precision} ({first(error)}); type one of {'; '.join(tries)}."


def of_determinism(task: LightningModule, error: Exception) -> str | None:
    """Which operator has no deterministic form, and where it is called; None for other errors."""
    found = re.search(r"^(\S+) does not have a deterministic implementation", str(error))
    if not found:
        return None
    _, layer, _, line = place(task, error)
    at = f"in {layer}, {line}" if layer else "in the backward pass"
    return (
        f"{found[1]} has no deterministic form on {task.device.type}, and is called {at}; replace it, or type "
        "trainer.deterministic=warn, which makes the others deterministic, or trainer.deterministic=false."
    )


def of_sizes(task: LightningModule, error: Exception) -> str | None:
    """Which layer of a step failed on sizes, what it got and what it takes; None for other errors."""
    step, layer, got, line = place(task, error)
    if not step or not SIZES.search(str(error)):
        return None
    if type(error).__module__.startswith("torch._dynamo"):
        return f"{step} fails on sizes in a compiled model; type task.compile=false, which names the layer."
    where = f"{layer}, which got {got}" if layer else f"its {line}"
    return f"{step} fails on sizes in {where}; change it or what comes before it. Torch says: {first(error)}."


def of_anomaly(error: Exception) -> str | None:
    """Which operator's gradient is NaN; None for other errors."""
    found = re.search(r"Function '(\w+?)(?:Backward\d*)?' returned nan values", str(error))
    return found and (
        f"The gradient of {found[1]} is NaN: something has no finite slope, as a root or a norm of zero has. "
        "The traceback above, and in train.log, ends at the line that calls it."
    )


def of_names(trainer: Trainer, error: Exception) -> str | None:
    """A metric of a callback or a schedule that is not logged; None for other errors."""
    found = re.search(r"(Early stopping|\w+) conditioned on metric `?([^\s`]+)`? which is not available", str(error))
    names = ", ".join(sorted(trainer.callback_metrics))
    return found and f"The monitor {found[2]} of {found[1]} is not logged; choose one of {names}."


def place(task: LightningModule, error: Exception) -> tuple[str, str, str, str]:
    """Where a step failed: the step, the innermost layer, the sizes it got, and the innermost line outside of torch."""
    names = {module: name for name, module in task.named_modules() if name}
    step = layer = got = line = ""
    trace = error.__traceback__
    while trace:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name in STEPS and local.get("self") is task:
            step = code.co_name
        if code is nn.Module.__call__.__code__ and (module := local["self"]) in names:
            layer = f"{names[module]}: {type(module).__name__}({module.extra_repr()})"
            got = sizes([local["args"], local["kwargs"]])
        if not code.co_filename.startswith(str(Path(torch.__file__).parent)):
            line = f"line {trace.tb_lineno} of {code.co_filename}"
        trace = trace.tb_next
    return step, layer, got, line


def first(error: Exception) -> str:
    """The first line of what torch says."""
    return " ".join(str(error).split("\n")[0].split()).rstrip(".")[:300]
