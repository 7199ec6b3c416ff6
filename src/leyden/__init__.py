"""Leyden: a research template on PyTorch Lightning and Hydra."""


class UserError(Exception):
    """A user's mistake, said in one sentence: what is wrong, where, and what to type instead."""
