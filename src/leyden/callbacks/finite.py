"""Finds where the first loss or gradient comes from that is no number."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from leyden import UserError, replay


class Finite(Callback):
    """Does the step of the first loss or gradient that is not finite again with an eye on each layer, and ends the run.

    The host reads the loss and the norm of the gradients at each step. With a loss scaler, which skips steps on
    purpose, only the loss counts. The batch is written to `bad_batch.pt` in the directory.

    Raises:
        UserError: the first layer whose output, and the parameters whose values or gradients are not finite.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory)
        self.batch: Any = None
        self.batch_idx = 0
        self.draws: list[Tensor] = []  # the generators' states before the step

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch, self.batch_idx, self.draws = batch, batch_idx, [torch.get_rng_state()]
        if task.device.type == "cuda":
            self.draws.append(torch.cuda.get_rng_state(task.device))

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for callback in trainer.callbacks:
            if guard := getattr(callback, "guard", None):  # of the keeper, which sees each loss first
                guard.witness = self.find

    def on_before_backward(self, trainer: Trainer, task: LightningModule, loss: Tensor) -> None:
        if not loss.isfinite().all():
            raise UserError(f"{where(trainer)}: the training loss is {float(loss.detach())}. {self.find(trainer)}")

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        if getattr(trainer.precision_plugin, "scaler", None):
            return
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if grads and not replay.whole(torch.nn.utils.get_total_norm(grads)).isfinite():
            raise UserError(f"{where(trainer)}: the loss is a number, but gradients are none. {self.find(trainer)}")

    def on_train_batch_end(self, *_: Any) -> None:
        self.batch = None

    def find(self, trainer: Trainer) -> str:
        """What a second try of the step finds, and where the batch is."""
        task, path = trainer.lightning_module, self.directory / "bad_batch.pt"
        if self.batch is None:
            return ""
        path = path.with_stem(f"bad_batch{trainer.global_rank or ''}")
        torch.save({"batch": plain(self.batch), "batch_idx": self.batch_idx, "step": trainer.global_step}, path)
        if any(isinstance(p, DTensor) for p in task.parameters()):
            return f"Under FSDP no rank can do a step again by itself; try the batch in {path.name} on one device."
        bad = [name for name, p in task.named_parameters() if not p.isfinite().all()]
        if bad:
            found = f"Parameters are not finite: {some(bad)}; the last step was too large, lower optimizer.lr."
        elif not all(tensor.isfinite().all() for tensor in replay.tensors(self.batch)):
            found = "The batch itself has values that are not finite: mend the data."
        else:
            torch.set_rng_state(self.draws[0])
            if self.draws[1:]:
                torch.cuda.set_rng_state(self.draws[1], task.device)
            found = again(trainer, task, self.batch, self.batch_idx)
        return f"{found} The batch is in {path.name} in the run directory."


def again(trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> str:
    """Do a step again, forward and backward, and name the first layers that give something that is not finite."""
    reached: list[tuple[str, bool]] = []  # outputs of layers, as the backward pass comes to them, and whether it is bad
    suspect, mixed = replay.Suspect(), trainer.precision_plugin.train_step_context()
    with torch.enable_grad(), mixed, replay.watched(task, keep=True) as calls, suspect:
        output = task.training_step(batch, batch_idx)
        loss = output["loss"] if isinstance(output, dict) else output
    by = f" The operator is {suspect.found}." if suspect.found else ""
    before = "the beginning"
    for call in sorted(calls, key=lambda call: call.returned is None):
        bad = [tensor for tensor in call.outputs if not tensor.isfinite().all()]
        if bad and call.leaf and replay.bad(call.inputs):
            return f"What is not finite arises between {before} and {call.name} ({call.kind}), whose input it is.{by}"
        if bad and call.leaf:
            return (
                f"The first layer whose output is not finite is {call.name} ({call.kind}): {kinds(bad[0])}, from "
                f"inputs of {call.given}; look for a log, a division, a root or an exponent in it, and clamp its input "
                f"or add a small number to it.{by}"
            )
        before = f"{call.name} ({call.kind})" if call.leaf else before
    if loss is None or not loss.isfinite().all():
        return (
            "Each layer's output is finite: the loss itself is none, look for a log, a root or a division of zero "
            f"where it is computed.{by}"
        )
    for call in calls:
        for tensor in call.outputs:
            if tensor.requires_grad and call.leaf:
                label = f"{call.name} ({call.kind})"
                tensor.register_hook(lambda grad, label=label: reached.append((label, not grad.isfinite().all())))
    task.zero_grad()
    loss.backward()
    names = [name for name, p in task.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    first = next((name for name, is_bad in reached if is_bad), None)
    behind = next((name for (name, _), (later, _) in pairwise(reached) if later == first), None)
    if not names:
        return "A second try of the step has finite gradients: it draws numbers that differ, or another rank failed."
    place = f"behind the output of {first}" if first else "in the backward pass of the first layer"
    place += f", in {behind}," if behind else ""
    return (
        f"Gradients are not finite for {some(names)}; they become so {place} where something has no finite slope, as a "
        "root or a norm of zero has: add a small number under it. debug=anomaly names the operator."
    )


def where(trainer: Trainer) -> str:
    return f"Step {trainer.global_step + 1} (epoch {trainer.current_epoch + 1})"


def kinds(tensor: Tensor) -> str:
    """How many values are of which kind."""
    counts = {"nan": tensor.isnan(), "inf": tensor == torch.inf, "-inf": tensor == -torch.inf}
    found = ", ".join(f"{int(mask.sum())} {name}" for name, mask in counts.items() if mask.any())
    return f"{found} of {tensor.numel()} values"


def some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def plain(node: Any) -> Any:
    """A copy of nested containers on the CPU, with nothing in them but what torch.load takes with weights_only."""
    if isinstance(node, Tensor):
        return node.detach().cpu()
    if isinstance(node, dict):
        return {str(key): plain(child) for key, child in node.items()}
    if isinstance(node, list | tuple):
        return [plain(child) for child in node]
    return node if isinstance(node, str | int | float | bool | None) else repr(node)
