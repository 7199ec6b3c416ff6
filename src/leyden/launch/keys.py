"""One key of a command line: whether it is in the composed tree, and whether its value is of the right type."""

import ast
import functools
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # report.py reads command lines without Hydra
    from hydra.core.override_parser.types import Override

SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}  # Hydra takes them at every constructor
LISTS = ("callbacks", "logger")  # groups of which several options may be chosen, with names that are free
TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
UNKNOWN = "float | None"  # what an argument takes that has no type: any number, or nothing
ELSEWHERE = {  # what other templates call it, as a pattern -> what to type here
    "ckpt_path": "resume=<run> to go on, or run=<run> in other scripts",
    "train|validate|test|predict": "src/eval.py run=<run> or src/predict.py run=<run>",
    "fit": "nothing for it, as src/train.py trains and then tests",
    "hparams_search": "search=optuna",
    "task_name": "name=<name>",
    "optimized_metric": "objective=<metric>",
    r"model\.((optimizer|scheduler)\b.*)": r"\1=<value>",
    r"trainer\.(callbacks|logger|profiler)": r"'\1=[<option>]', a group of its own",
    r"paths\.data_dir": "data_dir=<folder>",
    r"paths\..*|trainer\.default_root_dir": "log_dir=<folder>",
    r"extras\b.*": "--cfg job to see the config, or tags=[<word>]",
    "trainer=ddp_sim": "trainer=ddp, with or without GPUs",
    "debug=default": "debug=fast",
    "callbacks=(none|None|default)": "'callbacks=[]' (checkpoints are kept anyway)",
    "logger=(none|None|csv)": "'logger=[]' (metrics.csv is written anyway)",
    "logger=many_loggers": "'logger=[tensorboard,wandb]'",
}


def elsewhere(typed: str) -> str:
    """What to type in place of a name that other templates have, or nothing."""
    found = ((re.fullmatch(pattern, typed), here) for pattern, here in ELSEWHERE.items())
    return next((f"`{typed}` is not known here; type {match.expand(here)}." for match, here in found if match), "")


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value, for each node of nested dicts and lists."""
    flat: dict[str, Any] = {}
    for name, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        flat |= {f"{prefix}{name}": child, **flatten(child, f"{prefix}{name}.")}
    return flat


def mistake(override: "Override", flat: dict[str, Any], groups: dict[str, list[str]]) -> str:
    """What is wrong with an override, or nothing; Hydra itself says it of its own keys."""
    text, key, value = str(override.input_line), override.key_or_group, override.value()
    if override.is_hydra_override():
        return ""
    if key in flat:
        return "" if override.is_delete() else wrong_value(key, flat, value)
    if answer := elsewhere(key):
        return answer
    parent = next((each for each in parents(key) if each in flat), "")
    if parent and not isinstance(flat[parent], dict | list | None):
        return f"`{parent}` is `{flat[parent]}` and has no keys of its own."
    group, _, rest = key.partition(".")
    own = group in LISTS and parent in ("", group)
    if own and (name := rest.partition(".")[0]) in groups.get(group, ()):
        chosen = [each for each in groups[group] if f"{group}.{each}" in flat]
        return f"`{group}.{name}` is not chosen; type '{group}=[{','.join([*chosen, name])}]'."

    # what may be added: a callback or logger, what the constructor takes, a part; inside an argument there is any data
    target, name = flat.get(f"{parent}._target_"), key.removeprefix(f"{parent}.").partition(".")[0]
    arguments = constructor(str(target)) if target else None if "." in parent or parent == "facts" else {}
    part = isinstance(value, dict) and "_target_" in value
    free = own or part or arguments is None or name in {*arguments, *SPECIAL}
    if free and text.startswith("+"):
        return ""
    known = {*flat, *groups, *(f"{parent}.{argument}" for argument in arguments or ())} - {parent}
    near = [] if arguments and free else nearest(key, sorted(known))
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    hint += f" To add it, type +{text}." if free and not override.is_delete() else ""
    return f"`{key}` is not in the config (--cfg job{f' -p {group}' if parent else ''} prints it){hint}"


def parents(key: str) -> list[str]:
    """The keys that a key lies in, the nearest first."""
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def nearest(key: str, known: list[str]) -> list[str]:
    """The key most like this one, or else at most five whose last part is like its last."""
    if near := get_close_matches(key, known, 1, 0.75):
        return near
    last = get_close_matches(key.rpartition(".")[2], {other.rpartition(".")[2] for other in known}, 5, 0.75)
    return [other for other in known if other.rpartition(".")[2] in last][:5]


def wrong_value(key: str, flat: dict[str, Any], value: Any) -> str:
    """What is wrong with the type of a value, or nothing; whether it is in range, its constructor says."""
    if value == "":
        return f"`{key}` has no value; type {key}=null for none."
    usual, built = flat[key], isinstance(value, dict) and "_target_" in value
    texts = [each.replace("\\${", "") for each in (value, usual) if isinstance(each, str)]
    if usual is None or value is None or built or "${" in "".join(texts):
        return ""
    owner = next((each for each in parents(key) if f"{each}._target_" in flat), "")
    name = key.removeprefix(f"{owner}.").partition(".")[0]
    annotation = (constructor(str(flat[f"{owner}._target_"])) or {}).get(name, UNKNOWN) if owner else ""
    words = set(re.findall(r"\w+", annotation))
    if annotation and (not words & {*TYPES, "dict"} or any(word.startswith("_") for word in words)):
        return ""  # a tensor, or an alias: the constructor alone knows
    kind, kinds = type(value).__name__, {type(usual).__name__, *words}
    if kind in kinds or (kind == "int" and "float" in kinds) or ("str" in kinds and kind not in ("list", "dict")):
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
