"""From a graph to a file: ONNX, torch.export's pt2, TorchScript, or the weights alone. One file, no side files."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leyden import UserError
from leyden.deploy.graph import twin
from leyden.deploy.session import METADATA

ENDINGS = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt", "state_dict": ".pth"}
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime")}  # packages, besides torch


def write(kind: str, graph: nn.Module, example: tuple[Tensor, ...], card: dict[str, Any], path: Path) -> None:
    """Write a graph in one of ENDINGS; its dimensions are those of the card.

    Raises:
        UserError: the exporter cannot follow the model, or the file cannot be written.
    """
    missing = [name for name in NEEDS.get(kind, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"format={kind} needs {' and '.join(missing)}; type pip install {' '.join(missing)}.")
    try:
        torch.compiler.reset()  # else sizes that an earlier export of this process saw may be taken for fixed ones
        with quiet(), torch.no_grad():
            WRITERS[kind](graph, example, card, path)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written ({error.strerror or error}); set output=<file>.") from error
    except Exception as error:  # exporters have errors of many kinds, and long ones
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = [line for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
        reason = " ".join(lines[0].split()).rstrip(".")[:200]
        others = ", ".join(other for other in ENDINGS if other != kind)
        raise UserError(f"format={kind} cannot follow this model ({reason}); try format={others}.") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters print of their progress and of their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def sizes(card: dict[str, Any]) -> tuple[dict[int, Any], ...]:
    """For each input its dimensions of any size, by their names."""
    return tuple(
        {place: torch.export.Dim(size) for place, size in enumerate(dims) if isinstance(size, str)}
        for dims in card["inputs"].values()
    )


def spread(graph: nn.Module, card: dict[str, Any]) -> Any:
    """The dynamic shapes as torch.export wants them for the graph's arguments."""
    return (sizes(card),) if type(graph).__name__ == "Call" else sizes(card)


def onnx(graph: nn.Module, example: tuple[Tensor, ...], card: dict[str, Any], path: Path) -> None:
    program = torch.onnx.export(
        twin(graph), example, dynamo=True, dynamic_shapes=spread(graph, card), external_data=False, verbose=False,
        input_names=list(card["inputs"]), output_names=list(card["outputs"]),
    )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update({name: json.dumps(value) for name, value in card.items()})
    program.save(str(path), external_data=False)


def pt2(graph: nn.Module, example: tuple[Tensor, ...], card: dict[str, Any], path: Path) -> None:
    program = torch.export.export(twin(graph), example, dynamic_shapes=spread(graph, card), strict=False)
    with open(path, "wb") as file:
        torch.export.save(program, file, extra_files={METADATA: json.dumps(card)})


def torchscript(graph: nn.Module, example: tuple[Tensor, ...], card: dict[str, Any], path: Path) -> None:
    traced = torch.jit.trace(graph, example, check_trace=False)
    torch.jit.save(traced, str(path), _extra_files={METADATA: json.dumps(card)})


def state_dict(graph: nn.Module, example: tuple[Tensor, ...], card: dict[str, Any], path: Path) -> None:
    """The model's weights by their names; the card is their attribute `metadata`."""
    weights = getattr(graph, "model", graph).state_dict()
    weights.metadata = card  # type: ignore[attr-defined]
    torch.save(weights, path)


WRITERS: dict[str, Callable[[nn.Module, tuple[Tensor, ...], dict[str, Any], Path], None]] = {
    "onnx": onnx, "pt2": pt2, "torchscript": torchscript, "state_dict": state_dict,
}  # fmt: skip
