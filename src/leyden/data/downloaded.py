"""What the sets have in common that torchvision downloads and reads."""

import logging
import socket
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor
from torchvision.datasets import VisionDataset
from torchvision.datasets.utils import check_integrity

from leyden import UserError
from leyden.data.datamodule import DataModule

PATIENCE = 10  # seconds that a server may be silent
log = logging.getLogger(__name__)


class Downloaded(DataModule):
    """Pictures, labels, class names and the split of train and test as torchvision's reader gives them."""

    reader: type[VisionDataset]

    def __init__(self, data_dir: str | Path, **loader):
        super().__init__(**loader)
        self.data_dir = Path(data_dir)

    def archives(self) -> tuple[dict[str, str], Path, str]:
        """The files to download with their checksums, the folder they belong in, and the address they come from."""
        raise NotImplementedError

    def damaged(self) -> list[Path]:
        """Files that are there, but are not what they should be."""
        names, folder, _ = self.archives()
        return [p for p in (folder / name for name in names) if p.exists() and not check_integrity(p, names[p.name])]

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        source = self.source(train=split == "train")
        x, y = torch.as_tensor(source.data), torch.as_tensor(source.targets)
        if len(x) != len(y):
            raise UserError(f"{self.title} in {self.data_dir} has {len(x)} pictures but {len(y)} labels for {split}.")
        self.classes = list(source.classes)
        return x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous(), y

    def source(self, train: bool) -> VisionDataset:
        """The reader of a split; one process downloads, others wait. Raises UserError for files missing or damaged."""
        try:
            return self.reader(self.data_dir, train)
        except Exception:  # not there, damaged, or still being unpacked by another process
            log.info("%s is not complete in %s; downloading it.", self.title, self.data_dir)
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(PATIENCE)
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.data_dir / f".{self.title}.lock"):  # ends with its process
                return self.reader(self.data_dir, train, download=True)
        except Exception as error:  # sockets, archives and readers have errors of many kinds
            raise UserError(self.remedy(error)) from error
        finally:
            socket.setdefaulttimeout(before)

    def remedy(self, error: Exception) -> str:
        names, folder, address = self.archives()
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        what = f"{self.title} is missing or damaged in {self.data_dir} and cannot be downloaded ({reason})"
        steps = [f"delete {path}" for path in self.damaged()] + [f"put {', '.join(names)} from {address} into {folder}"]
        return f"{what}; {' and '.join(steps)}."
