"""What turns batches of inputs into rows: a run's graph or an exported file, under one Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.deploy import rows
from leyden.deploy.session import Session


class Predictor(LightningModule):
    """Rows for the batches of `leyden.deploy.inputs.Stream`; what the model gives is as the card says."""

    def __init__(self, model: nn.Module, card: dict[str, Any], top_k: int, all_probs: bool):
        super().__init__()
        self.model, self.card, self.top_k, self.all_probs = model, card, top_k, all_probs

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[dict[str, Any]]:
        outputs = None if batch["x"] is None else self.model(*batch["x"]).float().cpu()
        return rows.of_batch(batch, outputs, self.card, self.top_k, self.all_probs)


class Program(nn.Module):
    """An exported file as a module. Raises UserError if it is none that can be predicted with."""

    def __init__(self, path: str):
        super().__init__()
        file = Path(path).expanduser()
        try:
            if file.suffix not in (".onnx", ".pt2"):
                raise ValueError("it is no .onnx or .pt2 file")
            self.session = Session(file)
        except ImportError as error:
            raise UserError(f"model={path} needs {error.name}; type pip install {error.name}.") from error
        except ValueError as error:
            raise UserError(f"model={path} cannot be used: {error}.") from error
        if self.session.card.get("kind") not in ("image", "sequence", "table"):
            raise UserError(f"model={path} is the export of a task of your own; run it by its own names of inputs.")

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.session(*(part.cpu().numpy() for part in inputs))
        return torch.from_numpy(found[0])


class Batches:
    """The batches of a loader, which Lightning else builds anew, and cannot where its arguments have no keywords."""

    def __init__(self, loader: Any):
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def of_split(datamodule: LightningDataModule, split: str) -> LightningDataModule:
    """A datamodule with its loader of a split as the one to predict, for a user's own task.

    Raises:
        UserError: it has no loader for it.
    """
    if isinstance(datamodule, DataModule):
        datamodule.tested = split
        split = "test"
    if split == "train":
        raise UserError("split=train needs a datamodule of leyden; type split=val or split=test.")
    if not is_overridden(f"{split}_dataloader", datamodule):
        raise UserError(f"{type(datamodule).__name__} has no {split}_dataloader; choose another split.")
    stages = {"val": "validate", "test": "test", "predict": "predict"}
    loader, setup = getattr(datamodule, f"{split}_dataloader"), datamodule.setup
    found: Any = datamodule
    found.setup = lambda stage: setup(stages[split])
    found.predict_dataloader = lambda: Batches(loader())
    return found
