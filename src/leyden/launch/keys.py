"""One key of a composed tree: whether it is there or may be added, which values it takes, and which way is better."""

import ast
import functools
import re
import sys
from difflib import SequenceMatcher
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}  # Hydra takes them at every constructor
NEEDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "keys"}
WORDS = {  # what keys of these names take besides the type of their value in the YAML
    **dict.fromkeys(("num_workers", "pin_memory", "drop_last", "fused"), "auto"),
    "devices": r"auto|[\[\]\d, ]+",
    "deterministic": "warn",
    "fast_dev_run": r"\d+",
}
LIMITS = [  # least and largest value of keys of these names; whole numbers where the least is written as one
    (1, inf, "batch_size num_samples num_classes folds threads num_nodes accumulate_grad_batches every_n_steps"),
    (1, inf, "log_every_n_steps update_every_n_steps check_val_every_n_epoch rounds steps"),
    (0, 2**32 - 1, "seed"),
    (0, inf, "split_seed fold num_workers warmup_steps patience min_epochs min_steps"),
    (0, inf, "reload_dataloaders_every_n_epochs"),
    (-1, inf, "max_epochs max_steps num_sanity_val_steps devices"),
    (0.0, inf, "lr min_lr weight_decay momentum gradient_clip_val l1 gradient_penalty overfit_batches"),
    (0.0, inf, "val_check_interval limit_train_batches limit_val_batches limit_test_batches"),
    (0.0, inf, "limit_predict_batches"),
    (0.0, 1.0, "val_fraction test_fraction dropout label_smoothing"),
]
LISTS = ("callbacks", "logger")  # groups of which several parts may be chosen, with names that are free
SMALL = {  # words in the names of metrics of which less is better
    "loss", "error", "mse", "mae", "rmse", "msle", "mape", "nll", "bce", "kl", "perplexity", "huber", "fid", "wer",
    "cer", "ece", "brier",
}  # fmt: skip
LARGE = {  # words in the names of metrics of which more is better
    "accuracy", "acc", "auc", "auroc", "f1", "r2", "precision", "recall", "sensitivity", "specificity",
    "iou", "miou", "jaccard", "dice", "psnr", "ssim", "bleu", "rouge", "kappa", "mcc", "pearson", "spearman",
}  # fmt: skip
UNSURE = {"gap", "drop", "diff", "delta", "decrease", "neg", "negative", "inverse", "std", "var", "ratio"}  # of either


class Typed(NamedTuple):
    """One value for one key."""

    text: str  # as typed
    sign: str  # +, ++, ~ or nothing
    key: str
    value: Any


def direction(metric: str) -> str | None:
    """`min` or `max`: whether a metric of this name is better when it is small or large; None: the name does not say.

    A word may carry a number, as in acc5; a loss that is named after a metric, as in dice_loss, is a loss.
    """
    words = re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*", str(metric).rpartition("/")[2])
    known = {name for word in words for name in (word.lower(), word.lower().rstrip("0123456789"))}
    if UNSURE & known:
        return None
    if {"loss", "error"} & known:
        return "min"
    found = [way for way, names in (("min", SMALL), ("max", LARGE)) if names & known]
    return found[0] if len(found) == 1 else None


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
        return "nothing follows the =; null is none" if text.endswith("=") else wrong_value(key, flat[key], value)
    parent = key.rpartition(".")[0]
    while parent and parent not in flat:
        parent = parent.rpartition(".")[0]
    names = addable(parent, flat)
    name = key.removeprefix(f"{parent}.").partition(".")[0]
    free = names is None or name in names | SPECIAL or (isinstance(value, dict) and "_target_" in value)
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


def addable(parent: str, flat: dict[str, Any]) -> frozenset[str] | None:
    """Names that + may add to a node; None: any."""
    target = flat.get(f"{parent}._target_")
    if target:  # conf/trainer/default.yaml has all that a run can set
        return frozenset() if target == "lightning.Trainer" else arguments(target)
    return None if "." in parent or parent == "facts" else frozenset()  # inside an argument there is any data


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


def wrong_value(key: str, usual: Any, value: Any) -> str:
    """What is wrong with a value where the YAML has its usual one, or nothing."""
    name = last(key)
    if value is None and name in ("split_seed", "batch_size", "log_dir", "data_dir"):
        return f"{key} cannot be null"
    if value is None or "${" in str(value) or re.fullmatch(WORDS.get(name, "(?!)"), str(value)):
        return ""
    if key == "name" and not re.fullmatch(r"(?![.-])(?!latest$)(?!.*\.ckpt$)[\w.+@-]{1,100}", str(value)):
        return "a name is letters, digits, . + - _ or @, and not latest; type name=my-run"
    limits = [(low, high) for low, high, names in LIMITS if name in names.split()]
    if isinstance(usual, bool | list | dict):
        limits = []  # of another meaning
    elif not limits and (usual is None or "${" in str(usual)):
        return ""  # not known before the data is read
    kind = type(limits[0][0]) if limits and not isinstance(usual, float) else type(usual)
    if not fits(value, kind):
        return f"{key} needs {NEEDS[kind]}" + (f", such as {usual}" if type(usual) in (int, float, list) else "")
    for low, high in limits:
        if not low <= value <= high or value == inf:
            return f"{key} must be " + (f"at least {low:g}" if high == inf else f"between {low:g} and {high:.10g}")
    return ""


def fits(value: Any, kind: type) -> bool:
    if kind is str:
        return not isinstance(value, list | dict)
    return isinstance(value, bool) == (kind is bool) and isinstance(value, int | float if kind is float else kind)


@functools.cache
def arguments(target: str) -> frozenset[str] | None:
    """Names that the constructor a.b.Name takes, read from the file a/b.py; None: any, or there is no such file."""
    module, _, name = target.rpartition(".")
    files = [Path(folder, *module.split(".")).with_suffix(".py") for folder in sys.path if module]
    body = ast.parse(next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")).body
    made = next((n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name), None)
    parts = made.body if isinstance(made, ast.ClassDef) else [made]
    init = next((n for n in parts if isinstance(n, ast.FunctionDef) and n.name in ("__init__", name)), None)
    own = frozenset(arg.arg for arg in (init.args.args + init.args.kwonlyargs if init else ())) - {"self"}
    if init and not init.args.kwarg:
        return own
    if not isinstance(made, ast.ClassDef) or len(made.bases) != 1:
        return None
    parent = ast.unparse(made.bases[0])  # takes what **rest hands on, or all where there is no __init__
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    inherited = arguments(homes.get(parent, f"{module}.{parent}"))
    return None if inherited is None else inherited | own
