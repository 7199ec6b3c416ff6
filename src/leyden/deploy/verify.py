"""Whether a file gives the checkpoint's numbers: run on real samples, in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from leyden import Failed
from leyden.deploy import card as cards
from leyden.deploy import session

TOLERANCE, RESIZED, HALF = 1e-4, 0.01, 0.02  # of float32; where pictures are resized; of fp16
PATIENCE = 600  # seconds that the other process may take


class Case(NamedTuple):
    """A batch as the file takes it, and what the checkpoint makes of it."""

    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]


def tolerance(card: dict[str, Any], precision: str) -> float:
    return HALF if precision == "fp16" else RESIZED if card.get("size") else TOLERANCE


def check(path: Path, card: dict[str, Any], cases: list[Case], limit: float) -> dict[str, Any]:
    """The report: max_abs_diff (of values in the target's standard deviations), class_agreement, batches.

    Raises:
        Failed: the file cannot be run, has frozen a dimension, or is further from the checkpoint than the limit.
    """
    outputs, dims = elsewhere(path, card, cases)
    if wrong := cards.frozen(card["inputs"], dims):
        raise Failed(f"The exported file is not what was asked for: {'; '.join(wrong)}. Nothing was written.")
    difference, same, count = 0.0, 0, 0
    for case, found in zip(cases, outputs, strict=True):
        for expected, output in zip(case.expected, found, strict=True):
            if tuple(output.shape) != tuple(expected.shape):
                raise Failed(
                    f"For inputs of {[list(part.shape) for part in case.inputs]} the exported file gives "
                    f"{list(output.shape)}, the checkpoint {list(expected.shape)}. Nothing was written."
                )
            apart = np.abs(output.astype(np.float64) - expected.double().numpy()) / np.asarray(
                card.get("target_std") or 1.0
            )
            difference = max(difference, float(apart.max())) if np.isfinite(apart).all() else float("nan")
        if "probs" in card["outputs"]:
            same += int((found[0].argmax(1) == case.expected[0].argmax(1).numpy()).sum())
            count += len(found[0])
    agreement = same / count if count else None
    report = {
        "max_abs_diff": difference,
        "tolerance": limit,
        "class_agreement": agreement,
        "batches": [[list(part.shape) for part in case.inputs] for case in cases],
    }
    if not difference <= limit:
        raise Failed(f"The exported file is {difference:.2g} away from the checkpoint, above {limit:g}; not written.")
    if card.get("size") and agreement is not None and agreement < 1:
        raise Failed(f"The exported file has other classes for {count - same} of {count} samples; not written.")
    return report


def same_weights(path: Path, graph: torch.nn.Module, card: dict[str, Any]) -> dict[str, Any]:
    """The report of a file of weights: read back as data, they are the same bits. Raises Failed if not."""
    found, expected = torch.load(path, weights_only=True), getattr(graph, "model", graph).state_dict()
    if found.keys() != expected.keys() or not all(torch.equal(found[name], expected[name]) for name in expected):
        raise Failed("The weights that were written are not those of the checkpoint. Nothing was written.")
    return {"max_abs_diff": 0.0, "tolerance": 0.0, "class_agreement": None, "batches": []}


def elsewhere(path: Path, card: dict[str, Any], cases: list[Case]) -> tuple[list[list[np.ndarray]], dict[str, Any]]:
    """The outputs of each case and the file's dimensions, from a process that knows nothing of leyden."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "session.py")  # a copy, so that Python does not look for modules beside the original
        script.write_text(Path(session.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        arrays: dict[str, Any] = {
            f"{number}.{name}": part.numpy()
            for number, case in enumerate(cases)
            for name, part in zip(card["inputs"], case.inputs, strict=True)
        }
        np.savez(Path(folder, "cases.npz"), **arrays)
        line = [sys.executable, str(script), str(path.absolute()), "cases.npz", "results.npz"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("LEYDEN_")}
        env |= {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONWARNINGS": "ignore"}
        ran = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
        if ran.returncode:
            reason = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[-1]
            raise Failed(f"The exported file does not run ({reason[:300]}). Nothing was written.")
        with np.load(Path(folder, "results.npz")) as found:
            outputs = [
                [found[f"{number}.{place}"] for place in range(len(card["outputs"]))] for number in range(len(cases))
            ]
        return outputs, json.loads(ran.stdout.strip().splitlines()[-1])


def speed(path: Path, batch_of: Callable[[int], tuple[Tensor, ...]], eager: Callable) -> dict[int, dict[str, float]]:
    """Milliseconds of the file and of the eager graph, by batch size: the median of rounds in turn."""
    program, found = session.Session(path), {}
    for batch in (1, 64):
        inputs = batch_of(batch)
        arrays = [part.numpy() for part in inputs]
        times: dict[str, list[float]] = {"file": [], "eager": []}
        for _ in range(12):
            for name, call, given in (("file", program, arrays), ("eager", eager, inputs)):
                begin = time.perf_counter()
                with torch.no_grad():
                    call(*given)
                times[name].append(1000 * (time.perf_counter() - begin))
        found[batch] = {name: statistics.median(taken[2:]) for name, taken in times.items()}
    return found


def text(card: dict[str, Any], report: dict[str, Any], source: str) -> str:
    """What came of an export, in lines."""
    made = f"{report['format']}: {report['bytes'] / 1024:,.0f} KB in {report['seconds']:.1f} s"
    if not report["batches"]:
        return f"{made}\nread back: the same weights, bit by bit"
    shapes = [f"{name} {' x '.join(map(str, dims))}" for name, dims in card["inputs"].items()]
    gives = [f"{name} {' x '.join(map(str, dims))}" for name, dims in card["outputs"].items()]
    sizes = ", ".join("x".join(map(str, batch[0])) for batch in report["batches"])
    unit = " standard deviations of the target" if card.get("target_std") else ""
    same = "" if report["class_agreement"] is None else f", same class {report['class_agreement']:.1%}"
    return (
        f"{made}\n{', '.join(shapes)} -> {', '.join(gives)}\nchecked in a process of its own on {source} ({sizes}): "
        f"max abs difference {report['max_abs_diff']:.2g}{unit} (limit {report['tolerance']:g}){same}"
    )


def times(kind: str, found: dict[int, dict[str, float]]) -> str:
    return "\n".join(
        f"batch {batch}: {'onnxruntime' if kind == 'onnx' else kind} {taken['file']:.2f} ms, "
        f"eager {taken['eager']:.2f} ms, ratio {taken['eager'] / taken['file']:.2f}"
        for batch, taken in found.items()
    )
