"""An exponential moving average of the weights."""

from functools import partial

from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Validates, tests and keeps an average of the weights (Polyak and Juditsky 1992, doi:10.1137/0330046).

    After n updates the decay is at most (1 + n) / (10 + n), or a short run would stay near its first weights.
    """

    def __init__(self, decay: float = 0.999, update_every_n_steps: int = 1):
        super().__init__(avg_fn=partial(average, decay=decay))
        self.update_every_n_steps = update_every_n_steps

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx % self.update_every_n_steps == 0


def average(old: Tensor, new: Tensor, updates: Tensor, decay: float) -> Tensor:
    """The average after one more update; whole numbers are copied."""
    if not old.is_floating_point():
        return new
    share = ((1 + updates) / (10 + updates)).clamp(max=decay)
    return old.lerp(new, (1 - share).to(old.dtype))
