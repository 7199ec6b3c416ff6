"""LightningModules: loss, metrics and the visible step."""

from leyden.tasks.optimizers import configure_optimizers as configure_optimizers
