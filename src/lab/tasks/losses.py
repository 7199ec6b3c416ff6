"""Losses of this project: any module of (outputs, y) -> loss will do."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax


class FocalLoss(nn.Module):
    """Cross-entropy that looks away from samples it is sure of (Lin et al. 2017, arXiv:1708.02002)."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """logits: B x num_classes; y: B class indices; the mean over B."""
        log_prob = log_softmax(logits, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)
        return (-((1 - log_prob.exp()) ** self.gamma) * log_prob).mean()


class WeightedCrossEntropy(nn.Module):
    """Cross-entropy in which all classes of the training data weigh the same; the mean is over samples, not weights."""

    def __init__(self, counts: Sequence[int], label_smoothing: float = 0.0):
        super().__init__()
        self.label_smoothing = label_smoothing
        count = torch.tensor(counts, dtype=torch.float32)
        weight = count.sum() / ((count > 0).sum() * count.clamp(min=1))
        self.weight = nn.Buffer(weight * (count > 0))

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y, self.weight, reduction="none", label_smoothing=self.label_smoothing).mean()
