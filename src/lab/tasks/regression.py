"""Numbers for each sample."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, R2Score

from leyden import UserError
from leyden.tasks.supervised import Supervised

FAR = 1000  # standard deviations from zero


class Regression(Supervised):
    """Learns targets of B or B x outputs. The model and the loss see them standardised, metrics in their own unit."""

    meaning, targets = "values", "numbers"

    def __init__(self, target_mean: Sequence[float], target_std: Sequence[float], **supervised: Any):
        r2 = "r2" if len(target_mean) == 1 else "r2_uniform"  # the plain mean of those of the outputs
        metrics = MetricCollection({"mse": MeanSquaredError(), "mae": MeanAbsoluteError(), r2: R2()})
        super().__init__(metrics=metrics, **supervised)
        far = any(abs(mean) > FAR * std for mean, std in zip(target_mean, target_std, strict=True))
        dtype = torch.float64 if far else torch.float32
        self.target_mean = nn.Buffer(torch.tensor(target_mean, dtype=dtype))
        self.target_std = nn.Buffer(torch.tensor(target_std, dtype=dtype))

    def readout(self) -> nn.Module:
        return Rescale(self.target_mean, self.target_std)

    def step(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The loss; predictions and targets in the target's unit, less its mean: a float32 keeps more near zero."""
        x, y = batch
        centred = (y.reshape(len(y), -1) - self.target_mean).float()
        outputs, std = self(x).to(centred.dtype), self.target_std.to(centred.dtype)
        if outputs.shape != centred.shape:
            must = f"{list(centred.shape)}, with num_classes={centred.shape[1]}"
            raise UserError(f"The outputs of the model must be {must}; got {list(outputs.shape)}.")
        return self.loss(outputs, centred / std), outputs * std, centred


class Rescale(nn.Module):
    """From standardised values to those in the target's own unit."""

    def __init__(self, mean: Tensor, std: Tensor):
        super().__init__()
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.std + self.mean


class R2(R2Score):
    """The share of the variance that is explained; NaN for a single sample."""

    def compute(self) -> Tensor:
        return super().compute() if self.total > 1 else self.residual.new_tensor(torch.nan)
