"""The checkpoint file: written whole or not at all, and read as data, never as code."""

import hashlib
import logging
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

from leyden import UserError, listed, said
from leyden.files import replacing

log = logging.getLogger(__name__)
NEEDED = {"step", "best", "inexact", "metrics", "running", "files"}
COMPILED = "_orig_mod."  # of torch.compile


def read(path: Path | str, bare: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, or if `bare` of a state_dict; torch itself checks no CRC.

    UserError if it is missing, damaged or more than plain data.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() or any(part.external_attr for part in archive.infolist()):  # left out
                    raise zipfile.BadZipFile("it is not what was written")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"There is no checkpoint {path}.") from error
    except Exception as error:  # torch raises many types
        what = f"is damaged ({said(error)[:100]})"
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            what = f"holds {found[1]}, which is no plain data, and was not loaded"
        raise UserError(f"The checkpoint {path} {what}.") from error

    content = content if isinstance(content, dict) else {}
    if not bare and not isinstance(content.get("state_dict"), dict):
        raise UserError(f"{path} is no checkpoint of a run: it holds no state_dict.")
    return content


def newest(folder: Path, asked: str = "") -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint asked for, or the newest whole one, and its entry `leyden`; None where none was ever written.

    UserError if no run can go on from what is there.
    """
    alone, faults = asked.endswith(".ckpt"), ""
    for path in [Path(asked)] if alone else sorted(folder.glob("*.ckpt"), key=lambda path: path.name != "last.ckpt"):
        try:
            entry = read(path).get("leyden")
            entry = entry if isinstance(entry, dict) else {}
            if entry.get("resumable") and entry.keys() >= NEEDED:
                log.info("going on from %s", path.name)
                if faults:
                    log.warning(faults.strip())
                return path, entry
            if alone or not entry.get("first"):
                raise UserError(f"{path} holds weights alone; init_from={path} starts a new run from them.")
        except UserError as error:
            faults += f" {error}"

    if faults:
        what = f"No run can go on from {folder}; delete that folder to start again, or type another name=."
        raise UserError(faults.strip() if alone else what + faults)
    log.warning("There is no checkpoint in %s yet; the run starts from its first step.", folder)
    return None, {}


def load(module: nn.Module, path: Path | str, strict: bool = True) -> None:
    """Put the weights of a checkpoint, or of a state_dict of a module or its `model`, into a module.

    UserError for what does not fit, or with `strict=False` a warning.
    """
    content, state = read(path, bare=True), module.state_dict()
    own = {name.replace(COMPILED, ""): name for name in state}
    weights: dict[str, Any] = {}
    for key, value in content.get("state_dict", content).items():
        if isinstance(value, Tensor):
            name = str(key).removeprefix("module.").replace(COMPILED, "")
            weights[name if name in own or f"model.{name}" not in own else f"model.{name}"] = value

    fits = {name for name, value in weights.items() if name in own and state[own[name]].shape == value.shape}
    other = listed(sorted((weights.keys() | own.keys()) - fits))
    if not fits:
        raise UserError(f"{path} holds no weights that fit this model.")
    if other and strict:
        raise UserError(f"In {path} {other} are missing, too many, or of another shape; strict=false takes what fits.")
    if other:
        log.warning("Of %s only what fits was taken, not %s.", path, other)

    fitting = {own[name]: weights[name] for name in fits}
    if any(isinstance(value, DTensor) for value in state.values()):  # divided among devices
        set_model_state_dict(module, fitting, options=StateDictOptions(full_state_dict=True, strict=strict))
    else:
        module.load_state_dict(fitting, strict=strict)


def sha256(state_dict: dict[str, Tensor]) -> str:
    """The hash of names and raw bytes, sorted by name."""
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        digest.update(name.encode())
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        digest.update(whole.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_plain(value: Any) -> bool:
    """Whether it is numbers, text, tensors, and lists, tuples and dicts of these."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(key) and is_plain(child) for key, child in value.items())
    return type(value) in (bool, int, float, str, type(None), Tensor)


def leave_out_objects(checkpoint: dict[str, Any]) -> list[str]:
    """Take hyper-parameters that are no plain data out of a checkpoint; their names."""
    left_out: list[str] = []
    for key in [key for key in checkpoint if key.endswith("hyper_parameters")]:
        items: Any = checkpoint[key].items()
        given = {k: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for k, v in items}
        checkpoint[key] = plain = {name: value for name, value in given.items() if is_plain(value)}
        left_out += [name for name in given if name not in plain]
        checkpoint.pop(key.replace("hyper_parameters", "hparams_type"), None)  # a class
    return left_out


class AtomicIO(TorchCheckpointIO):
    """Writes beside the target and renames, so that kills and full disks leave the old file; reads the first back."""

    def __init__(self, update_record: Callable[..., None] = lambda **_: None):
        super().__init__()
        self.update_record, self.first = update_record, True

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read(path)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """UserError if it cannot be written, or read again."""
        path, left_out = Path(path), leave_out_objects(checkpoint)
        if self.first and left_out:
            log.warning("The checkpoints hold no %s: hyper-parameters that are no plain data.", listed(left_out))
            self.update_record(hyper_parameters_left_out=left_out)

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, synced=True) as beside:
                with open(beside, "wb") as file:
                    torch.save(checkpoint, file)
                if self.first:
                    read(beside)
            self.first = False
        except (OSError, RuntimeError) as error:  # torch hides the system's behind its own
            why = error.__context__ if isinstance(error.__context__, OSError) else error
            before = "; the one before is whole" if path.exists() else ""
            raise UserError(f"The checkpoint {path} cannot be written ({why}){before}.") from error
        except Exception as error:
            raise UserError(f"The checkpoint {path} could not be loaded again: {said(error)}.") from error
