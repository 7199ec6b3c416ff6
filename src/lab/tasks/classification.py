"""One class of several for each sample."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from leyden.tasks.supervised import Supervised

MANY = 1000  # classes, of which a confusion matrix can be kept


class Classification(Supervised):
    """Learns class indices from logits of B x num_classes; logs plain accuracy and the F1 averaged over classes."""

    counted, meaning, targets = ("acc",), "probs", "classes"

    def __init__(self, num_classes: int, classes: Sequence[str] | None = None, **supervised: Any):
        accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        f1 = MulticlassF1Score(num_classes, average="macro", validate_args=False)
        super().__init__(metrics=MetricCollection({"acc": accuracy, "f1_macro": f1}), **supervised)
        self.classes = list(classes or map(str, range(num_classes)))
        if len(self.classes) != num_classes:
            raise ValueError(f"`classes` must be {num_classes} names; got `{classes}`")
        self.confusion = MulticlassConfusionMatrix(num_classes, validate_args=False) if num_classes <= MANY else None
        self.details: dict[str, Any] = {}  # of the last test, by class

    def readout(self) -> nn.Module:
        return nn.Softmax(1)

    def count(self, outputs: Tensor, y: Tensor) -> list[Tensor]:
        return [(outputs.argmax(1) == y).sum()]

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = super().test_step(batch, batch_idx)
        if self.confusion is not None:
            self.confusion.update(outputs, batch[1])
        return outputs

    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        if self.confusion is None:
            return
        counts = self.confusion.compute()  # of all ranks: true classes by predicted ones
        self.confusion.reset()
        shares = zip(self.classes, (counts.diag() / counts.sum(1)).tolist(), strict=True)
        by_class = {f"test/acc/{name}": share for name, share in shares if share == share}  # NaN without a sample
        self.details = by_class | {"classes": self.classes, "confusion": counts.tolist()}
