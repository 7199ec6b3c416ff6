"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 photographs of 3 x 32 x 32, 10,000 of them for test."""

from pathlib import Path

from torchvision import datasets
from torchvision.datasets.utils import check_integrity

from leyden.data.downloaded import Downloaded


class CIFAR10(Downloaded):
    """Ten classes of animals and vehicles."""

    reader = datasets.CIFAR10

    def archives(self) -> tuple[dict[str, str], Path, str]:
        return {self.reader.filename: self.reader.tgz_md5}, self.data_dir, self.reader.url

    def damaged(self) -> list[Path]:
        folder, meta = self.data_dir / self.reader.base_folder, self.reader.meta
        files = [*self.reader.train_list, *self.reader.test_list, (meta["filename"], meta["md5"])]
        unpacked = {folder / name: md5 for name, md5 in files}
        return super().damaged() + [p for p, md5 in unpacked.items() if p.exists() and not check_integrity(p, md5)]


class CIFAR100(CIFAR10):
    """A hundred classes: the fine labels."""

    reader = datasets.CIFAR100
