"""The whole way of a prediction as one plain module: raw input in, meaning out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F
from torchvision.transforms import v2

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
        weight = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if weight is not None:
            x = x.to(weight.dtype) if isinstance(x, Tensor) else (x[0].to(weight.dtype), *x[1:])
        return self.readout(self.model(x).float())


class Images(Graph):
    def forward(self, image: Tensor) -> Tensor:
        """image: B x C x H x W, uint8, or float as the data has it."""
        return self.read(to_float(self.prepare(image)))


class Sequences(Graph):
    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """values: B x T x F, padded; lengths: B of int64."""
        return self.read((values, lengths))


class Rows(Graph):
    def forward(self, row: Tensor) -> Tensor:
        """row: B x columns; NaN where a value is missing."""
        return self.read(self.prepare(row))


class Call(nn.Module):
    """A user's own task by its `forward`; a dict batch enters as its values, in the order of `keys`."""

    def __init__(self, task: nn.Module, keys: list[str] | None = None):
        super().__init__()
        self.task, self.keys = task, keys

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = self.task(dict(zip(self.keys, inputs, strict=True))) if self.keys else self.task(*inputs)
        found = tuple(found.values()) if isinstance(found, dict) else found
        return tuple(found) if isinstance(found, list | tuple) else (found,)


KINDS = {"image": Images, "sequence": Sequences, "table": Rows}


class Resize(nn.Module):
    """uint8 pictures of any size, B x C x H x W, as `leyden.data.decode` resizes them: antialiased, in whole levels."""

    def __init__(self, size: Sequence[int]):
        super().__init__()
        self.size = tuple(size)

    def forward(self, image: Tensor) -> Tensor:
        resized = F.interpolate(image.float(), self.size, mode="bilinear", antialias=True)
        return resized.round().clamp(0, 255).to(torch.uint8)


class Apply(nn.Module):
    """The run's own transforms of a sample, on a batch of them."""

    def __init__(self, transforms: Sequence[nn.Module]):
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    def forward(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(to_float(image) if isinstance(transform, v2.Normalize) else image)
        return image


class Scanned(nn.Module):
    """The twin of a GRU or LSTM, with its weights, as a scan: exporters freeze the time of the original."""

    def __init__(self, cell: nn.RNNBase):
        super().__init__()
        self.cell = cell

    def forward(self, values: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """B x T x F -> B x T x directions * hidden, and what the original gives as its last state."""
        cell, ends = self.cell, []
        x = values if cell.batch_first else values.transpose(0, 1)
        directions = 1 + cell.bidirectional
        if state is None:
            empty = x.new_zeros(cell.num_layers * directions, x.shape[0], cell.hidden_size)
            state = (empty, empty) if cell.mode == "LSTM" else (empty,)
        start = state if isinstance(state, tuple) else (state,)
        for layer in range(cell.num_layers):
            found = []
            for back in range(directions):
                place = layer * directions + back
                begin = tuple(part[place].clone() for part in start)
                last, out = self.walk(x.flip(1) if back else x, begin, f"l{layer}{'_reverse' * back}")
                found.append(out.flip(1) if back else out)
                ends.append(last)
            x = torch.cat(found, -1)
        state = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return x if cell.batch_first else x.transpose(0, 1), state if cell.mode == "LSTM" else state[0]

    def walk(self, x: Tensor, begin: tuple[Tensor, ...], name: str) -> tuple[tuple[Tensor, ...], Tensor]:
        """One layer in one direction: its last state, and B x T x hidden."""
        w_in, w_state = (getattr(self.cell, f"weight_{part}_{name}") for part in ("ih", "hh"))
        biases = [getattr(self.cell, f"bias_{part}_{name}") for part in ("ih", "hh")] if self.cell.bias else [0.0, 0.0]

        def gru(state: tuple[Tensor], gates: Tensor) -> tuple[tuple[Tensor], Tensor]:
            (h,) = state
            reset, update, new = gates.chunk(3, 1)
            h_reset, h_update, h_new = (h @ w_state.T + biases[1]).chunk(3, 1)
            update, new = torch.sigmoid(update + h_update), torch.tanh(new + torch.sigmoid(reset + h_reset) * h_new)
            h = new + update * (h - new)
            return (h,), h.clone()

        def lstm(state: tuple[Tensor, Tensor], gates: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            h, c = state
            enter, forget, new, out = (gates + h @ w_state.T + biases[1]).chunk(4, 1)
            c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
            h = torch.sigmoid(out) * torch.tanh(c)
            return (h, c), h.clone()

        steps = (x @ w_in.T + biases[0]).transpose(0, 1)
        last, out = scan(lstm if self.cell.mode == "LSTM" else gru, begin, steps)
        return last, out.transpose(0, 1)


def twin(module: nn.Module) -> nn.Module:
    """A copy with a `Scanned` in place of each GRU and LSTM; the module itself where it has none."""
    if not any(fits(part) for part in module.modules()):
        return module
    module = copy.deepcopy(module)
    for name, part in list(module.named_modules()):
        if name and fits(part):
            module.set_submodule(name, Scanned(part))
    return module


def fits(part: nn.Module) -> bool:
    return isinstance(part, nn.GRU | nn.LSTM) and not getattr(part, "proj_size", 0)
