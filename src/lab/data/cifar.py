"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 photographs of 3 x 32 x 32, 10,000 of them for test."""

from torchvision import datasets

from .downloaded import Downloaded


class CIFAR10(Downloaded):
    """Ten classes of animals and vehicles."""

    reader = datasets.CIFAR10

    def by_hand(self) -> str:
        return f"put {self.reader.filename} from {self.reader.url} into {self.data_dir}"


class CIFAR100(CIFAR10):
    """A hundred classes: the fine labels."""

    reader = datasets.CIFAR100
