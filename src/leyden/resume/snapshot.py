"""A run right after an optimizer step as plain data, and the way back to it."""

import copy
import os
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer

from leyden.lightning_internals import gather, restore_running_values, running_values
from leyden.resume import compiled
from leyden.resume.attributes import Attributes, decode, encode

EVENTS = "tensorboard/events.out.tfevents.*"  # files of a run that only grow


def capture(trainer: Trainer, attributes: Attributes, directory: Path) -> dict[str, Any]:
    """What later hooks change; `lost` says what cannot be held."""
    changed, lost = attributes.changed()
    if "StochasticWeightAveraging" in [type(callback).__name__ for callback in trainer.callbacks]:
        lost.append("StochasticWeightAveraging starts anew; callbacks=[ema] does not")

    mine = {"logged": encode(running_values(trainer), {}), "attributes": changed}
    ranks = gather(trainer, (mine, lost + compiled.limits))
    return {
        "callbacks": copy.deepcopy({each.state_key: each.state_dict() for each in trainer.callbacks}),
        "running": [running for running, _ in ranks],
        "files": lengths(trainer, directory),
        "lost": [reason for _, reasons in ranks for reason in reasons],
    }


def lengths(trainer: Trainer, directory: Path) -> dict[str, int]:
    """Of TensorBoard's files, with all that was logged."""
    for logger in trainer.loggers:
        if flush := getattr(logger.experiment, "flush", None):
            flush()
    return {path.name: path.stat().st_size for path in directory.glob(EVENTS)}


def restore(trainer: Trainer, task: LightningModule, entry: dict[str, Any], attributes: Attributes) -> list[str]:
    """Go on from an entry `leyden` of a checkpoint, which may lack this rank; says what is not exact then."""
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in entry["metrics"].items()})
    if trainer.global_rank < len(entry["running"]):
        running = decode(entry["running"][trainer.global_rank], task.device)
        attributes.to_restore = running["attributes"]
        restore_running_values(trainer, task, running["logged"])

    total, before = trainer.estimated_stepping_batches, entry["total_steps"]
    factor = getattr(getattr(task, "scheduler", None), "func", None)
    stretched = total != before and getattr(factor, "depends_on_total", False)
    return [f"its schedule was stretched from {before} to {total} steps at step {entry['step']}"] if stretched else []


def restore_files(directory: Path, lengths: dict[str, int]) -> None:
    """Cut TensorBoard's files to these lengths."""
    for path in directory.glob(EVENTS):
        if length := lengths.get(path.name):
            os.truncate(path, min(length, path.stat().st_size))
        else:
            path.unlink()


def set_counters(loops: dict[str, Any]) -> None:
    """Set the counters of a fit to right after its last batch; Lightning would skip a validation, or an epoch."""
    progress = loops["epoch_loop.batch_progress"]
    progress["is_last_batch"] &= progress["current"]["ready"] == progress["current"]["completed"]
    for part in ("total", "current"):
        batches, epochs = progress[part], loops["epoch_progress"][part]
        batches |= dict.fromkeys(("ready", "started", "processed"), batches["completed"])
        epochs |= dict.fromkeys(("processed", "completed"), epochs["started"] - 1)
        loops["epoch_loop.val_loop.batch_progress"][part] |= {"ready": 1, "started": 1, "processed": 0, "completed": 0}
