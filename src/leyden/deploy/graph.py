"""A task as one plain module for predictions and exports: raw input in, probabilities or values out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F
from torchvision.transforms import v2

from leyden import UserError
from leyden.data.samples import to_float
from leyden.tasks.supervised import Supervised


class Graph(nn.Module):
    """A task without training. `prepare`: raw batch -> what the loader gives; children name the inputs.

    What comes out is float32 whatever the model computes in: B x outputs, probabilities or values in the target's unit.
    """

    def __init__(self, task: Supervised, prepare: nn.Module | None = None):
        super().__init__()
        self.prepare = prepare or nn.Identity()
        self.preprocess, self.model, self.readout = task.preprocess, task.model, task.readout()

    def read(self, x: Any) -> Tensor:
        x = self.preprocess(x)
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        x = x.to(dtype) if isinstance(x, Tensor) else (x[0].to(dtype), *x[1:])
        return self.readout(self.model(x).float())


class Images(Graph):
    def forward(self, image: Tensor) -> Tensor:
        """image: B x C x H x W, uint8, or float as the data has it."""
        return self.read(to_float(self.prepare(image)))


class Sequences(Graph):
    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """values: B x T x F, padded; lengths: B of int64."""
        return self.read((values, lengths))


class Tables(Graph):
    def forward(self, row: Tensor) -> Tensor:
        """row: B x columns; NaN where a value is missing."""
        return self.read(self.prepare(row))


GRAPHS = {"image": Images, "sequence": Sequences, "table": Tables}


class Call(nn.Module):
    """A user's own task by its `forward`; a dict batch enters as its values, in the order of `keys`."""

    def __init__(self, task: nn.Module, keys: list[str] | None = None):
        super().__init__()
        self.task, self.keys = task, keys

    def named(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The outputs by their names. Raises UserError where they are no tensors."""
        outputs = self.task(dict(zip(self.keys, inputs, strict=True))) if self.keys else self.task(*inputs)
        if not isinstance(outputs, dict):
            several = outputs if isinstance(outputs, list | tuple) else [outputs]
            outputs = {f"output{number or ''}": part for number, part in enumerate(several)}
        if not outputs or not all(isinstance(part, Tensor) for part in outputs.values()):
            raise UserError(f"forward of {type(self.task).__name__} must give a tensor, several, or a dict of them.")
        return outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.named(*inputs).values())


def resized(image: Tensor, size: Sequence[int] | None) -> Tensor:
    """Pictures of B x C x H x W as `leyden.data.decode` resizes them, antialiased; None leaves them as they are."""
    if size is None or list(image.shape[2:]) == list(size):
        return image
    return F.interpolate(image, tuple(size), mode="bilinear", antialias=True)


class Resize(nn.Module):
    """`resized` for exporters, which know no uint8 there: in float, rounded to whole levels."""

    def __init__(self, size: Sequence[int]):
        super().__init__()
        self.size = tuple(size)

    def forward(self, image: Tensor) -> Tensor:
        resized = F.interpolate(image.float(), self.size, mode="bilinear", antialias=True)
        return resized.round().clamp(0, 255).to(torch.uint8)


class Apply(nn.Module):
    """The run's own transforms, on a sample or on a batch."""

    def __init__(self, transforms: Sequence[Callable[[Tensor], Tensor]] = ()):
        super().__init__()
        self.transforms = list(transforms)

    def forward(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(to_float(image) if isinstance(transform, v2.Normalize) else image)
        return image


class Scanned(nn.Module):
    """A GRU or LSTM with the same weights as a scan over time: exporters freeze the time axis of torch's own."""

    def __init__(self, rnn: nn.RNNBase):
        super().__init__()
        self.rnn = rnn

    def forward(self, values: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """B x T x F -> B x T x directions * hidden, and the last state as torch gives it."""
        rnn, ends = self.rnn, []
        x = values if rnn.batch_first else values.transpose(0, 1)
        directions = 1 + rnn.bidirectional
        if state is None:
            zeros = x.new_zeros(rnn.num_layers * directions, x.shape[0], rnn.hidden_size)
            state = (zeros, zeros) if rnn.mode == "LSTM" else zeros
        start = state if isinstance(state, tuple) else (state,)
        for layer in range(rnn.num_layers):
            outputs = []
            for reverse in range(directions):
                begin = tuple(part[layer * directions + reverse].clone() for part in start)
                name = f"l{layer}{'_reverse' * reverse}"
                end, out = self.layer(x.flip(1) if reverse else x, begin, name)
                outputs.append(out.flip(1) if reverse else out)
                ends.append(end)
            x = torch.cat(outputs, -1)
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return x if rnn.batch_first else x.transpose(0, 1), last if rnn.mode == "LSTM" else last[0]

    def layer(self, x: Tensor, begin: tuple[Tensor, ...], name: str) -> tuple[tuple[Tensor, ...], Tensor]:
        """One layer in one direction: its last state, and B x T x hidden."""
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.rnn.bias else 2]
        weights, lstm = [getattr(self.rnn, f"{part}_{name}") for part in parts], self.rnn.mode == "LSTM"

        def step(state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            state = torch.lstm_cell(x, state, *weights) if lstm else (torch.gru_cell(x, *state, *weights),)
            return state, state[0].clone()

        last, out = scan(step, begin, x.transpose(0, 1))
        return last, out.transpose(0, 1)


def with_scans(module: nn.Module) -> nn.Module:
    """A copy with `Scanned` in place of each GRU and LSTM; the module itself where it has none."""
    if not any(isinstance(part, nn.GRU | nn.LSTM) for part in module.modules()):
        return module
    module = copy.deepcopy(module)
    for name, part in list(module.named_modules()):
        if isinstance(part, nn.GRU | nn.LSTM) and not part.proj_size:
            module.set_submodule(name, Scanned(part))
    return module
