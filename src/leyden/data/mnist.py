"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747)."""

from pathlib import Path

from torchvision import datasets
from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

from leyden.data.downloaded import Downloaded


class MNIST(Downloaded):
    """70,000 handwritten digits of 1 x 28 x 28, 10,000 of them for test."""

    reader = datasets.MNIST

    def archives(self) -> tuple[dict[str, str], Path, str]:
        return dict(self.reader.resources), self.data_dir / self.reader.__name__ / "raw", self.reader.mirrors[0]

    def damaged(self) -> list[Path]:
        names, folder, _ = self.archives()
        unpacked = [folder / Path(name).stem for name in names]
        return super().damaged() + [path for path in unpacked if path.exists() and not readable(path)]


class FashionMNIST(MNIST):
    """70,000 pictures of clothes of 1 x 28 x 28, 10,000 of them for test."""

    reader = datasets.FashionMNIST


def readable(path: Path) -> bool:
    """Whether a file holds what its head promises; there is no checksum of the unpacked files."""
    try:
        read_sn3_pascalvincent_tensor(path)
    except Exception:  # asserts, indices and shapes alike
        return False
    return True
