"""The moment after an optimizer step as plain data, and the way back to it."""

import copy
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from leyden import UserError
from leyden.lightning_internals import describe, gather, rebuild
from leyden.resume import compiled
from leyden.resume.attributes import Attributes

log = logging.getLogger(__name__)
EVENTS = "tensorboard/events.out.tfevents.*"  # files of a run that only grow


def take(trainer: Trainer, task: LightningModule, keeper: Any) -> dict[str, Any]:
    """What later hooks change: the callbacks, the running values of the epoch, the lengths of the loggers' files.

    The keeper is told why the run is not exact, where any rank has what no checkpoint can hold.
    """
    states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}
    changed, lost = keeper.attributes.changed(trainer, task)
    running = gather(trainer, values(trainer, task) | {"attributes": changed, "lost": lost + compiled.limits})
    new = [reason for one in running for reason in one.pop("lost") if reason not in keeper.changed]
    keeper.changed = "; ".join(dict.fromkeys([keeper.changed] * bool(keeper.changed) + new))
    return {
        "callbacks": copy.deepcopy({key: state for key, state in states.items() if state}),
        "running": running,
        "files": lengths(trainer, keeper.directory),
    }


def lengths(trainer: Trainer, directory: Path) -> dict[str, int]:
    """Bytes of TensorBoard's files with all in them that was logged."""
    for logger in trainer.loggers:
        if flush := getattr(logger.experiment, "flush", None):
            flush()
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in directory.glob(EVENTS)}


def restore_files(directory: Path, lengths: dict[str, int]) -> None:
    """Cut TensorBoard's files to their lengths at a checkpoint, and remove what kills left."""
    for path in directory.glob(EVENTS):
        length = lengths.get(path.relative_to(directory).as_posix())
        if length is None:
            path.unlink()
        elif path.stat().st_size > length:
            os.truncate(path, length)
    for path in directory.rglob(".*.part"):
        path.unlink()


def values(trainer: Trainer, task: LightningModule) -> dict[str, Any]:
    """Of this rank: what the task has logged for its epoch, and its metrics."""
    logged = {
        key: describe(item)
        for key, item in trainer.fit_loop.epoch_loop._results.items()
        if not item.has_reset and item.meta.sync.group is None
    }
    metrics = {
        name: module.metric_state
        for name, module in task.named_modules()
        if isinstance(module, Metric) and module.update_called
    }
    return on_device({"logged": logged, "metrics": metrics}, "cpu")


def agree(trainer: Trainer, config: str) -> None:
    """Raises UserError if the ranks are about to train one model with different configs."""
    digest = hashlib.sha256(config.encode()).hexdigest()
    if len(set(gather(trainer, digest))) > 1:
        raise UserError("The ranks have different configs; start them all by one command, with one seed.")


def restore(trainer: Trainer, task: LightningModule, entry: dict[str, Any], attributes: Attributes) -> None:
    """Go on with the values of an entry `leyden` of a checkpoint; a rank that was not there then has none."""
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in entry["metrics"].items()})
    if trainer.global_rank >= len(entry["running"]):
        return
    attributes.waiting = entry["running"][trainer.global_rank].pop("attributes", {})
    mine = on_device(entry["running"][trainer.global_rank], task.device)
    for name, state in mine["metrics"].items():
        vars(task.get_submodule(name)).update(state | {"_update_count": 1})
    trainer._logger_connector._first_loop_iter = True  # at the first batch of a loop it would forget what was logged
    for key, saved in mine["logged"].items():
        item = rebuild(trainer, saved)
        vars(item).update(saved["state"] or {"value": task.get_submodule(saved["meta"]["metric_attribute"])})
        item._update_count = 1
        if item.is_tensor and not item.meta.on_epoch:
            item._forward_cache = item.value
        trainer.fit_loop.epoch_loop._results[key] = item


def on_device(node: Any, device: torch.device | str) -> Any:
    """A copy of nested containers with their tensors on a device."""
    if isinstance(node, dict):
        return {key: on_device(child, device) for key, child in node.items()}
    if isinstance(node, list):
        return [on_device(child, device) for child in node]
    return node.detach().to(device, copy=True) if isinstance(node, Tensor) else node


def fixed(trainer: Trainer, datamodule: Any) -> dict[str, Any]:
    """What a run must not change while it goes on."""
    size = getattr(datamodule, "batch_size", None)
    return {
        "world_size": trainer.world_size,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "batch_size": size if isinstance(size, int) else None,
        "data_fingerprint": getattr(datamodule, "fingerprint", None),
    }


def known(trainer: Trainer) -> dict[str, Any]:
    """What a Trainer knows of a run: where it is, how long it is, and what was logged last.

    `ends` is the scheduler of torch's own in whose state the total of steps is, None without one.
    """
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    return {
        "epoch": trainer.current_epoch,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "total_steps": trainer.estimated_stepping_batches,
        "length": length(trainer),
        "ends": next((type(each).__name__ for each in schedulers if hasattr(each, "total_steps")), None),
    }


def length(trainer: Trainer) -> list[Any]:
    """What the total of steps depends on, besides what is fixed."""
    return [trainer.max_epochs, trainer.max_steps, trainer.limit_train_batches]


def rewind(loops: dict[str, Any]) -> None:
    """Set the counters of a fit to the moment after its last batch: the batch done, the rest of the epoch to come.

    A validation that is due there starts a resumed run. Lightning itself would skip it, or count the epoch as over.
    """
    progress = loops["epoch_loop.batch_progress"]
    progress["is_last_batch"] &= progress["current"]["ready"] == progress["current"]["completed"]  # not of the next one
    for part in ("total", "current"):
        batches, epochs = progress[part], loops["epoch_progress"][part]
        batches |= dict.fromkeys(("ready", "started", "processed"), batches["completed"])
        epochs |= dict.fromkeys(("processed", "completed"), epochs["started"] - 1)
        loops["epoch_loop.val_loop.batch_progress"][part] |= {"ready": 1, "started": 1, "processed": 0, "completed": 0}


def compare(trainer: Trainer, now: dict[str, Any], then: dict[str, Any], exact: bool) -> str:
    """Why a run that goes on will not come to the numbers of an unbroken one; `now` is what `fixed` gives.

    Raises:
        UserError: `exact` forbids it, or a scheduler of torch's own would go on after its end.
    """
    changed = [f"{name} is {now[name]}, was {then[name]}" for name in now if now[name] != then[name]]
    if exact and changed:
        raise UserError(f"{'; '.join(changed)}: the run would come to other numbers; type exact=false to go on.")
    if then.get("ends") and (changed or length(trainer) != then["length"]):
        ends = f"{then['ends']} ends at step {then['total_steps']}, as it began"
        raise UserError(f"{ends}; type {'; '.join(changed) or 'trainer.max_epochs'} as it was.")
    reasons = [then["changed"]] if then["changed"] else []
    return "; ".join([*reasons, *([] if exact else ["it was resumed with exact=false", *changed])])


def stretched(trainer: Trainer, task: LightningModule, then: dict[str, Any], changed: str) -> str:
    """`changed`, and that the schedule is another one from here on, where it depends on the number of steps."""
    total, before = trainer.estimated_stepping_batches, then["total_steps"]
    factor = getattr(getattr(task, "scheduler", None), "func", None)
    if total == before or not getattr(factor, "depends_on_total", False):
        return changed
    log.warning("The schedule now spans %s steps, not %s: from here on it is another one.", total, before)
    reason = f"its schedule was stretched from {before} to {total} steps at step {then['step']}"
    return "; ".join(filter(None, [changed, reason]))


def check_watchers(trainer: Trainer) -> None:
    """Raises UserError if a callback or a scheduler watches validation where there is none."""
    watched = [getattr(callback, "monitor", None) for callback in trainer.callbacks[1:]]  # all but the keeper
    watched += [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau and config.strict]
    lost = [name for name in watched if str(name).startswith("val/")]
    if lost and trainer.val_dataloaders is not None and not any(trainer.num_val_batches):
        raise UserError(f"There is no validation data, but a callback or the scheduler watches {lost[0]}.")
