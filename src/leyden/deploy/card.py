"""What an exported file says of itself, and a prediction needs to know of a run: plain values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leyden import UserError

VERSION = 1  # of the card
NAMES = {"image": ("image",), "sequence": ("values", "lengths"), "table": ("row",)}


def make(facts: Mapping[str, Any], data: Mapping[str, Any], meaning: str, dtype: str = "uint8") -> dict[str, Any]:
    """The card of a task that learns y from x; `data` is the config of the data, `dtype` that of its pictures.

    Raises:
        UserError: the facts do not say what a sample is.
    """
    kind = facts.get("kind")
    if kind not in NAMES:
        raise UserError(
            f"The run's data does not say what a sample is (facts.kind={kind}); only split=test can be predicted."
        )
    shape, outputs = list(facts["shape"]), facts["outputs"]
    size = side(data)
    return {
        "leyden": VERSION,
        "kind": kind,
        "inputs": inputs(kind, shape, size or data.get("eval_transforms"), facts.get("columns")),
        "outputs": {meaning: ["batch", outputs]},
        "dtype": dtype if kind == "image" else "float32",
        "classes": facts.get("classes") if meaning == "probs" else None,
        "size": size,
        "mean": facts["mean"],
        "std": facts["std"],
        "target": data.get("target"),
        "target_std": facts.get("target_std") if meaning == "values" else None,
        "columns": facts.get("columns"),
        "missing": data.get("missing") or [""],
        "separator": data.get("separator"),
        "background": data.get("background") or "white",
    }


def side(data: Mapping[str, Any]) -> list[int] | None:
    """Height and width that the run resizes its pictures to: by data.size, or by a first Resize of its transforms."""
    size = data.get("size")
    if size is None:
        first: Mapping[str, Any] = next(iter(data.get("eval_transforms") or []), {})
        size = first.get("size") if str(first.get("_target_")).endswith(".Resize") else None
        size = None if isinstance(size, int) or size is None or len(size) < 2 else size  # an int is the shorter side
    return None if size is None else [size] * 2 if isinstance(size, int) else [int(part) for part in size]


def inputs(kind: str, shape: Sequence[Any], changed: Any, columns: Any) -> dict[str, list[Any]]:
    """The dimensions of each input, with a name for those of any size."""
    if kind == "image":
        return {"image": ["batch", shape[0], *(["height", "width"] if changed else shape[1:])]}
    if kind == "sequence":
        return {"values": ["batch", "time", shape[1]], "lengths": ["batch"]}
    return {"row": ["batch", len(columns) if columns else shape[0]]}


def whole(size: Any) -> Any:
    """A dimension as an exported file may give it: a number, or None where any size is taken."""
    return size if isinstance(size, int) else None


def frozen(asked: Mapping[str, list[Any]], found: Mapping[str, list[Any]]) -> list[str]:
    """What the file fixes though any size was asked for, or the other way round; a sentence's part for each."""
    wrong = []
    for name, sizes in asked.items():
        if name in found and len(found[name]) != len(sizes):
            wrong.append(f"{name} has {len(found[name])} dimensions, not {len(sizes)}")
        for size, got in zip(sizes, found.get(name, sizes), strict=False):
            if whole(size) != whole(got):
                wrong.append(f"{size} of {name} is {'frozen to ' * isinstance(got, int)}{got}")
    return wrong
