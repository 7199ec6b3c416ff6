"""Attributes of a task, its parts and a user's callbacks, which a checkpoint must hold."""

import io
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchmetrics import Metric, MetricCollection

SCALARS = (bool, int, float, str, type(None))
HELD = "leyden.held"  # in place of an array, or a tensor on a device
OWN = {*vars(LightningModule()), "_param_requires_grad_state", "_compiled_call_impl", "forward"}
LIBRARIES = {"leyden", "torch", "torchvision", "torchmetrics", "lightning", "numpy", "omegaconf", "hydra"}
LIBRARIES |= sys.stdlib_module_names
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
Key = tuple[str, str]  # owner and name


class Attributes:
    """What of the attributes has changed since it was made, at the start of a fit."""

    def __init__(self, trainer: Trainer, task: LightningModule):
        self.trainer, self.task = trainer, task
        self.to_restore: dict[Key, Any] | None = {}  # None: it is done
        self.before = {key: mark(value, plain) for key, value, plain in self.everything() if plain}

    def restore(self) -> None:
        """Once, after the hooks of a start, which make what is no data again: put back what a checkpoint held."""
        if self.to_restore is not None:
            owners = dict(self.holders())
            for (place, name), value in self.to_restore.items():
                if place in owners:
                    setattr(owners[place], name, value)
            self.to_restore = None
            self.before |= {key: mark(value, plain) for key, value, plain in self.everything() if not plain}

    def changed(self) -> tuple[dict[Key, Any], list[str]]:
        """What has changed: the plain data, and a sentence on each that is none."""
        self.restore()
        found = [each for each in self.everything() if self.before.get(each[0]) != mark(*each[1:])]
        why = "changes in training, but is no plain data"
        lost = [f"{'.'.join(key)} ({type(value).__name__}) {why}" for key, value, plain in found if not plain]
        return {key: value for key, value, plain in found if plain}, lost

    def everything(self) -> Iterator[tuple[Key, Any, bool]]:
        """Each attribute: owner and name, and a copy as plain data and True, or itself and False."""
        memo: dict[int, Any] = {}  # one for all attributes
        for place, holder in self.holders():
            more = ["grad"] if isinstance(holder, nn.Parameter) else getattr(holder, "_non_persistent_buffers_set", ())
            for name, value in (vars(holder) | {name: getattr(holder, name) for name in more}).items():
                if name not in OWN and not isinstance(value, nn.Module):
                    try:
                        yield (place, name), encode(value, memo), True
                    except TypeError:
                        yield (place, name), value, False

    def holders(self) -> Iterator[tuple[str, Any]]:
        """The task, its metrics, the user's own modules and callbacks, and objects that these keep, by name."""
        own = [each for each in self.trainer.callbacks if is_own(each) and not is_overridden("state_dict", each)]

        names = [type(each).__name__ for each in own]  # several of a class by their order
        queue: list[tuple[str, Any]] = [("task", self.task)]
        queue += [(f"{name}{names[:n].count(name) or ''}", own[n]) for n, name in enumerate(names)]
        for name, part in self.task.named_modules():
            if is_own(part) or isinstance(part, Metric | MetricCollection):
                queue.append((f"task.{name}", part))
        if not self.task.automatic_optimization:  # gradients may add up
            queue += [(f"task.{name}", p) for name, p in self.task.named_parameters()]

        seen = set()
        for place, holder in queue:  # which grows meanwhile
            if id(holder) not in seen:
                seen.add(id(holder))
                yield place, holder
                kept = [(name, value) for name, value in vars(holder).items() if name not in OWN and is_holder(value)]
                queue += [(f"{place}.{name}", value) for name, value in kept]


def is_own(value: Any) -> bool:
    """Whether its class is the user's own."""
    return type(value).__module__.split(".")[0] not in LIBRARIES


def is_holder(value: Any) -> bool:
    """Whether it is the user's own, with attributes to look at."""
    other = isinstance(value, nn.Module | Dataset | LightningDataModule)
    return is_own(value) and hasattr(value, "__dict__") and not other


def mark(value: Any, plain: bool) -> Any:
    """What tells a value from a later one: its bytes; of no plain data the parts, or which object it is."""
    if plain and type(value) in SCALARS:
        return type(value), value
    if plain or isinstance(value, GENERATORS):
        torch.save(value, buffer := io.BytesIO())  # as pickle alone does not
        return buffer.getvalue()
    if is_holder(value):
        return type(value)

    parts = value.values() if isinstance(value, dict) else value
    parts = parts if isinstance(value, dict | list | tuple | set) else [value]
    return [(id(part), part) for part in parts]  # kept, as others may get their numbers


def encode(value: Any, memo: dict[int, Any]) -> Any:
    """A copy as plain data on the CPU, in which one object stays one. Raises TypeError for what is none."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if id(value) in memo:
        return memo[id(value)][0]

    if kind in (list, tuple, set):
        copy = kind(encode(child, memo) for child in value)
    elif kind in (dict, OrderedDict, Counter):
        copy = kind({encode(key, memo): encode(child, memo) for key, child in value.items()})
    elif kind in (Tensor, nn.Parameter):
        copy = value.detach().to("cpu", copy=True)
        copy = copy if value.device.type == "cpu" else {HELD: copy, "array": False}
    elif isinstance(value, np.ndarray | np.generic):
        copy = {HELD: torch.from_numpy(np.array(value)), "array": True}
    else:
        raise TypeError(kind)
    memo[id(value)] = copy, value  # kept, as another may get its number
    return copy


def decode(value: Any, device: torch.device) -> Any:
    """The way back from `encode`, in place, so that one object stays one."""
    if type(value) is tuple:
        return tuple(decode(child, device) for child in value)
    if type(value) is list:
        value[:] = [decode(child, device) for child in value]
    elif isinstance(value, dict) and (held := value.get(HELD)) is not None:
        return value.setdefault("made", held.numpy()[()] if value["array"] else held.to(device))
    elif isinstance(value, dict):
        value |= {key: decode(child, device) for key, child in value.items()}
    return value
