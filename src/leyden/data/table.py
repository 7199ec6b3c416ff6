"""A table from a CSV file: columns of numbers, columns of categories, and one to predict."""

import csv
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.data.facts import moments
from leyden.data.samples import Tensors

log = logging.getLogger(__name__)
FEW, MOST = 20, 1000  # whole numbers that still look like classes; categories of a column


class Table(DataModule):
    """The rows of a CSV file; conf/data/table.yaml explains the arguments.

    x is B x columns: a number, the index of a category, or NaN where the value is missing. The facts' `columns`, for
    leyden.tasks.preprocess.Encode, hold the `categories` of the training rows, "" for missing, or `fill`, their median.
    A category that those rows lack counts as missing. Raises UserError, with line, for a file that makes no table.
    """

    def __init__(
        self,
        path: str | None = None,
        target: str | None = None,
        target_kind: str = "auto",
        numeric: list[str] | None = None,
        categorical: list[str] | None = None,
        ignore: list[str] | None = None,
        missing: list[str] | None = None,
        separator: str | None = None,
        **loader: Any,
    ):
        super().__init__(**loader)
        if path is None or target is None:
            raise UserError("data=table is a file of yours; type data.path=<CSV file> data.target=<column to predict>.")
        self.path, self.target, self.separator = Path(path).expanduser(), str(target), separator
        self.numeric, self.categorical, self.ignore, self.missing = (
            [str(name) for name in names or []] for names in (numeric, categorical, ignore, missing)
        )
        kinds: dict[str, list[str]] = {"auto": [], "classes": self.categorical, "numbers": self.numeric}
        if target_kind not in kinds:
            raise UserError(f"data.target_kind={target_kind} is none; choose auto, classes or numbers.")
        kinds[target_kind].append(self.target)

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        cells, self.lines = load(self.path, self.separator, self.missing)
        for name in (self.target, *self.numeric, *self.categorical, *self.ignore):
            if name not in cells:
                raise UserError(f"{self.path} has no column '{name}' that data asks for; it has {', '.join(cells)}.")
        y = self.targets(cells.pop(self.target))
        train = self.cut(y, val=True, test=True)["train"].tolist()
        self.columns = [self.column(name, cells[name], train) for name in cells if name not in self.ignore]
        if not self.columns:
            raise UserError(f"{self.path} has no columns to predict {self.target} from; see data.ignore.")
        x = [codes(column, cells[column["name"]]) for column in self.columns]
        return torch.tensor(x).T.contiguous(), y

    def targets(self, texts: list[str]) -> Tensor:
        """Class indices, with their names in `classes`, or float targets."""
        if "" in texts:
            raise UserError(f"Line {self.lines[texts.index('')]} of {self.path} has no {self.target}; fill or drop it.")
        names = sorted(set(texts))
        if self.is_numeric(self.target, texts):
            values = torch.tensor([float(text) for text in texts])
            if self.target in self.numeric or len(names) > FEW or (values % 1).any():
                return values
        self.classes = sorted(names, key=float) if all(map(is_number, names)) else names
        return torch.tensor(codes({"categories": self.classes}, texts), dtype=torch.int64)

    def column(self, name: str, texts: list[str], train: list[int]) -> dict[str, Any]:
        """What the facts say of a column: its kind comes from all rows, the rest from the training rows."""
        seen = [texts[row] for row in train]
        if self.is_numeric(name, texts):
            known = torch.tensor([float(text) for text in seen if text])
            return {"name": name, "fill": float(known.median().nan_to_num())}
        categories = sorted(set(seen))
        if len(categories) > MOST:
            raise UserError(f"{name} of {self.path} has {len(categories)} categories; type 'data.ignore=[{name}]'.")
        return {"name": name, "categories": categories}

    def is_numeric(self, name: str, texts: list[str]) -> bool:
        """Whether a column holds numbers. Raises UserError for text in one that should, or that mostly does."""
        if name in self.categorical:
            return False
        wrong = [row for row, text in enumerate(texts) if text and not is_number(text)]
        if wrong and (name in self.numeric or 2 * len(wrong) < len(texts) - texts.count("")):
            raise UserError(
                f"Column {name} of {self.path} holds numbers, but '{texts[wrong[0]]}' in line {self.lines[wrong[0]]}; "
                f"mend it, add it to data.missing, or type 'data.categorical=[{name}]'."
            )
        return not wrong

    def facts_of_x(self, train: Tensors) -> dict[str, Any]:
        mean, std = list[float](), list[float]()  # of the model's inputs: categories stay 0 and 1
        for column, values in zip(self.columns, train.x.T, strict=True):
            count = len(column.get("categories", []))
            of_inputs = ([0.0] * count, [1.0] * count) if count else moments(values.nan_to_num(column["fill"])[:, None])
            mean, std = mean + of_inputs[0], std + of_inputs[1]
        categorical = [column["name"] for column in self.columns if "categories" in column]
        rank_zero_only(log.info)("%s: categories in %s, numbers in the others", self.path, categorical or "no column")
        return {"kind": "table", "shape": [len(mean)], "mean": mean, "std": std, "columns": self.columns}


def is_number(text: str) -> bool:
    """Whether a text is a number that a float32 can hold."""
    try:
        return abs(float(text)) < 3e38
    except ValueError:
        return False


def codes(column: dict[str, Any], texts: list[str]) -> list[float]:
    """Cells of a column as x holds them; NaN is a missing number, or a category that training has not seen."""
    if "categories" not in column:
        return [float(text or "nan") for text in texts]
    index = {name: float(place) for place, name in enumerate(column["categories"])}
    return [index.get(text, index.get("", torch.nan)) for text in texts]


@contextmanager
def lines(path: Path, separator: str | None) -> Iterator[Any]:
    """A csv.reader on a file; without a separator by the mark that parts its first line most."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        mark = separator or max(",;\t", key=lambda mark: len(next(csv.reader([head], delimiter=mark))))
        yield csv.reader(file, delimiter=mark, strict=True)


def load(path: Path, separator: str | None, missing: list[str]) -> tuple[dict[str, list[str]], list[int]]:
    """The cells of a CSV file by column, "" where missing, and the line of each row. Raises UserError for others."""
    try:
        with lines(path, separator) as reader:
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, TypeError, csv.Error) as error:  # TypeError: a separator of two characters
        raise UserError(f"{path.absolute()} cannot be read ({error}); see data.path and data.separator.") from error
    if len(rows) < 2:
        raise UserError(f"{path} has no rows; it needs a header and a row for each sample.")
    (_, names), *rows = rows
    if len(set(names)) < len(names):
        raise UserError(f"The header of {path} has a name twice: {', '.join(names)}; rename one.")
    for line, row in rows:
        if len(row) != len(names):
            raise UserError(f"Line {line} of {path} has {len(row)} cells, but the header {len(names)}; mend it.")
    cells = {name: ["" if row[place] in missing else row[place] for _, row in rows] for place, name in enumerate(names)}
    return cells, [line for line, _ in rows]
