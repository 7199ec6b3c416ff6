"""The checkpoint file: written whole or not at all, and read as data, never as code."""

import hashlib
import logging
import pickle
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
NEEDED = {"step", "best", "inexact", "metrics", "running", "files"}  # of an entry `leyden` that a run goes on from
COMPILED = "_orig_mod."  # what torch.compile(net) puts into the names of its weights
HYPER_PARAMETERS = {"hyper_parameters", "datamodule_hyper_parameters"}


def read(path: Path | str) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU. Raises UserError if it is missing, damaged or more than plain data."""
    content = plain(path)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UserError(f"{path} is no checkpoint of a run: it holds no state_dict.")
    return content


def plain(path: Path | str) -> Any:
    """What torch.save wrote, if it is plain data and each byte is what was written: torch itself checks no CRC."""
    try:
        if zipfile.is_zipfile(path):  # else torch's old format, or no checkpoint
            with zipfile.ZipFile(path) as archive:
                unread = [part.filename for part in archive.infolist() if part.external_attr]  # torch leaves these out
                if damaged := archive.testzip() or unread:
                    raise zipfile.BadZipFile(f"{damaged} is not what was written")
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"There is no checkpoint {path}.") from error
    except Exception as error:  # torch raises many types for one truth: these bytes are not a checkpoint
        what = f"is damaged ({said(error)[:200]})"
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            what = f"holds {found[1]}, which is no plain data, and was not loaded"
        raise UserError(f"The checkpoint {path} {what}.") from error


def newest(folder: Path, asked: str = "") -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint that a run goes on from, the one asked for or the newest whole one, and its entry `leyden`.

    None and nothing where none was ever written. Raises UserError if there are checkpoints, but none to go on from.
    """
    alone, faults = asked.endswith(".ckpt"), list[str]()
    for path in [Path(asked)] if alone else sorted(folder.glob("*.ckpt"), key=lambda path: path.name != "last.ckpt"):
        try:
            found = read(path).get("leyden")
        except UserError as error:
            faults.append(str(error))
            continue
        entry = found if isinstance(found, dict) else {}  # of another program
        if entry.get("resumable") and entry.keys() >= NEEDED:
            log.info("going on from %s", path.name)
            if faults:
                log.warning("%s", " ".join(faults))
            return path, entry
        if alone or not entry.get("first"):
            faults.append(f"{path} holds weights alone; init_from={path} starts a new run from them.")
    if alone:
        raise UserError(faults[0])
    if faults:
        what = f"delete {folder} to start again from the first step, or start a new run under another name"
        raise UserError(f"The run cannot go on; {what}. {' '.join(faults)}")
    log.warning("There is no checkpoint in %s yet; the run starts from its first step.", folder)
    return None, {}


def load(module: nn.Module, path: Path | str, strict: bool = True) -> None:
    """Put the weights of a checkpoint, or of a bare state_dict of the module or of its `model`, into a module.

    With `strict=False` what does not fit stays as it is, and is listed; else it raises UserError.
    """
    content, state = plain(path), module.state_dict()
    own = {name.replace(COMPILED, ""): name for name in state}
    fitting, other = dict[str, Tensor](), set(own)
    for key, value in (content.get("state_dict", content) if isinstance(content, dict) else {}).items():
        name = str(key).removeprefix("module.").replace(COMPILED, "")
        name = name if name in own or f"model.{name}" not in own else f"model.{name}"
        if name in own and isinstance(value, Tensor) and state[own[name]].shape == value.shape:
            fitting[own[name]] = value
            other.remove(name)
        elif isinstance(value, Tensor):
            other.add(name)
    if not fitting:
        raise UserError(f"{path} holds no weights that fit this model.")
    if other and strict:
        what = f"in which {listed(sorted(other))} are missing, or too many, or of another shape"
        raise UserError(f"{path} does not fit this model, {what}; strict=false takes what fits.")
    if other:
        log.warning("Of %s only what fits was taken, not %s.", path, listed(sorted(other)))
    if any(isinstance(value, DTensor) for value in state.values()):  # divided among devices
        set_model_state_dict(module, fitting, options=StateDictOptions(full_state_dict=True, strict=strict))
    else:
        module.load_state_dict(fitting, strict=strict)


def sha256(state_dict: dict[str, Tensor]) -> str:
    """The hash of names and raw bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        digest.update(name.encode())
        value = state_dict[name].detach()
        value = value.full_tensor() if isinstance(value, DTensor) else value
        digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_plain(value: Any) -> bool:
    """Whether torch loads it as data: numbers, text, None, tensors, and lists, tuples and dicts of these."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(is_plain(key) and is_plain(child) for key, child in value.items())
    return type(value) in (bool, int, float, str, type(None), Tensor)


def leave_out_objects(checkpoint: dict[str, Any]) -> list[str]:
    """Let a checkpoint keep its plain hyper-parameters; the names of the others."""
    left_out: list[str] = []
    for key in HYPER_PARAMETERS & checkpoint.keys():
        plain_ones = {}
        for name, value in checkpoint[key].items():
            value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            if is_plain(value):
                plain_ones[name] = value
            else:
                left_out.append(name)
        checkpoint[key] = plain_ones
        checkpoint.pop(key.replace("hyper_parameters", "hparams_type"), None)  # the class of the container
    return left_out


class AtomicIO(TorchCheckpointIO):
    """Writes beside the target, syncs and renames, so that a kill or a full disk leaves the old file whole.

    The first file is read back. `update_record` changes fields of run.json.
    """

    def __init__(self, update_record: Callable[..., None] | None = None):
        super().__init__()
        self.update_record, self.first = update_record, True

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read(path)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Leave out hyper-parameters that are objects. Raises UserError if it cannot be written, or read again."""
        path, left_out = Path(path), leave_out_objects(checkpoint)
        if self.first and left_out and self.update_record:
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
        except (OSError, RuntimeError) as error:  # torch hides that of the system behind one of its own
            why = error.__context__ if isinstance(error.__context__, OSError) else error
            before = "; the one before is whole" if path.exists() else ""
            raise UserError(f"The checkpoint {path} cannot be written ({why}){before}.") from error
        except (UserError, pickle.PicklingError, AttributeError, TypeError) as error:  # read back, or not even written
            what = "as a state_dict or on_save_checkpoint gives more than numbers, text, tensors, lists and dicts"
            raise UserError(f"The checkpoint {path} could not be loaded again, {what}: {said(error)}.") from error
