"""The rows of a CSV file as a model takes them, by what its run knows of the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leyden import UserError
from leyden.data.table import codes, is_number, lines
from leyden.deploy.sample import Sample


def table(name: str, file: Path, card: dict[str, Any]) -> Iterator[Sample]:
    """The rows of a CSV file; columns are found by their names where the run knows them, else by their places."""
    columns = card["columns"]
    try:
        with lines(file, card["separator"]) as reader:
            names = [cell.strip() for cell in next(reader, [])]
            if columns is None and all(map(is_number, names)):  # no header
                yield Sample(f"{name}:1", partial(row, names, None, card, file, 1))
            places = found_in(names, columns, file)
            for cells in reader:
                if any(map(str.strip, cells)):
                    line = reader.line_num
                    yield Sample(f"{name}:{line}", partial(row, cells, places, card, file, line, len(names)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a table ({error}).") from error


def found_in(names: list[str], columns: list[dict[str, Any]] | None, file: Path) -> list[int] | None:
    """The place of each of the run's columns. Raises UserError for one that is not there."""
    if columns is None:
        return None
    if missing := [column["name"] for column in columns if column["name"] not in names]:
        raise UserError(
            f"{file} has no column {', '.join(missing)}, which the run was trained on; it has {', '.join(names)}."
        )
    return [names.index(column["name"]) for column in columns]


def row(
    cells: list[str], places: list[int] | None, card: dict[str, Any], file: Path, line: int, width: int | None = None
) -> Tensor:
    """The cells of a line as the model takes them."""
    cells = [cell.strip() for cell in cells]
    expected = card["inputs"]["row"][1] if places is None else width
    if len(cells) != expected:
        raise UserError(f"Line {line} of {file} has {len(cells)} cells, not {expected}.")
    cells = [
        "" if cell in card["missing"] else cell for cell in (cells if places is None else [cells[n] for n in places])
    ]
    columns = card["columns"] or [{"name": str(place)} for place in range(len(cells))]
    for column, cell in zip(columns, cells, strict=True):
        if "categories" not in column and cell and not is_number(cell):
            raise UserError(f"Line {line} of {file}: '{cell}' in column {column['name']} is no number.")
    return torch.tensor([codes(column, [cell])[0] for column, cell in zip(columns, cells, strict=True)])
