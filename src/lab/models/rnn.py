"""A recurrent network for sequences of different lengths."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import shape

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class RNN(nn.Module):
    """GRU or LSTM, then the mean or the last output: (B, T, F padded; B lengths) -> B x num_classes."""

    # `back` reads reversed sequences: the numbers of packed sequences, but faster on a CPU and fit for export.
    def __init__(
        self,
        in_shape: Sequence[int | None],
        num_classes: int,
        cell: str = "gru",
        hidden: int = 128,
        layers: int = 1,
        bidirectional: bool = True,
        pooling: str = "mean",
        dropout: float = 0.0,
    ):
        super().__init__()
        if cell not in CELLS or pooling not in ("mean", "last"):
            raise ValueError(f"`cell` must be gru or lstm, `pooling` mean or last; got `{cell}` and `{pooling}`")
        self.pooling = pooling
        width = hidden * (1 + bidirectional)
        inputs = [shape.features(in_shape)] + [width] * (layers - 1)
        self.forth = nn.ModuleList(CELLS[cell](size, hidden, batch_first=True) for size in inputs)
        self.back = nn.ModuleList(CELLS[cell](size, hidden, batch_first=True) for size in inputs if bidirectional)
        self.dropout = nn.Dropout(dropout)  # on the input of each layer but the first, and of the head
        self.head = nn.Linear(width, num_classes)

        for name, weight in self.named_parameters():
            if "weight_hh" in name:  # orthogonal for each gate (Saxe et al. 2014, arXiv:1312.6120)
                for gate in weight.data.split(hidden):
                    nn.init.orthogonal_(gate)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        values, lengths = x
        for layer, forth in enumerate(self.forth):
            values = self.dropout(values) if layer > 0 else values
            hidden = [forth(values)[0]]
            if self.back:
                hidden.append(reverse(self.back[layer](reverse(values, lengths))[0], lengths))
            values = torch.cat(hidden, -1)
        pooled = shape.mean(values, lengths) if self.pooling == "mean" else ends(hidden, lengths)
        return self.head(self.dropout(pooled))


def reverse(values: Tensor, lengths: Tensor) -> Tensor:
    """Each sequence reversed; its padding stays at the end."""
    steps = torch.arange(values.shape[1], device=values.device)
    order = lengths[:, None] - 1 - steps
    order = torch.where(order < 0, order + values.shape[1], order)  # as %, which ONNX has for scalars only
    return values.gather(1, order[..., None].expand_as(values))


def ends(hidden: list[Tensor], lengths: Tensor) -> Tensor:
    """The last output of each direction: forth at the last valid step, back at the first."""
    last = (lengths.clamp(min=1) - 1)[:, None, None].expand(-1, 1, hidden[0].shape[-1])
    return torch.cat([hidden[0].gather(1, last)[:, 0]] + [back[:, 0] for back in hidden[1:]], -1)
