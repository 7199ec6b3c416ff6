"""Whether a file gives the checkpoint's numbers: it is loaded again, and run on real samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leyden import Failed
from leyden.deploy import formats
from leyden.deploy.metadata import Metadata, frozen

TOLERANCE, RESIZED = 1e-4, 0.01  # largest difference; the same where pictures are resized, in whole levels


class Case(NamedTuple):
    """A batch as the file takes it, and what the checkpoint makes of it."""

    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]


def check(form: str, path: Path, metadata: Metadata, cases: list[Case]) -> dict[str, Any]:
    """The report: max_abs_diff (of values in the target's standard deviations), class_agreement, batches.

    Raises:
        Failed: the file cannot be run, has frozen a dimension, or is further from the checkpoint than the limit.
    """
    limit = RESIZED if metadata.size else TOLERANCE
    scale = torch.tensor(metadata.target_std or 1.0, dtype=torch.float64)
    differences, agreements = [], []
    for case, results in zip(cases, outputs_of(form, path, metadata, cases), strict=True):
        for expected, result in zip(case.expected, results, strict=True):
            if result.shape != expected.shape:
                raise Failed(
                    f"For inputs of {shapes(case)} the exported file gives {list(result.shape)}, the checkpoint "
                    f"{list(expected.shape)}. Nothing was written."
                )
            differences.append(((result.double() - expected.double()) / scale).abs().max())
        if "probs" in metadata.outputs:
            agreements.append(results[0].argmax(1) == case.expected[0].argmax(1))
    apart = float(torch.stack(differences).max())  # NaN if any is
    same = float(torch.cat(agreements).double().mean()) if agreements else None
    if not apart <= limit:
        raise Failed(f"The exported file is {apart:.2g} away from the checkpoint, above {limit:g}; not written.")
    if metadata.size and same is not None and same < 1:
        raise Failed(f"The exported file has another class for {1 - same:.1%} of the samples; not written.")
    batches = [shapes(case) for case in cases]
    return {"max_abs_diff": apart, "tolerance": limit, "class_agreement": same, "batches": batches}


def outputs_of(form: str, path: Path, metadata: Metadata, cases: list[Case]) -> list[list[Tensor]]:
    """What the file gives for each case. Raises Failed if it has frozen a dimension, or does not run."""
    try:
        run, stated = formats.load(form, path)
        if wrong := frozen(metadata.inputs, stated):
            raise Failed(f"The exported file is not what was asked for: {'; '.join(wrong)}. Nothing was written.")
        with torch.no_grad():
            results = [run(*case.inputs) for case in cases]
    except Failed:
        raise
    except Exception as error:  # runtimes have errors of many kinds, and long ones
        reason = " ".join(str(error).split())[:300]
        raise Failed(f"The exported file does not run ({reason}). Nothing was written.") from error
    listed = [result if isinstance(result, list | tuple) else [result] for result in results]
    return [[torch.as_tensor(part) for part in parts] for parts in listed]


def shapes(case: Case) -> list[list[int]]:
    return [list(part.shape) for part in case.inputs]


def same_weights(path: Path, graph: nn.Module) -> dict[str, Any]:
    """The report of a file of weights: read back as data, they are the same bits. Raises Failed if not."""
    stored, expected = torch.load(path, weights_only=True), formats.weights_of(graph)
    if stored.keys() != expected.keys() or not all(torch.equal(stored[name], expected[name]) for name in expected):
        raise Failed("The weights that were written are not those of the checkpoint. Nothing was written.")
    return {"max_abs_diff": 0.0, "tolerance": 0.0, "class_agreement": None, "batches": []}


def in_words(report: dict[str, Any], metadata: Metadata, source: str) -> str:
    """What came of an export, in lines; `source` names the samples of its check."""
    written = f"{report['format']}: {report['bytes'] / 1024:,.0f} KB in {report['seconds']:.1f} s"
    if not report["batches"]:
        return f"{written}\nread back: the same weights, bit by bit"
    takes, gives = (
        ", ".join(f"{name} {' x '.join(map(str, dims))}" for name, dims in part.items())
        for part in (metadata.inputs, metadata.outputs)
    )
    sizes = ", ".join("x".join(map(str, batch[0])) for batch in report["batches"])
    unit = " standard deviations of the target" if metadata.target_std else ""
    same = "" if report["class_agreement"] is None else f", same class {report['class_agreement']:.1%}"
    return (
        f"{written}\n{takes} -> {gives}\nchecked on {source} ({sizes}): "
        f"max abs difference {report['max_abs_diff']:.2g}{unit} (limit {report['tolerance']:g}){same}"
    )
