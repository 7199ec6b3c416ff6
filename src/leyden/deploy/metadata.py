"""What an exported file says of itself, and what a prediction needs to know of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leyden import UserError

Dims = list[Any]  # the size of each dimension, or a name where any size is taken
KINDS = ("image", "sequence", "table")


@dataclass
class Metadata:
    """Plain values only: a file holds each field as JSON."""

    kind: str  # one of KINDS; own: a task of the user's
    inputs: dict[str, Dims]  # in the order of the arguments
    outputs: dict[str, Dims]
    dtype: str = "float32"  # of the first input
    classes: list[str] | None = None
    size: list[int] | None = None  # height and width that pictures are resized to
    mean: list[float] | None = None  # of the training data; the exported graph normalises by itself
    std: list[float] | None = None
    target: str | None = None  # the column of a table that is predicted
    target_std: list[float] | None = None
    columns: list[dict[str, Any]] | None = None  # of a table: categories, or fill and what is subtracted first, offset
    missing: list[str] = field(default_factory=lambda: [""])  # cells of a table without a value
    separator: str | None = None
    background: str = "white"  # behind transparent pixels
    task: str | None = None  # the class of a user's own task
    run: str | None = None
    checkpoint: str | None = None
    commit: str | None = None  # that trained the run
    versions: dict[str, str] = field(default_factory=dict)  # that wrote the file


def of_run(facts: Mapping[str, Any], data: Mapping[str, Any], meaning: str) -> Metadata:
    """The metadata of a task that learns y from x; `data` is the config of its data.

    Raises:
        UserError: the facts do not say what a sample is.
    """
    kind, shape = facts.get("kind"), facts.get("shape")
    if kind not in KINDS or not shape or "outputs" not in facts:
        raise UserError(
            f"`facts` of the run's data must have shape, outputs and a kind, one of {', '.join(KINDS)}; got "
            f"`kind: {kind}`; set them in the datamodule, or give the task a predict_step."
        )
    size, columns = picture_size(data), facts.get("columns")
    any_size = size or data.get("eval_transforms")
    inputs: dict[str, dict[str, Dims]] = {
        "image": {"image": ["batch", shape[0], *(["height", "width"] if any_size else shape[1:])]},
        "sequence": {"values": ["batch", "time", shape[-1]], "lengths": ["batch"]},
        "table": {"row": ["batch", len(columns) if columns else shape[0]]},
    }
    return Metadata(
        kind,
        inputs[kind],
        {meaning: ["batch", facts["outputs"]]},
        dtype="uint8" if kind == "image" else "float32",
        classes=facts.get("classes") if meaning == "probs" else None,
        size=size,
        mean=facts.get("mean"),
        std=facts.get("std"),
        target=data.get("target"),
        target_std=facts.get("target_std") if meaning == "values" else None,
        columns=columns,
        missing=data.get("missing") or [""],
        separator=data.get("separator"),
        background=data.get("background") or "white",
    )


def picture_size(data: Mapping[str, Any]) -> list[int] | None:
    """Height and width that a run resizes its pictures to: by `data.size`, or by a first Resize of its transforms."""
    size, transforms = data.get("size"), data.get("eval_transforms") or [{}]
    if isinstance(size, int):
        return [size, size]
    if size is None and str(transforms[0].get("_target_")).endswith(".Resize"):
        size = transforms[0].get("size")
    return list(size) if isinstance(size, list) and len(size) == 2 else None  # one number: the shorter side


def frozen(asked: Mapping[str, Dims], stated: Sequence[Dims]) -> list[str]:
    """What a file fixes though any size was asked for, or the other way round: a part of a sentence for each."""
    wrong = []
    for (name, dims), found in zip(asked.items(), stated, strict=False):
        if len(found) != len(dims):
            wrong.append(f"{name} has {len(found)} dimensions, not {len(dims)}")
        for dim, size in zip(dims, found, strict=False):
            if isinstance(size, int) and dim != size:
                wrong.append(f"{dim} of {name} is frozen to {size}")
            elif isinstance(dim, int) and dim != size:
                wrong.append(f"{dim} of {name} is {size}")
    return wrong
