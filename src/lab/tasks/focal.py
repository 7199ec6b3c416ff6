"""A custom loss, as an example: any module of (logits, y) -> loss will do."""

from torch import Tensor, nn
from torch.nn.functional import log_softmax


class FocalLoss(nn.Module):
    """Cross-entropy that looks away from samples it is sure of (Lin et al. 2017, arXiv:1708.02002)."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """logits: B x num_classes; y: B class indices; the mean over B."""
        log_prob = log_softmax(logits, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)
        return (-((1 - log_prob.exp()) ** self.gamma) * log_prob).mean()
