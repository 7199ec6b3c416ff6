"""LightningModules: loss, metrics and the visible step."""
