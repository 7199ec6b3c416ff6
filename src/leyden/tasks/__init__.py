"""LightningModules: loss, metrics and the visible step."""

from leyden.tasks.optimizers import configure_optimizers

__all__ = ["configure_optimizers"]
