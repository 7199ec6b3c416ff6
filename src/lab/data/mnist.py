"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747)."""

from torchvision import datasets

from .downloaded import Downloaded


class MNIST(Downloaded):
    """Handwritten digits of 1 x 28 x 28: 60,000 for training and 10,000 for test, or as many as the files hold."""

    reader = datasets.MNIST

    def by_hand(self) -> str:
        names = ", ".join(name for name, _ in self.reader.resources)
        folder = self.data_dir / self.reader.__name__ / "raw"  # torchvision never replaces what was unpacked there
        return f"put {names} from {self.reader.mirrors[0]} into the empty folder {folder}"


class FashionMNIST(MNIST):
    """Pictures of clothes, as many as digits in MNIST."""

    reader = datasets.FashionMNIST
