"""Leyden: a research template on PyTorch Lightning and Hydra."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

LAZY = {  # public functions, and the modules that load torch or pandas for them
    "load": "leyden.deploy.predictor",
    "load_model": "leyden.run.build",
    "results": "leyden.report.results",
    "curves": "leyden.report.results",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"leyden has no {name}")
    return getattr(import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *LAZY]


class UserError(Exception):
    """A user's mistake, said in one sentence: what is wrong, where, and what to type instead."""

    status = 2  # that the command leaves with

    def __init__(self, sentence: str = ""):
        super().__init__(sentence.rpartition("leyden.UserError: ")[2].rstrip())  # a loader's worker adds its traceback


class Failed(UserError):
    """What was asked for was done, but its result is not good."""

    status = 1


def said(error: BaseException) -> str:
    """What an error says in one line, without a full stop; its name where it says nothing."""
    text, _, tail = str(error).partition("\n    full_key: ")  # of OmegaConf
    key, text = tail.partition("\n")[0], text.replace(" is not in struct", " is missing")
    where = f"{key}: " if key and key not in text else ""
    return where + " ".join(text.split()).rstrip(".") or type(error).__name__


def require(good: bool, key: str, must: str, value: object) -> None:
    """Raises UserError, in its standard form, where the value of a key is not good."""
    if not good:
        raise UserError(f"`{key}` must be {must}; got `{value}`.")


def listed(names: Iterable[object], separator: str = ", ") -> str:
    """The first ten names, and how many there are besides."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - 10:,} more" if len(texts) > 10 else ""
    return separator.join(texts[:10]) + more
