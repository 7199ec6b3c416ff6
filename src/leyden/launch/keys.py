"""One key of a command line: whether it is in the config, and its value of the right type."""

import ast
import re
import sys
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

LISTS = ("callbacks", "logger")  # groups of which several options may be chosen
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
ELSEWHERE = {  # what other templates call it, as a pattern -> what to type here
    "ckpt_path": "resume=<run>",
    "train|validate|test|predict": "src/eval.py run=<run> or src/predict.py run=<run>",
    "fit": "nothing, as src/train.py trains and tests",
    "hparams_search": "search=optuna",
    "task_name": "name=<name>",
    "optimized_metric": "objective=<metric>",
    r"model\.((optimizer|scheduler)\b[^=]*)": r"\1=<value>",
    r"trainer\.(callbacks|logger|profiler)": r"'\1=[<option>]'",
    r"paths\.data_dir": "data_dir=<folder>",
    r"paths\.[^=]*|trainer\.default_root_dir": "log_dir=<folder>",
    r"extras\b[^=]*": "--cfg job to see the config",
    "trainer=ddp_sim": "trainer=ddp",
    "debug=default": "debug=fast",
    "callbacks(=(none|null|default)|$)": "'callbacks=[]' (checkpoints are kept anyway)",
    "logger(=(none|null|csv)|$)": "'logger=[]' (metrics.csv is written anyway)",
    "logger=many_loggers": "'logger=[tensorboard,wandb]'",
}


def elsewhere(typed: str, config: str) -> str:
    """What to type in place of an override that other templates have, or nothing."""
    text = re.sub(r"^[+~]+|[\[\]]", "", typed)
    for pattern, here in ELSEWHERE.items():
        if match := re.match(rf"(?i:{pattern})(?==|$)", text):
            what = here.replace("resume=", "run=") if config in ("eval", "predict", "export") else here
            return f"`{match[0]}` is not known here; type {match.expand(what)}."
    return ""


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of each node in dicts and lists."""
    flat = dict[str, Any]()
    for name, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        flat |= {f"{prefix}{name}": child, **flatten(child, f"{prefix}{name}.")}
    return flat


def mistake(override: Any, flat: dict[str, Any], groups: dict[str, list[str]]) -> str:
    """What is wrong with an override, or nothing; of Hydra's own keys it says that itself."""
    text, key, value = str(override.input_line), override.key_or_group, override.value()
    part = isinstance(value, dict) and "_target_" in value
    if override.is_hydra_override() or (key in flat and (part or override.is_delete())):
        return ""
    if key in flat:
        return wrong_value(key, flat, value)
    if answer := elsewhere(text, "train"):  # although a constructor may take it
        return answer

    group, name = [*key.split("."), ""][:2]
    new = group in LISTS and f"{group}.{name}" not in flat
    if new and name in groups.get(group, ()):
        chosen = [each for each in groups[group] if f"{group}.{each}" in flat]
        return f"`{group}.{name}` is not chosen; type '{group}=[{','.join([*chosen, name])}]'."

    # what may be added: a callback or logger, a fact, a part, what the constructor takes
    owner, argument, takes = constructed(key, flat)
    free = new or part or group == "facts" or takes is None or argument in takes or argument.startswith("_")
    if free and text.startswith("+"):
        return ""

    known = {*flat, *groups, *(f"{owner}.{each}" for each in takes or ())} - {key}
    add = f" To add it, type +{text}." if free and not override.is_delete() else ""
    near = "." if add and takes else hint(key, sorted(known))
    return f"`{key}` is not in the config (--cfg job prints it){near}{add}"


def hint(key: str, known: list[str]) -> str:
    """The end of a sentence: the key most like this one, or up to five with such a last part."""
    near = get_close_matches(key, known, 1, 0.65)
    last = get_close_matches(key.rpartition(".")[2], {other.rpartition(".")[2] for other in known}, 5, 0.75)
    near = near or [other for other in known if other.rpartition(".")[2] in last][:5]
    return f"; did you mean {' or '.join(near)}?" if near else "."


def wrong_value(key: str, flat: dict[str, Any], value: Any) -> str:
    """What is wrong with the type of a value, or nothing."""
    usual = flat[key]
    if None in (usual, value) or any(isinstance(each, str) and "${" in each for each in (usual, value)):
        return ""
    owner, argument, takes = constructed(key, flat)
    annotation = (takes or {}).get(argument, "float") if owner else ""

    words = set(re.findall(r"\w+", annotation))
    if annotation and (not words & {*TYPES, "dict"} or re.search(r"\b_", annotation)):
        return ""  # a tensor, or an alias: the constructor alone knows

    kind, kinds = type(value).__name__, {type(usual).__name__, *words}
    if kind in kinds or (kind == "int" and "float" in kinds) or ("str" in kinds and kind not in ("list", "dict")):
        return ""
    must = [say for name, say in TYPES.items() if name in kinds and (name != "int" or "float" not in kinds)]
    return f"`{key}` must be {' or '.join(must) or 'keys with values'}; got `{value}`."


def constructed(key: str, flat: dict[str, Any]) -> tuple[str, str, dict[str, str] | None]:
    """The node with a constructor that a key lies in, the key's argument there, and all arguments."""
    parts = key.split(".")
    for count in range(len(parts) - 1, 0, -1):
        owner = ".".join(parts[:count])
        if f"{owner}._target_" in flat:
            return owner, parts[count], constructor(str(flat[f"{owner}._target_"]))
    return "", "", {}


@cache
def constructor(target: str) -> dict[str, str] | None:
    """The arguments of a class or function, and their types, from its source; None: any, or no source."""
    module, _, name = target.rpartition(".")
    path = module.replace(".", "/")
    places = [Path(folder, place) for folder in sys.path for place in (f"{path}.py", f"{path}/__init__.py")]
    text = next((place.read_text(encoding="utf-8") for place in places if place.is_file()), "")

    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module != module and name in [each.name for each in node.names]:
            return constructor(f"{node.module}.{name}")
        if getattr(node, "name", None) != name:
            continue
        if any(ast.unparse(each).startswith("dataclass") for each in node.decorator_list):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            return {ast.unparse(each.target): ast.unparse(each.annotation) for each in fields}

        methods = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]
        init = next((part.args for part in methods if part.name in ("__init__", name)), None)
        own = init.args + init.kwonlyargs if init else []
        types = {each.arg: ast.unparse(each.annotation or ast.Name("float")) for each in own if each.arg != "self"}
        if init and not init.kwarg:
            return types

        bases = getattr(node, "bases", [])  # one takes what **rest hands on, or all without an __init__
        inherited = constructor(f"{module}.{ast.unparse(bases[0])}") if len(bases) == 1 else None
        return None if inherited is None else inherited | types
    return None
