"""What the sets have in common that torchvision downloads, checks and reads."""

import logging
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from torchvision.datasets import VisionDataset

from leyden import UserError
from leyden.data.datamodule import DataModule

log = logging.getLogger(__name__)


class Downloaded(DataModule):
    """Pictures, labels, class names and the split of train and test as torchvision's reader gives them."""

    reader: type[VisionDataset]

    def __init__(self, data_dir: str | Path, **loader: Any):
        super().__init__(**loader)
        self.data_dir = Path(data_dir)

    def by_hand(self) -> str:
        """What to do where there is no network: which files from where to put into which folder."""
        raise NotImplementedError

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        source = self.source(train=split == "train")
        x, self.classes = torch.as_tensor(source.data), list(source.classes)
        x = x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()
        return x, torch.as_tensor(source.targets)

    def source(self, train: bool) -> VisionDataset:
        """The reader of a split; one process downloads, others wait. Raises UserError for files missing or damaged."""
        try:
            return self.reader(self.data_dir, train)
        except Exception:  # not there, damaged, or still being unpacked by another process
            log.info("%s is not complete in %s; downloading it.", self.title, self.data_dir)
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.data_dir / f".{self.title}.lock"):  # ends with its process
                return self.reader(self.data_dir, train, download=True)
        except Exception as error:  # sockets, archives and readers have errors of many kinds
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise UserError(
                f"{self.title} is missing or damaged in {self.data_dir} and cannot be downloaded ({reason}); "
                f"{self.by_hand()}."
            ) from error
