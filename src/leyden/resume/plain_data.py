"""What of a checkpoint is plain data: hyper-parameters that are objects are left out, other objects are named."""

import io
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

HYPER_PARAMETERS = {"hyper_parameters": "hparams_type", "datamodule_hyper_parameters": "datamodule_hparams_type"}
SOURCES = {  # part of a checkpoint -> whose it is
    "callbacks": "the state_dict of this callback",
    "state_dict": "the state_dict of the module",
    "optimizer_states": "the state_dict of an optimizer",
    "lr_schedulers": "the state_dict of a learning-rate scheduler",
    "loops": "the state_dict of a loop",
}


def leave_out(checkpoint: dict[str, Any]) -> list[str]:
    """Let a checkpoint keep its plain hyper-parameters, a DictConfig as plain containers; the names of the others."""
    names = []
    for key, kind in HYPER_PARAMETERS.items():
        checkpoint.pop(kind, None)  # the class of the container
        found = checkpoint.get(key)
        if not isinstance(found, Mapping):
            continue
        kept = {}
        for name in found:
            try:
                kept[str(name)] = plain(found[name])
            except (TypeError, OmegaConfBaseException):  # the second: a value that is missing, or cannot be looked up
                names.append(str(name))
        checkpoint[key] = kept
    return names


def plain(value: Any) -> Any:
    """Numbers, text, None, tensors, and lists and dicts of these, without subclasses. Raises TypeError for others."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if value is None or type(value) is Tensor:
        return value
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    raise TypeError(f"{type(value).__name__} is no plain data")


def fault(checkpoint: dict[str, Any]) -> str:
    """Which object in a checkpoint torch does not load as data, and where it comes from; empty: there is none."""
    if loads(checkpoint):
        return ""
    where, node = [], checkpoint
    while child := next(((name, child) for name, child in children(node) if not loads(child)), None):
        where.append(child[0])
        node = child[1]
    kind = f"{type(node).__module__}.{type(node).__qualname__}".removeprefix("builtins.")
    source = SOURCES.get(str(next(iter(where), "")), "on_save_checkpoint, or the state_dict of the datamodule")
    return (
        f"{'.'.join(map(str, where)) or 'it'} is a {kind}, which is no plain data, from {source}; keep numbers, text, "
        "tensors, and lists and dicts of these there"
    )


def children(node: Any) -> list[tuple[Any, Any]]:
    if isinstance(node, dict):
        return list(node.items())
    return list(enumerate(node)) if isinstance(node, list | tuple | set) else []


def loads(node: Any) -> bool:
    """Whether torch writes it, and reads it again as data."""
    file = io.BytesIO()
    try:
        torch.save(node, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # of pickle, of torch, and of whatever an object raises when it is written
        return False
    return True
