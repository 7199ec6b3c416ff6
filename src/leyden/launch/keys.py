"""One key of a composed tree: whether it is there or may be added, and whether its value is of the right type."""

import ast
import functools
import re
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}  # Hydra takes them at every constructor
LISTS = ("callbacks", "logger")  # groups of which several parts may be chosen, with names that are free
NEEDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "keys"}
WORDS = {  # what keys of these names take besides the type of their value in the YAML
    "devices": r"auto|[\[\]\d, ]+",
    "deterministic": "warn",
    "fast_dev_run": r"\d+",
    **dict.fromkeys(("num_workers", "pin_memory", "drop_last", "fused"), "auto"),
}
SOURCES = {"lightning.Trainer": "lightning.pytorch.trainer.trainer.Trainer"}  # classes that another file defines
NAME = r"(?![.-])(?!latest$)(?!.*\.ckpt$)[\w.+@-]{1,100}"  # of a run


class Typed(NamedTuple):
    """One value for one key."""

    text: str  # as typed
    sign: str  # +, ++, ~ or nothing
    key: str
    value: Any


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, for each node of nested dicts and lists."""
    flat: dict[str, Any] = {}
    for name, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        flat |= {f"{prefix}{name}": child, **flatten(child, f"{prefix}{name}.")}
    return flat


def wrong(typed: Typed, flat: dict[str, Any], groups: list[str]) -> str:
    """What is wrong with a key, its sign or its value in a flat tree, or nothing; hydra.* and ~ are left to Hydra."""
    text, sign, key, value = typed
    if key.startswith("hydra.") or sign == "~":
        return ""
    if key in flat:
        return "nothing follows the =; null is none" if text.endswith("=") else wrong_value(key, flat, value)
    parent = key.rpartition(".")[0]
    while parent and parent not in flat:
        parent = parent.rpartition(".")[0]
    names = addable(parent, flat)
    name = key.removeprefix(f"{parent}.").partition(".")[0]
    free = names is None or name in names or name in SPECIAL or (isinstance(value, dict) and "_target_" in value)
    free |= parent in ("", *LISTS) and key.startswith(tuple(f"{group}." for group in LISTS))
    if free and sign:
        return ""
    if free and (names or parent == "facts"):
        return f"{key} is not in the YAML; type +{text} to add it"
    known = [*flat, *groups, *(f"{parent}.{argument}" for argument in names or ())]
    near = nearest(key, [other for other in known if other != parent])
    siblings = [last(other) for other in flat if other.rpartition(".")[0] == parent and not last(other).startswith("_")]
    hint = f"did you mean {near}?" if near else f"there are {', '.join(siblings)}."
    return f"there is no key {key}: {hint}" + (f" If its constructor takes it, type +{text}" if free else "")


def addable(parent: str, flat: dict[str, Any]) -> dict[str, str] | None:
    """Names that + may add to a node, and their types; None: any."""
    if target := flat.get(f"{parent}._target_"):
        return arguments(str(target))
    return None if "." in parent or parent == "facts" else {}  # inside an argument there is any data


def last(key: str) -> str:
    return key.rpartition(".")[2]


def nearest(key: str, known: list[str]) -> str:
    """The key most like this one, else one whose last part is; the first of equals, or nothing."""
    for part in (str, last):
        likeness = {other: SequenceMatcher(None, part(key), part(other)).ratio() for other in known}
        best = max(likeness, key=likeness.__getitem__, default="")
        if best and likeness[best] >= 0.75:
            return best
    return ""


def wrong_value(key: str, flat: dict[str, Any], value: Any) -> str:
    """What is wrong with the type of a value where the YAML has its usual one, or nothing.

    Whether a number is too large or too small, the constructor says that takes it.
    """
    name, usual = last(key), flat[key]
    if value is None and name in ("split_seed", "batch_size", "log_dir", "data_dir"):
        return f"{key} cannot be null"
    if value is None or "${" in str(value) or re.fullmatch(WORDS.get(name, "(?!)"), str(value)):
        return ""
    if key == "name" and not re.fullmatch(NAME, str(value)):
        return "a name is letters, digits, . + - _ or @, and not latest; type name=my-run"
    if usual is None or "${" in str(usual):
        return ""
    kind = type(usual)
    if kind is int and not whole(key, flat):
        kind = float
    if not fits(value, kind):
        return f"{key} needs {NEEDS[kind]}" + (f", such as {usual}" if type(usual) in (int, float, list) else "")
    return ""


def whole(key: str, flat: dict[str, Any]) -> bool:
    """Whether a key whose usual value is a whole number takes no other, as its constructor says."""
    parent, _, name = key.rpartition(".")
    types = arguments(str(flat.get(f"{parent}._target_"))) if f"{parent}._target_" in flat else {name: "int"}
    return "float" not in (types or {}).get(name, "float")


def fits(value: Any, kind: type) -> bool:
    if kind is str:
        return not isinstance(value, list | dict)
    return isinstance(value, bool) == (kind is bool) and isinstance(value, int | float if kind is float else kind)


@functools.cache
def arguments(target: str) -> dict[str, str] | None:
    """Names that the constructor a.b.Name takes, with their types, read from a/b.py; None: any, or no such file."""
    module, _, name = SOURCES.get(target, target).rpartition(".")
    files = [Path(folder, *module.split(".")).with_suffix(".py") for folder in sys.path if module]
    body = ast.parse(next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")).body
    made = next((n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name), None)
    parts = made.body if isinstance(made, ast.ClassDef) else [made]
    init = next((n for n in parts if isinstance(n, ast.FunctionDef) and n.name in ("__init__", name)), None)
    taken = init.args.args + init.args.kwonlyargs if init else []
    own = {a.arg: ast.unparse(a.annotation) if a.annotation else "float" for a in taken if a.arg != "self"}
    if init and not init.args.kwarg:
        return own
    if not isinstance(made, ast.ClassDef) or len(made.bases) != 1:
        return None
    parent = ast.unparse(made.bases[0])  # takes what **rest hands on, or all where there is no __init__
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    inherited = arguments(homes.get(parent, f"{module}.{parent}"))
    return None if inherited is None else inherited | own
