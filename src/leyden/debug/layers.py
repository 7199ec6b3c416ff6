"""Layers: a table of sizes and costs, the first output that is not finite, and where an error comes from."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torchmetrics import Metric, MetricCollection

from leyden import UserError, said
from leyden.lightning_internals import EndFit

log = logging.getLogger(__name__)
MEMORY = "out of memory|allocate memory|not enough memory|bad_alloc"
SIZES = r"\b(shape|size|dim|channel|element|[1-5]D\b|batch_size)|mat1 and mat2|out of (range|bounds)|must match"
STEPS = ("training_step", "validation_step", "test_step", "configure_optimizers")


class Shapes(Callback):
    """Logs a table of the layers in the order of their calls, FLOPs of products alone, and ends the fit."""

    trains_nothing = True

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        from pandas import DataFrame
        from torch.utils.flop_counter import FlopCounterMode

        rows, started, counter = list[Any](), list[int](), FlopCounterMode(display=False)

        def begin(*_: Any) -> None:
            started.append(counter.get_total_flops())

        def end(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            cost = sum(p.numel() for p in module.parameters()), counter.get_total_flops() - started.pop()
            rows.append((name, type(module).__name__, sizes([args, kwargs]), sizes(output), *cost))

        for name, module in task.named_modules():
            if not any(module.children()) or any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(begin)
                module.register_forward_hook(partial(end, name), with_kwargs=True)

        with trainer.precision_plugin.train_step_context(), torch.compiler.set_stance("force_eager"), counter:
            begin()
            end("sum", task, batch, {}, task.training_step(batch, batch_idx))

        table = DataFrame(rows, columns=["layer", "kind", "in", "out", "parameters", "FLOPs"])
        log.info("\n%s", table.to_string(index=False))
        raise EndFit


def tensors(node: Any) -> list[Tensor]:
    """Those of nested containers, in order."""
    return [leaf for leaf in tree_leaves(node) if isinstance(leaf, Tensor)]


def sizes(node: Any) -> str:
    """The sizes of the tensors of nested containers: `64 x 10, 64`."""
    return ", ".join(" x ".join(map(str, tensor.shape)) or "1" for tensor in tensors(node)) or "-"


class Finite(Callback):
    """Ends the run at the first output of a layer that is not finite, and writes the batch to `bad_batch.pt`."""

    def __init__(self, directory: str):
        self.directory = Path(directory)
        self.batch: Any = None  # of the last training step

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for name, layer in task.named_modules():
            if name and not isinstance(layer, Metric | MetricCollection):
                layer.register_forward_hook(partial(self.check, name), with_kwargs=True)

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, *_: Any) -> None:
        self.batch = batch

    @torch.compiler.disable
    def check(self, name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Raises UserError if the output is not finite."""
        if not torch.is_grad_enabled() or finite(output):  # without gradients it is no training
            return

        parts = {"weights": list(layer.parameters(recurse=False)), "input": [args, kwargs]}
        bad = " and ".join(part for part, node in parts.items() if not finite(node))
        cause = f"nor are its {bad}" if bad else "its weights and input are: look for a log or a division"
        what = f"{name}, {type(layer).__name__} of {sizes([args, kwargs])}"
        raise UserError(f"The first layer whose output is not finite is {what}; {cause}.")

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if self.batch is not None and isinstance(exception, UserError):
            path = self.directory / f"bad_batch{trainer.global_rank or ''}.pt"
            torch.save({"batch": tree_map_only(Tensor, Tensor.cpu, self.batch), "step": trainer.global_step}, path)
            log.warning("The batch of step %d is in %s.", trainer.global_step + 1, path.name)


def finite(node: Any) -> bool:
    """Whether all numbers are, with FSDP those of this rank."""
    return all((x.to_local() if hasattr(x, "to_local") else x).isfinite().all() for x in tensors(node))


@contextmanager
def explained(trainer: Trainer, task: LightningModule) -> Iterator[None]:
    """Raises UserError in place of an error that the user can mend."""
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
    if step == "configure_optimizers" and "unexpected keyword" in text:
        return f"{text}; leyden.tasks.configure_optimizers(self, optimizer, scheduler) takes those of the config."
    if isinstance(error, TypeError):
        return None

    if isinstance(error, MemoryError) or re.search(MEMORY, whole, re.I):
        size = getattr(trainer.datamodule, "batch_size", None)
        half = f"data.batch_size={size // 2}" if isinstance(size, int) else "half the batch and"
        twice = f"trainer.accumulate_grad_batches={2 * trainer.accumulate_grad_batches}"
        return f"Out of memory ({text}); type {half} {twice}, trainer.precision=bf16-mixed or 'callbacks=[memory]'."

    if found := re.search(r"^\S+ does not have a deterministic implementation", text):
        return f"{found[0]}, and is called in {place if step else 'backward'}; type trainer.deterministic=warn."
    if found := re.search(r"Function '(\w+?)(?:Backward\d*)?' returned nan values", text):
        return f"The gradient of {found[1]} is NaN; the traceback in train.log ends at its line."
    if re.search("metric .* is not available", text):  # of early stopping
        return f"{text}."
    if step and re.search(SIZES, whole, re.I):
        return f"{step} fails on sizes in {place}; change it or what comes before it. Torch says: {text}."
    return None


def find(task: LightningModule, error: Exception) -> tuple[str, str]:
    """The step that failed, and its innermost layer with what it got, or line out of torch."""
    names = {module: name for name, module in task.named_modules() if name}
    step = layer = line = ""
    for frame, number in walk_tb(error.__traceback__):
        code, local = frame.f_code, frame.f_locals
        if code.co_name in STEPS and local.get("self") is task:
            step = code.co_name
        if code is nn.Module.__call__.__code__ and (module := local["self"]) in names:
            got = sizes([local["args"], local["kwargs"]])
            layer = f"{names[module]}: {type(module).__name__}({module.extra_repr()}), which got {got}"
        if not code.co_filename.startswith(str(Path(torch.__file__).parent)):
            line = f"line {number} of {code.co_filename}"
    return step, layer or line
