"""From a graph to a file, and back to be checked."""

import io
import json
import warnings
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.utils._pytree import tree_leaves

from leyden import Failed, UserError, said
from leyden.deploy.graph import Cases, Dims, Metadata

ENDINGS = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt", "state_dict": ".pth"}
EXTRA = "leyden.json"  # the metadata in torch's files


def write(form: str, graph: Any, example: tuple[Tensor, ...], facts: dict[str, Any], path: Path) -> None:
    """Write a graph with its facts; UserError where its exporter fails."""
    extra: Any = {EXTRA: json.dumps(facts)}
    torch.compiler.reset()  # else sizes of an earlier export may count as fixed
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            if form == "state_dict":
                weights = graph.model.state_dict()
                weights.metadata = facts
                return torch.save(weights, path)
            if form == "torchscript":
                return torch.jit.save(torch.jit.trace(graph, example, check_trace=False), path, _extra_files=extra)

            shapes = dynamic_shapes(facts["inputs"])
            program = torch.export.export(with_scans(graph), example, dynamic_shapes=shapes, strict=False)
            if form == "pt2":
                with open(path, "wb") as file:  # torch wants paths that end in .pt2
                    return torch.export.save(program, file, extra_files=extra)

            names: Any = {"input_names": list(facts["inputs"]), "output_names": list(facts["outputs"])}
            onnx: Any = torch.onnx.export(program, dynamic_shapes=shapes, verbose=False, **names)
            onnx.model.metadata_props.update({name: json.dumps(value) for name, value in facts.items()})
            return onnx.save(path, external_data=False)
    except OSError:  # such as a full disk
        raise
    except Exception as error:
        reason = said(error.__cause__ or error)[:200]
        raise UserError(f"format={form} cannot follow this model ({reason}); type another format.") from error


def dynamic_shapes(inputs: dict[str, Dims]) -> Any:
    """The dimensions of any size, as torch.export wants them for a forward(*inputs)."""
    dim = torch.export.Dim
    return (tuple({axis: dim(d) for axis, d in enumerate(dims) if isinstance(d, str)} for dims in inputs.values()),)


def load(form: str, path: Path, graph: Any) -> Any:
    """A file as a function of its inputs; weights alone are loaded into the graph."""
    if form == "torchscript":
        return torch.jit.load(path, map_location="cpu")
    if form == "pt2":
        with open(path, "rb") as file:
            return torch.export.load(file).module()
    if form == "state_dict":
        graph.model.load_state_dict(torch.load(path, weights_only=True))
        return graph
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    named = session.get_inputs()
    return lambda *inputs: session.run(None, {part.name: x.numpy() for part, x in zip(named, inputs, strict=True)})


@torch.no_grad()
def check(form: str, path: Path, graph: nn.Module, metadata: Metadata, cases: Cases) -> dict[str, Any]:
    """The largest difference (of values in the target's standard deviations) and its limit; Failed above it."""
    scale, apart = torch.tensor(metadata.target_std or 1.0, dtype=torch.float64), list[Tensor]()
    try:
        run = load(form, path, graph)
        for inputs, expected in cases:
            for one, other in zip(map(torch.as_tensor, tree_leaves(run(*inputs))), expected, strict=True):
                if one.shape != other.shape:
                    raise ValueError(f"{list(one.shape)} in place of {list(other.shape)}")
                apart.append(((one.double() - other.double()).abs() / scale).max())
    except Exception as error:  # of many kinds
        raise Failed(f"The file does not run ({said(error)[:300]}); not written.") from error

    difference = float(torch.stack(apart).max())  # NaN if any is
    limit = 0.01 if metadata.size else 1e-4  # pictures are resized to whole levels
    if not difference <= limit:
        raise Failed(f"The file is {difference:.2g} away from the checkpoint, above {limit:g}; not written.")
    unit = " standard deviations of the target" if metadata.target_std else ""
    batches = [[list(part.shape) for part in inputs] for inputs, _ in cases]
    return {"max_abs_diff": difference, "unit": unit, "tolerance": limit, "batches": batches}


def with_scans(module: Any) -> nn.Module:
    """The module, of which each GRU and LSTM is `scanned`; UserError where it cannot be."""
    for part in module.modules():
        if isinstance(part, nn.GRU | nn.LSTM):
            if part.num_layers > 1 or part.bidirectional or not part.batch_first:
                raise UserError("a GRU or LSTM must have one layer, one direction and batch_first")
            vars(part)["forward"] = partial(scanned, part)
    return module


def scanned(rnn: Any, values: Tensor) -> tuple[Tensor, Any]:
    """A GRU or LSTM as a scan over time from zeros: exporters freeze the time axis of torch's own.

    B x T x F -> B x T x hidden, and the last state as torch gives it.
    """
    weights, lstm = list(rnn.parameters()), rnn.mode == "LSTM"

    def step(state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        state = torch.lstm_cell(x, state, *weights) if lstm else (torch.gru_cell(x, *state, *weights),)
        return state, state[0].clone()

    zeros = values.new_zeros(values.shape[0], rnn.hidden_size)
    state, outputs = scan(step, (zeros, zeros.clone()) if lstm else (zeros,), values.transpose(0, 1))
    last = tuple(part[None] for part in state)
    return outputs.transpose(0, 1), last if lstm else last[0]
