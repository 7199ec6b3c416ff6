"""What the sets have in common that torchvision downloads and reads."""

import contextlib
import io
import logging
import socket
import sys
from collections.abc import Iterator
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
        return [
            folder / name
            for name, md5 in names.items()
            if (folder / name).exists() and not check_integrity(folder / name, md5)
        ]

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
        """The reader of a split; of several processes one downloads and the others wait for it.

        Raises:
            UserError: the files are not there and cannot be downloaded, or are damaged.
        """
        try:
            return self.reader(self.data_dir, train)
        except Exception:  # not there, damaged, or still being unpacked by another process
            log.info("%s is not complete in %s; downloading it.", self.title, self.data_dir)
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.data_dir / f".{self.title}.lock"), impatient():  # the lock ends with its process
                return self.reader(self.data_dir, train, download=True)
        except Exception as error:  # sockets, archives and readers have errors of many kinds
            raise UserError(self.remedy(error)) from error

    def remedy(self, error: Exception) -> str:
        names, folder, address = self.archives()
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        files = f"put {', '.join(names)} from {address} into {folder}"
        if damaged := self.damaged():
            delete = ", ".join(map(str, damaged))
            return f"{self.title} is damaged ({reason}); delete {delete} and {files}, or run again with a network."
        return f"{self.title} is not in {self.data_dir} and cannot be downloaded ({reason}); {files}."


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Give up on a silent server, and draw torchvision's progress bars on a terminal only."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    bars = sys.stderr if sys.stderr.isatty() else io.StringIO()
    try:
        with contextlib.redirect_stderr(bars):
            yield
    finally:
        socket.setdefaulttimeout(before)
