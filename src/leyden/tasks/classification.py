"""One class of several for each sample."""

from typing import Any

from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from leyden.tasks.supervised import Supervised


class Classification(Supervised):
    """Learns class indices from logits of B x num_classes. Logs the plain accuracy and the F1 averaged over classes."""

    counted = ("acc",)

    def __init__(self, num_classes: int, **supervised: Any):
        metrics = {
            "acc": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
            "f1_macro": MulticlassF1Score(num_classes, average="macro", validate_args=False),
        }
        super().__init__(metrics=MetricCollection(metrics), **supervised)

    def count(self, outputs: Tensor, y: Tensor) -> list[Tensor]:
        return [(outputs.argmax(1) == y).sum()]
