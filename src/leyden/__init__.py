"""Leyden: a research template on PyTorch Lightning and Hydra."""


class UserError(Exception):
    """A user's mistake, said in one sentence: what is wrong, where, and what to type instead."""

    status = 2  # that the command leaves with

    def __init__(self, sentence: str = ""):
        super().__init__(sentence.rpartition("leyden.UserError: ")[2].rstrip())  # a loader's worker adds its traceback


class Failed(UserError):
    """What was asked for was done, but its result is not good."""

    status = 1
