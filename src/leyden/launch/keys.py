"""One key of a command line: whether it is in the composed tree, and whether its value is of the right type."""

import ast
import functools
import re
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}  # Hydra takes them at every constructor
LISTS = ("callbacks", "logger")  # groups of which several options may be chosen, with names that are free
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
UNKNOWN = "float | None"  # what an argument takes that has no type: any number, or nothing


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, for each node of nested dicts and lists."""
    flat: dict[str, Any] = {}
    for name, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        flat |= {f"{prefix}{name}": child, **flatten(child, f"{prefix}{name}.")}
    return flat


def mistake(override: Override, flat: dict[str, Any], groups: dict[str, list[str]]) -> str:
    """What is wrong with an override of a key, or nothing; Hydra itself says it of its own keys and of ~."""
    text, key, value = str(override.input_line), override.key_or_group, override.value()
    if override.is_hydra_override() or override.is_delete():
        return ""
    if key in flat:
        return wrong_value(key, flat, value)
    parent = key.rpartition(".")[0]
    while parent and parent not in flat:
        parent = parent.rpartition(".")[0]
    if parent and not isinstance(flat[parent], dict | list | None):
        return f"`{parent}` is `{flat[parent]}` and has no keys of its own."
    plus, (group, _, option) = text.startswith("+"), key.partition(".")
    if group in LISTS and parent in ("", group):
        name, offered = option.partition(".")[0], groups.get(group, [])
        if name in offered:
            chosen = [each for each in offered if f"{group}.{each}" in flat]
            return f"`{group}.{name}` is not chosen; type '{group}=[{','.join([*chosen, name])}]'."
        return "" if plus else f"`{group}.{name}` is not chosen; type +{text} for your own."
    target, name = flat.get(f"{parent}._target_"), key.removeprefix(f"{parent}.").partition(".")[0]
    arguments = constructor(str(target)) if target else None if "." in parent or parent == "facts" else {}
    free = arguments is None or name in {*arguments, *SPECIAL}  # inside an argument there is any data
    free |= isinstance(value, dict) and "_target_" in value
    if plus and free:
        return ""
    known = [*flat, *groups, *(f"{parent}.{argument}" for argument in arguments or ())]
    near = "" if arguments and free else nearest(key, [other for other in known if other != parent])
    hint = f"; did you mean {near}?" if near else "; --cfg job shows those that there are."
    return f"`{key}` is not in the config{hint}" + (f" To add it, type +{text}." if free else "")


def nearest(key: str, known: list[str]) -> str:
    """The key most like this one, else one whose last part is; the first of equals, or nothing."""
    for part in (str, lambda dotted: dotted.rpartition(".")[2]):
        likeness = {other: SequenceMatcher(None, part(key), part(other)).ratio() for other in known}
        best = max(likeness, key=likeness.__getitem__, default="")
        if best and likeness[best] >= 0.75:
            return best
    return ""


def wrong_value(key: str, flat: dict[str, Any], value: Any) -> str:
    """What is wrong with the type of a value, or nothing; whether it is in range, its constructor says."""
    if value == "":
        return f"`{key}` has no value; type {key}=null for none."
    texts = [each.replace("\\${", "") for each in (value, flat[key]) if isinstance(each, str)]
    if flat[key] is None or "${" in "".join(texts):
        return ""
    parent, _, name = key.rpartition(".")
    while parent and f"{parent}._target_" not in flat:  # inside an argument
        parent, _, name = parent.rpartition(".")
    target = flat.get(f"{parent}._target_")
    annotation = (constructor(str(target)) or {}).get(name, UNKNOWN) if target else ""
    words = set(re.findall(r"\w+", annotation))
    if value is None and not (words and words <= {*TYPES}):
        return ""
    if annotation and (not words & {*TYPES, "dict"} or any(word[0] == "_" for word in words)):
        return ""  # a tensor, or an alias
    kind, kinds = type(value).__name__, {type(flat[key]).__name__, *words}
    if kind in kinds or (kind not in ("list", "dict") and "str" in kinds) or (kind == "int" and "float" in kinds):
        return ""
    must = [say for name, say in TYPES.items() if name in kinds and not (name == "int" and "float" in kinds)]
    return f"`{key}` must be {' or '.join(must) or 'keys with values'}; got `{value}`."


@functools.cache
def constructor(target: str) -> dict[str, str] | None:
    """The arguments of a class or function a.b.Name and their types, read from its source; None: any, or no source."""
    module, _, name = target.rpartition(".")
    places = [Path(folder, *module.split(".")) for folder in sys.path if module]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    for node in ast.parse(files[0].read_text(encoding="utf-8")).body if files else ():
        if isinstance(node, ast.ImportFrom) and node.module != module and name in [each.name for each in node.names]:
            return constructor(f"{node.module}.{name}")
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            parts = node.body if isinstance(node, ast.ClassDef) else [node]
            functions = [part for part in parts if isinstance(part, ast.FunctionDef)]
            init = next((part.args for part in functions if part.name in ("__init__", name)), None)
            taken = init.args + init.kwonlyargs if init else []
            own = {each.arg: ast.unparse(each.annotation or ast.Name(UNKNOWN)) for each in taken if each.arg != "self"}
            if init and not init.kwarg:
                return own
            bases = getattr(node, "bases", [])  # one takes what **rest hands on, or all where there is no __init__
            inherited = constructor(f"{module}.{ast.unparse(bases[0])}") if len(bases) == 1 else None
            return None if inherited is None else inherited | own
    return None
