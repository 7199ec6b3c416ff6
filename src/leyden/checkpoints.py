"""The checkpoint file: written whole or not at all, and read as data, never as code."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import nn

from leyden import UserError


def read(path: Path | str) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises:
        UserError: the file is missing, damaged, or holds more than plain data.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"There is no checkpoint {path}.") from error
    except Exception as error:  # torch raises many types for one truth: these bytes are not a checkpoint
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"The checkpoint {path} is damaged or holds more than plain data ({reason}).") from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UserError(f"{path} is no checkpoint of a run: it holds no state_dict.")
    return content


def load(module: nn.Module, path: Path | str) -> None:
    """Put the weights of a checkpoint into a module.

    Raises:
        UserError: it cannot be read, or its names and shapes are not those of the module.
    """
    try:
        module.load_state_dict(read(path)["state_dict"])
    except RuntimeError as error:
        raise UserError(f"The checkpoint {path} does not fit this model: {' '.join(str(error).split())}.") from error


def sha256(state_dict: dict[str, torch.Tensor]) -> str:
    """The hash of names and raw bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        digest.update(name.encode())
        raw = state_dict[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


class AtomicIO(TorchCheckpointIO):
    """Writes beside the target, syncs and renames, so that a kill or a full disk leaves the old file whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write one checkpoint.

        Raises:
            UserError: the file cannot be written.
        """
        path = Path(path)
        beside = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(beside, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except (OSError, RuntimeError) as error:  # torch says RuntimeError when a disk is full
            raise UserError(f"The checkpoint {path} cannot be written ({error}); the one before is whole.") from error
        finally:
            with suppress(OSError):
                beside.unlink()
        if os.name == "posix":
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
