"""From a float batch to what the model sees; its constants travel in the checkpoint."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x - mean) / std by channel: dimension 1 of pictures (B, C, H, W), the last one of sequences and tables.

    With `columns` the rows of a table are encoded first.
    """

    def __init__(self, kind: str, mean: Sequence[float], std: Sequence[float], columns: Sequence[dict] | None = None):
        super().__init__()
        shape = (-1, 1, 1) if kind == "image" else (-1,)
        self.encode = Encode(columns) if columns else nn.Identity()
        self.mean = nn.Buffer(torch.tensor(mean, dtype=torch.float32).view(shape))
        self.std = nn.Buffer(torch.tensor(std, dtype=torch.float32).view(shape))

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(x, Tensor):
            return (self.encode(x) - self.mean) / self.std
        values, lengths = x  # padded sequences
        return (values - self.mean) / self.std, lengths


class Encode(nn.Module):
    """The rows of a table, B x columns with NaN for what is missing, as B x inputs.

    A column with `categories` holds an index, and becomes a 1 or 0 for each; another is a number, or `fill`.
    """

    def __init__(self, columns: Sequence[dict]):
        super().__init__()
        inputs: list[tuple[int, float, float]] = []
        for place, column in enumerate(columns):
            indices = range(len(column["categories"])) if "categories" in column else [torch.nan]
            inputs += [(place, index, column.get("fill", 0.0)) for index in indices]

        # of each input its column, the index that sets it (NaN for numbers), and its fill
        source, category, fill = zip(*inputs, strict=True)
        self.source = nn.Buffer(torch.tensor(source))
        self.category = nn.Buffer(torch.tensor(category, dtype=torch.float32))
        self.fill = nn.Buffer(torch.tensor(fill, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, self.source]
        numbers = torch.where(x.isnan(), self.fill, x)
        return torch.where(self.category.isnan(), numbers, (x == self.category).to(x.dtype))
