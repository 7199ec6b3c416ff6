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
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

from leyden import UserError
from leyden.files import replacing
from leyden.resume import plain_data

log = logging.getLogger(__name__)


def read(path: Path | str) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises:
        UserError: the file is missing, damaged, or holds more than plain data.
    """
    content = plain(path)
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UserError(f"{path} is no checkpoint of a run: it holds no state_dict.")
    return content


def plain(path: Path | str) -> Any:
    """What torch.save wrote, if it is plain data and each byte is what was written: torch itself checks no CRC."""
    try:
        if Path(path).exists() and zipfile.is_zipfile(path):  # else torch's old format, or no checkpoint
            check(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"There is no checkpoint {path}.") from error
    except Exception as error:  # torch raises many types for one truth: these bytes are not a checkpoint
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            what = f"holds {found[1]}, which is no plain data, and was not loaded"
        else:
            what = f"is damaged ({next(iter(str(error).splitlines()), type(error).__name__)})"
        raise UserError(f"The checkpoint {path} {what}.") from error


def check(path: Path | str) -> None:
    """Raises BadZipFile if a part is not what was written, or so marked that torch would leave it out."""
    with zipfile.ZipFile(path) as archive:
        odd = [info.filename for info in archive.infolist() if info.external_attr]
        if damaged := archive.testzip() or next(iter(odd), None):
            raise zipfile.BadZipFile(f"{damaged} is not what was written")


def newest(folder: Path, asked: str = "") -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint that a run goes on from, and its entry `leyden`: the one asked for, or the newest that is whole;
    None and nothing where none was ever written that a run can go on from.

    Raises:
        UserError: the one asked for is damaged, or holds weights alone; there are checkpoints, but none is whole.
    """
    if asked.endswith(".ckpt"):
        if not resumable(content := read(asked)):
            raise UserError(f"No run can go on from {asked}, which holds weights alone; type init_from={asked}.")
        return Path(asked), content["leyden"]
    faults: list[str] = []
    lost = False
    for path in sorted(folder.glob("*.ckpt"), key=lambda path: path.name != "last.ckpt"):
        try:
            content = read(path)
        except UserError as error:
            faults, lost = [*faults, str(error)], True
            continue
        if resumable(content):
            if faults:
                log.warning("%s", " ".join(faults))
            log.info("going on from %s", path.name)
            return path, content["leyden"]
        faults.append(f"{path} holds weights alone; init_from={path} starts a new run from them.")
        lost |= not first(content)
    if lost:
        raise UserError(
            f"No run can go on from what is in {folder}; delete that folder to start again from the first step, or "
            f"start a new run under another name. {' '.join(faults)}"
        )
    log.warning("There is no checkpoint in %s yet; the run starts from its first step.", folder)
    return None, {}


def resumable(content: dict[str, Any]) -> bool:
    """Whether a run can go on from what a checkpoint holds."""
    entry = content.get("leyden")
    needed = {"loops", "callbacks", "optimizer_states", "lr_schedulers", "pytorch-lightning_version"} <= content.keys()
    return needed and isinstance(entry, dict) and bool(entry.get("resumable")) and {"files", "running"} <= entry.keys()


def first(content: dict[str, Any]) -> bool:
    """Whether weights alone, of a validation inside an accumulation, were written before there was any last.ckpt."""
    entry = content.get("leyden")
    return isinstance(entry, dict) and entry.get("before") is False


def load(module: nn.Module, path: Path | str, strict: bool = True) -> None:
    """Put the weights of a checkpoint, or of a bare state_dict of the module or of its `model`, into a module.

    With `strict=False` what does not fit stays as it is, and is listed.

    Raises:
        UserError: it cannot be read, its names and shapes are not those of the module, or none fits.
    """
    content, own = plain(path), module.state_dict()
    weights = content.get("state_dict", content) if isinstance(content, dict) else {}
    weights = {
        str(name).removeprefix("module."): value for name, value in weights.items() if isinstance(value, torch.Tensor)
    }
    weights = {
        name if name in own or f"model.{name}" not in own else f"model.{name}": weights[name] for name in weights
    }
    if not weights:
        raise UserError(f"{path} holds no weights; it needs a state_dict.")
    learned = weights.keys() & dict(module.named_parameters()).keys()  # a buffer may hold NaN for what is missing
    if sick := [name for name in sorted(learned) if not weights[name].isfinite().all()]:
        raise UserError(f"{path} holds numbers that are not finite, in {sick[0]}; take other weights.")
    shapes = {
        f"{name} {[*weights[name].shape]} instead of {[*own[name].shape]}": name
        for name in own.keys() & weights.keys()
        if weights[name].shape != own[name].shape
    }
    wrong = {
        "missing": own.keys() - weights.keys(),
        "unexpected": weights.keys() - own.keys(),
        "of another shape": shapes,
    }
    said = "; ".join(f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names)
    fitting = {name: value for name, value in weights.items() if name in own and name not in shapes.values()}
    if said and (strict or not fitting):
        raise UserError(
            f"The weights in {path} do not fit this model: {said}" + "; strict=false takes what fits." * bool(fitting)
        )
    if said:
        log.warning("Of %s only what fits was taken; %s.", path, said)
    if any(isinstance(value, DTensor) for value in own.values()):  # divided among devices
        options = StateDictOptions(full_state_dict=True, strict=not said)
        set_model_state_dict(module, fitting, options=options)
    else:
        module.load_state_dict(fitting, strict=not said)


def sha256(state_dict: dict[str, torch.Tensor]) -> str:
    """The hash of names and raw bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        digest.update(name.encode())
        raw = state_dict[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


class AtomicIO(TorchCheckpointIO):
    """Writes beside the target, syncs and renames, so that a kill or a full disk leaves the old file whole.

    The first file is read back, so that what cannot be read is found before a run relies on it.

    Args:
        tell: stores what was left out
    """

    def __init__(self, tell: Callable[..., None] | None = None):
        super().__init__()
        self.tell, self.first = tell, True

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read(path)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write one checkpoint, without the hyper-parameters that are objects.

        Raises:
            UserError: the file cannot be written, or holds what cannot be read again.
        """
        path, left_out = Path(path), plain_data.leave_out(checkpoint)
        if self.first and left_out:
            names = ", ".join(left_out)
            log.warning("The checkpoints hold no %s: hyper-parameters that are objects, and no plain data.", names)
            if self.tell:
                self.tell(hyper_parameters_left_out=left_out)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, synced=True) as beside:
                with open(beside, "wb") as file:
                    torch.save(checkpoint, file)
                if self.first:
                    read(beside)
            self.first = False
        except (OSError, RuntimeError) as error:  # torch says RuntimeError when a disk is full
            raise UserError(f"The checkpoint {path} cannot be written ({error}); the one before is whole.") from error
        except (UserError, pickle.PicklingError, AttributeError, TypeError) as error:  # read back, or not even written
            if fault := plain_data.fault(checkpoint):
                raise UserError(f"The checkpoint {path} could not be loaded again: {fault}.") from error
            raise
