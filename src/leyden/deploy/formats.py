"""From a graph to a file and back: ONNX, torch.export's pt2, TorchScript, or the weights alone. No side files."""

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
from leyden.deploy.graph import Call, with_scans
from leyden.deploy.metadata import Dims, Metadata

ENDINGS = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt", "state_dict": ".pth"}
EXTRA = "leyden.json"  # the metadata in torch's files
Example = tuple[Tensor, ...]


def write(form: str, graph: nn.Module, example: Example, metadata: Metadata, path: Path) -> None:
    """Write a graph in one of ENDINGS; its dimensions are those of the metadata.

    Raises:
        UserError: the exporter cannot follow the model, or the file cannot be written.
    """
    needed = ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise UserError(f"format={form} needs {' and '.join(missing)}; type pip install {' '.join(missing)}.")
    writers = {"onnx": write_onnx, "pt2": write_pt2, "torchscript": write_torchscript, "state_dict": write_state_dict}
    try:
        torch.compiler.reset()  # else sizes that an earlier export of this process saw may be taken for fixed ones
        with quiet(), torch.no_grad():
            writers[form](graph, example, metadata, path)
    except OSError:
        raise
    except Exception as error:  # exporters have errors of many kinds, and long ones
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        reason = " ".join(reason.split()).rstrip(".")[:200]
        others = ", ".join(other for other in ENDINGS if other != form)
        raise UserError(f"format={form} cannot follow this model ({reason}); try format={others}.") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters print of their progress and of their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def dynamic_shapes(graph: nn.Module, metadata: Metadata) -> Any:
    """For each argument of the graph its dimensions of any size, as torch.export wants them."""
    named = tuple(
        {axis: torch.export.Dim(dim) for axis, dim in enumerate(dims) if isinstance(dim, str)}
        for dims in metadata.inputs.values()
    )
    return (named,) if isinstance(graph, Call) else named  # whose one argument is *inputs


def write_onnx(graph: nn.Module, example: Example, metadata: Metadata, path: Path) -> None:
    program = torch.onnx.export(
        with_scans(graph),
        example,
        dynamo=True,
        dynamic_shapes=dynamic_shapes(graph, metadata),
        external_data=False,
        verbose=False,
        input_names=list(metadata.inputs),
        output_names=list(metadata.outputs),
    )
    assert program is not None
    program.model.metadata_props.update({name: json.dumps(value) for name, value in vars(metadata).items()})
    program.save(str(path), external_data=False)


def write_pt2(graph: nn.Module, example: Example, metadata: Metadata, path: Path) -> None:
    shapes = dynamic_shapes(graph, metadata)
    program = torch.export.export(with_scans(graph), example, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path, extra_files={EXTRA: json.dumps(vars(metadata))})


def write_torchscript(graph: nn.Module, example: Example, metadata: Metadata, path: Path) -> None:
    traced = torch.jit.trace(graph, example, check_trace=False)
    torch.jit.save(traced, str(path), _extra_files={EXTRA: json.dumps(vars(metadata))})


def write_state_dict(graph: nn.Module, example: Example, metadata: Metadata, path: Path) -> None:
    """The model's weights by their names; the metadata is their attribute `metadata`."""
    weights: Any = weights_of(graph)
    weights.metadata = dict(vars(metadata))
    torch.save(weights, path)


def weights_of(graph: nn.Module) -> dict[str, Tensor]:
    """Of the graph's model, or of a user's own task."""
    part: Any = graph.task if isinstance(graph, Call) else graph.model
    return part.state_dict()


def load(form: str, path: Path) -> tuple[Callable[..., Any], list[Dims]]:
    """A written file as a function of its inputs, and the dimensions that it states of each; none for TorchScript."""
    if form == "onnx":
        return load_onnx(path)
    if form == "torchscript":
        return torch.jit.load(path, map_location="cpu"), []
    program = torch.export.load(path)
    names = program.graph_signature.user_inputs
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return program.module(), [[n if isinstance(n, int) else str(n) for n in value.shape] for value in values]


def load_onnx(path: Path) -> tuple[Callable[..., Any], list[Dims]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    entries = session.get_inputs()

    def run(*inputs: Tensor) -> list[Any]:
        return session.run(None, {entry.name: part.numpy() for entry, part in zip(entries, inputs, strict=True)})

    return run, [list(entry.shape) for entry in entries]
