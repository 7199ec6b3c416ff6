"""Learning-rate factors: the share of the peak rate for optimizer step `step`, from 0, of a run of `total` steps.

The curve ends at step = total, one after the last step of the run, so that no step is taken at a rate of zero. A factor
that depends on `total`, so that a longer run stretches it, has the attribute `depends_on_total`.
"""

import math
from collections.abc import Sequence


def constant(step: float, total: float | None, warmup_steps: int = 0) -> float:
    """Linear warm-up, then 1; `total` may be None or infinite."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


def cosine(step: int, total: float | None, warmup_steps: int = 0, final: float = 0.0) -> float:
    """Linear warm-up, then half a cosine from 1 to `final` (arXiv:1608.03983)."""
    end = _end(total, "cosine")
    now = min(step, end)
    if now < warmup_steps:
        return (now + 1) / (warmup_steps + 1)
    return _anneal(1.0, final, (now - warmup_steps) / max(1, end - warmup_steps))


def onecycle(
    step: int, total: float | None, warmup_steps: int | None = None, start: float = 0.04, final: float = 0.0001
) -> float:
    """Half a cosine up from `start` to 1, another down to `final` (arXiv:1708.07120)."""
    end = _end(total, "onecycle")
    rise = round(0.3 * end) if warmup_steps is None else warmup_steps
    now = min(step, end)
    if now < rise:
        return _anneal(start, 1.0, now / rise)
    return _anneal(1.0, final, (now - rise) / max(1, end - rise))


def step(
    step: int, total: float | None, warmup_steps: int = 0, milestones: Sequence[float] = (0.5, 0.75), gamma: float = 0.1
) -> float:
    """Linear warm-up, then 1, times `gamma` after each milestone, a share of the run."""
    end = _end(total, "step")
    if max(milestones, default=0) > 1:
        raise ValueError(f"`scheduler.milestones` must be shares of the run, 0 to 1; got `{list(milestones)}`")
    now = min(step, end)
    return constant(now, total, warmup_steps) * gamma ** sum(now >= share * end for share in milestones)


cosine.depends_on_total = onecycle.depends_on_total = step.depends_on_total = True  # type: ignore[attr-defined]


def _anneal(first: float, last: float, share: float) -> float:
    """Half a cosine from `first` to `last`."""
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


def _end(total: float | None, name: str) -> float:
    """The steps of the run; ValueError if it has no end."""
    if total is None or math.isinf(total):
        raise ValueError(f"`{name}` needs trainer.max_epochs or trainer.max_steps; type one, or scheduler=constant")
    return max(1, total)
