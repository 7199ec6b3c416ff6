"""What torch's errors in a step mean, in words that say what to change."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from leyden import UserError, replay

SIZES = re.compile(
    r"\b(shapes?|sizes?|dimensions?|dims?|channels?|normalized_shape|elements|[1-5]D|batch_size)\b|mat1 and mat2|"
    r"index out of range|out of bounds|must match",
    re.I,
)
TAKES = (  # by the kind of a layer: what it takes, the argument that says so, and the axis that must be so large
    (nn.Linear, "in_features", "... x {}", -1),
    (nn.modules.conv._ConvNd, "in_channels", "B x {} x ...", 1),
    (nn.modules.batchnorm._NormBase, "num_features", "B x {} ...", 1),
    (nn.LayerNorm, "normalized_shape", "... x {}", -1),
    (nn.GroupNorm, "num_channels", "B x {} x ...", 1),
    (nn.RNNBase, "input_size", "B x T x {}", -1),
    (nn.MultiheadAttention, "embed_dim", "B x T x {}", -1),
    (nn.Embedding, "num_embeddings", "indices below {}", None),
)


@contextmanager
def explained(trainer: Trainer, task: LightningModule) -> Iterator[None]:
    """Say errors of torch that a user can mend as such.

    Raises:
        UserError: memory was too small, an operator has no deterministic form, or a forward failed on sizes.
    """
    try:
        yield
    except (RuntimeError, ValueError, IndexError, MemoryError, MisconfigurationException) as error:
        sentence = of_memory(trainer, error) or of_determinism(task, error) or of_sizes(trainer, task, error)
        sentence = sentence or of_anomaly(error) or of_names(trainer, error)
        if sentence:
            raise UserError(sentence) from error
        raise


# memory

FULL = re.compile(r"out of memory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory", re.I)


def of_memory(trainer: Trainer, error: Exception) -> str | None:
    """What to type where memory was too small, with the numbers to try; None for other errors."""
    if not (isinstance(error, torch.OutOfMemoryError | MemoryError) or FULL.search(str(error))):
        return None
    data, device = trainer.datamodule, trainer.strategy.root_device
    size, every = getattr(data, "batch_size", None), trainer.accumulate_grad_batches
    here = f"{size} samples a step, " if isinstance(size, int) else ""
    tries = []
    if isinstance(size, int) and size > 1:
        tries.append(
            f"data.batch_size={size // 2} trainer.accumulate_grad_batches={2 * every} (the same effective batch)"
        )
    if "16" not in trainer.precision:
        tries.append("trainer.precision=bf16-mixed")
    if device.type == "cuda":
        tries.append(f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the command{lost(device)}")
        tries.append("'callbacks=[memory]' for what is in it, in a summary and a snapshot")
    else:
        tries += ["data.num_workers=0", "'callbacks=[memory]' for whether it grows"]
    what = " ".join(str(error).split("\n")[0].split()).rstrip(".")[:300]
    where = "the GPU" if device.type == "cuda" else "this machine"
    return f"Out of memory on {where} with {here}{trainer.precision} ({what}); type one of {'; or '.join(tries)}."


def lost(device: torch.device) -> str:
    """How much of what is reserved on a GPU is in no use, in brackets."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return f" (against fragmentation: {idle / 2**20:,.0f} MiB are reserved, but not in use)"


# determinism


def of_determinism(task: LightningModule, error: Exception) -> str | None:
    """Which operator has no deterministic form, and where it is called; None for other errors."""
    found = re.search(r"^(\S+) does not have a deterministic implementation", str(error))
    if not found:
        return None
    names = {module: name for name, module in task.named_modules()}
    trace, layer, line = error.__traceback__, "", ""
    while trace:  # the innermost layer and the innermost line that is none of torch's are the last
        frame, number, trace = trace.tb_frame, trace.tb_lineno, trace.tb_next
        file, held = frame.f_code.co_filename, frame.f_locals.get("self")
        if isinstance(held, nn.Module) and held in names and held is not task:
            layer = f" in {names[held]} ({type(held).__name__})"
        if not file.startswith(str(Path(torch.__file__).parent)):
            line = f", line {number} of {file}"
    place = layer + line if layer else " in the backward pass"
    return (
        f"{found[1]} has no deterministic form on {task.device.type}, and is called{place}; "
        "replace it by another operator, or type trainer.deterministic=warn to go on with the deterministic forms of "
        "the others, or trainer.deterministic=false."
    )


# names and operators


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


# sizes that do not fit


def of_sizes(trainer: Trainer, task: LightningModule, error: Exception) -> str | None:
    """The layers that a failed step went through, and a sentence on the one that failed; None for other errors.

    The step is done again: what it is given is in the traceback, so that a run that does not fail keeps nothing.
    """
    step = replay.step_of(task, error.__traceback__)
    if not step or not SIZES.search(str(error)):
        return None
    name, again = step
    with replay.watched(task) as calls, torch.no_grad(), trainer.precision_plugin.forward_context():
        try:
            again()
            return None  # it was something else, that has passed
        except Exception as same:
            what = " ".join(str(same).split()).rstrip(".")
    failed = [call for call in calls if call.returned is None]
    shown = [call for call in calls if call.leaf or call in failed[-1:]]
    lines = replay.rows([(call.name, call.kind, call.given, call.returned or "failed here") for call in shown])
    marked = [("> " if call in failed[-1:] else "  ") + line for call, line in zip(shown, lines[1:], strict=True)]
    table = "\n".join([f"  {lines[0]}", *marked])
    if not failed:
        return f"{table}\n{name} fails on sizes after these layers: {what}."
    last = failed[-1]
    return f"{table}\n{name} fails on sizes in {last.name} ({last.kind}): {expected(last)}{what}."


def expected(call: replay.Call) -> str:
    """What a layer takes and what it got, and which argument to change, where its kind is known."""
    for kind, argument, form, axis in TAKES:
        if isinstance(call.module, kind):
            value = getattr(call.module, argument)
            value = " x ".join(map(str, value)) if isinstance(value, tuple) else value
            got = call.given.split(", ")[0].split(" x ")
            remedy = f"set {argument}={got[axis]}, or change" if axis and len(got) > 1 else "change"
            return (
                f"it takes {form.format(value)} ({argument}) and got {call.given}; {remedy} the layer before it. "
                "Torch says: "
            )
    return f"it got {call.given}. Torch says: "
