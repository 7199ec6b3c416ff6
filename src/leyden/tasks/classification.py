"""One class of several for each sample."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from leyden import UserError
from leyden.tasks.supervised import Supervised


class Classification(Supervised):
    """Learns class indices from logits of B x num_classes. Logs the plain accuracy and the F1 averaged over classes."""

    counted = ("acc",)

    def __init__(self, num_classes: int, **supervised: Any):
        metrics: dict[str, Metric | MetricCollection] = {
            "acc": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
            "f1_macro": MulticlassF1Score(num_classes, average="macro", validate_args=False),
        }
        super().__init__(metrics=MetricCollection(metrics), **supervised)

    @staticmethod
    def check_facts(facts: Mapping[str, Any]) -> None:
        """Raises UserError if the targets are numbers."""
        if "target_mean" in facts:
            raise UserError(
                "task=classification does not fit: the targets of this data are numbers; type task=regression."
            )

    def count(self, outputs: Tensor, y: Tensor) -> list[Tensor]:
        return [(outputs.argmax(1) == y).sum()]
