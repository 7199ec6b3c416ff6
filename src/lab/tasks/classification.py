"""One class of several for each sample."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from leyden import UserError
from leyden.tasks.supervised import Supervised

MANY = 1000  # classes: of more, a confusion matrix is too large to keep


class Classification(Supervised):
    """Learns class indices from logits of B x num_classes. Logs the plain accuracy and the F1 averaged over classes.

    Args:
        num_classes: how many
        classes: their names, for the results; null: their numbers
    """

    counted, meaning = ("acc",), "probs"

    def __init__(self, num_classes: int, classes: Sequence[str] | None = None, **supervised: Any):
        metrics: dict[str, Metric | MetricCollection] = {
            "acc": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
            "f1_macro": MulticlassF1Score(num_classes, average="macro", validate_args=False),
        }
        super().__init__(metrics=MetricCollection(metrics), **supervised)
        self.classes = list(classes or map(str, range(num_classes)))
        self.confusion = MulticlassConfusionMatrix(num_classes, validate_args=False)
        self.details: dict[str, Any] = {}  # of the last test, by class

    @staticmethod
    def check_facts(facts: Mapping[str, Any]) -> None:
        """Raises UserError if the targets are numbers, or all of one class."""
        if "target_mean" in facts:
            raise UserError(
                "task=classification does not fit: the targets of this data are numbers; type task=regression."
            )
        if facts.get("outputs") == 1:
            raise UserError("task=classification needs at least two classes; the data has one; check its target.")

    def readout(self) -> nn.Module:
        return nn.Softmax(1)

    def count(self, outputs: Tensor, y: Tensor) -> list[Tensor]:
        return [(outputs.argmax(1) == y).sum()]

    # the test by class

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = super().test_step(batch, batch_idx)
        if len(self.classes) <= MANY:
            self.confusion.update(outputs, batch[1])
        return outputs

    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        if len(self.classes) > MANY:
            return
        counts = self.confusion.compute()  # of all ranks: true classes by predicted ones
        self.confusion.reset()
        shares = (counts.diag() / counts.sum(1)).tolist()
        self.details = {
            f"test/acc/{name}": share for name, share in zip(self.classes, shares, strict=True) if share == share
        } | {"classes": self.classes, "confusion": counts.tolist()}
