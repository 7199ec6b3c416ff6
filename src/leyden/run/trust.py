"""What a config may build: what a run is made of, of conf/ and the command line what can be built again."""

import logging
import sys
from collections.abc import Collection, Iterator
from types import FunctionType, MethodType
from typing import Any

import torchvision.models
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from leyden import UserError, said
from leyden.run.configs import literal, source

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # our sentence says it
LIBRARIES = ("leyden", "torch", "torchvision", "lightning", "torchmetrics", "optuna")
CLOSED = (  # modules that read pickles, run code that they are given, or start processes
    "leyden.deploy", "torchvision.datasets", "torch.fx", "torch.jit", "torch.onnx", "torch.distributed",
    "torch.utils.data.datapipes",
)  # fmt: skip
KINDS = {  # names of bases, of which a class of the libraries must have one
    "Module", "Optimizer", "LRScheduler", "Metric", "Dataset", "Sampler", "DataLoader", "Transform", "Compose",
    "ToTensor", "Trainer", "Callback", "LightningDataModule", "Logger", "Profiler", "Strategy", "Precision",
    "ClusterEnvironment", "LayerSync", "BasePruner", "BaseSampler",
}  # fmt: skip


def checked(cfg: DictConfig, node: Any) -> Any:
    """A node of the config in plain containers, resolved once; UserError where it names what may not be built."""
    tree: Any = OmegaConf.to_container(cfg)
    tree.pop("facts", None)  # what the data says
    known = {str(part.get("_target_")) for part in parts(tree)}
    own, new = [*(cfg.get("own") or ()), *(cfg.get("trusted") or ())], not source(cfg)
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    kept = set()  # what is handed DictConfigs

    for part in parts(plain):
        if part.get("_recursive_") is False and "${" in str(part):  # it would be resolved once more
            raise UserError(f"A part with _recursive_: false must hold no text with '${{'; got `{part}`.")
        target = str(part.get("_target_", "???"))
        if "${" in target or (target not in {*known, "???"} and OmegaConf.is_config(node)):
            raise UserError(f"_target_ must be the name itself of a class or function; got `{target}`.")
        if target != "???" and check(target, own + [target.split(".")[0]] * new, new):  # conf/: of any package
            kept.add(target)

    found = escaped(plain, kept)
    return {"_convert_": "all"} | found if isinstance(found, dict) else found


def escaped(node: Any, kept: set[str], boxed: bool = False) -> Any:
    """Plain containers, whose texts Hydra hands on as they are: it resolves them in place, and as it reads them.

    What is in the DictConfigs that targets in `kept` are handed (`boxed`) is read once more.
    """
    if isinstance(node, list):
        return [escaped(part, kept, boxed) for part in node]
    if not isinstance(node, dict):
        return literal(literal(literal(node) if boxed else node))

    if target := node.get("_target_"):
        node = {"_convert_": "none" if target in kept else "all"} | node
        if node.get("_recursive_") is False:
            return literal(literal(node))
        boxed = node["_convert_"] == "none"
    return {name: escaped(part, kept, boxed and not (target and isinstance(part, str))) for name, part in node.items()}


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """Each dict in plain containers, however deep."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from parts(child)


def check(target: str, own: list[str], new: bool) -> bool:
    """Look a target up in the libraries and the user's packages; UserError if it may not be built.

    Whether it is handed DictConfigs, as by Hydra: nothing of the libraries is, and no child of a class of ours.
    """
    if not inside(target, (*LIBRARIES, *own)):
        advice = f"if it is yours, type 'trusted=[{target.split('.')[0]}]'"
        raise UserError(f"The stored config wants {target}, which is not trusted; {advice}.")

    try:
        found = get_object(target)
    except Exception as error:  # whatever its import raises
        if new:
            return False  # Hydra says it, with the key
        raise UserError(f"The stored config wants {target}, which is missing ({said(error)}).") from error

    method = isinstance(found, MethodType) and isinstance(found.__self__, type)
    code = found.__func__ if method else found
    home, name = str(getattr(code, "__module__", "")), str(getattr(code, "__qualname__", ""))
    if library := inside(home, LIBRARIES):
        allowed = shipped(found, home, target)
    else:
        function = isinstance(found, FunctionType) and "." not in name
        allowed = inside(home, own) and home != "builtins" and (method or function or isinstance(found, type))
    if not (allowed and defined(code, home, name)):
        raise UserError(f"{target} must be a part of a run or of your package; write a function there that calls it.")

    bases = [str(base.__module__) for base in getattr(found, "__mro__", ())]
    return not library and not any(inside(base, ("leyden",)) for base in bases)


def defined(code: Any, home: str, name: str) -> bool:
    """Whether its own module calls it by its name: it is not only imported or inherited."""
    again: Any = sys.modules.get(home)
    for part in name.split("."):
        again = getattr(again, part, None)
    return code is getattr(again, "__func__", again)


def shipped(found: Any, home: str, target: str) -> bool:
    """Whether this part of the libraries is a part of a run."""
    if target == "leyden.load_model":  # our one function
        return True
    if any(word.startswith("_") for word in target.split(".")) or inside(home, CLOSED):
        return False

    if isinstance(found, type):
        return not KINDS.isdisjoint(base.__name__ for base in found.__mro__)
    return found in map(torchvision.models.get_model_builder, torchvision.models.list_models())


def inside(name: str, packages: Collection[str]) -> bool:
    """Whether a dotted name lies in one of the packages."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)
