"""Leyden: a research template on PyTorch Lightning and Hydra."""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

# public functions, and their modules, which load torch or pandas
LAZY = {"load": "deploy.predictor", "load_model": "run.build", "results": "report.results", "curves": "report.results"}
SLOW = ("scipy", "matplotlib")


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"leyden has no {name}")
    return getattr(import_module(f"leyden.{LAZY[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *LAZY]


class UserError(Exception):
    """A user's mistake in one sentence: what is wrong, where, what to type instead."""

    status = 2  # of the command

    def __init__(self, sentence: str = ""):
        super().__init__(sentence.rpartition("leyden.UserError: ")[2].rstrip())  # without a worker's traceback


class Failed(UserError):
    """It was done, but the result is not good."""

    status = 1


def said(error: BaseException) -> str:
    """What an error says, or its name, in one line without a full stop."""
    text, _, key = str(error).replace(" is not in struct", " is missing").partition("\n    full_key: ")  # of OmegaConf
    key = key.partition("\n")[0]
    where = "" if key in text else f"{key}: "
    return where + " ".join(text.split()).rstrip(".") or type(error).__name__


def require(good: bool, key: str, must: str, value: object) -> None:
    """UserError where the value of a key is not good."""
    if not good:
        raise UserError(f"`{key}` must be {must}; got `{value}`.")


def listed(names: Iterable[object], separator: str = ", ") -> str:
    """The first ten names, and how many more."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - 10:,} more" if len(texts) > 10 else ""
    return separator.join(texts[:10]) + more


class LeanMetrics(MetaPathFinder):
    """Loads torchmetrics, which Lightning imports, without `SLOW` until it uses them: 1.5 s of each start."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torchmetrics":
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        seen: Any = import_module("lightning_utilities.core.imports")
        package, requirement, load = seen.package_available, seen.RequirementCache.__bool__, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            seen.package_available = lambda name: name not in SLOW and package(name)
            seen.RequirementCache.__bool__ = lambda self: self.requirement not in SLOW and requirement(self)
            load(module)
            seen.package_available, seen.RequirementCache.__bool__ = package, requirement
            later = SimpleNamespace(subplots=lambda **k: import_module("matplotlib.pyplot").subplots(**k))
            vars(import_module("torchmetrics.utilities.plot"))["plt"] = later

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, LeanMetrics())
