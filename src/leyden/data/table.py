"""A table from a CSV file: columns of numbers, columns of categories, and one to predict."""

import csv
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from leyden import UserError
from leyden.data.datamodule import DataModule
from leyden.data.facts import moments
from leyden.data.samples import Sequences, Tensors

log = logging.getLogger(__name__)
FEW = 20  # different whole numbers that still look like classes
MOST = 1000  # categories of a column


class Table(DataModule):
    """The rows of a CSV file; conf/data/table.yaml explains the arguments.

    x is B x columns: a number, or the index of a category, or NaN where the value is missing. The facts describe the
    columns: `categories` of the training rows, or `fill`, the median of the training rows, for a missing number; from
    both leyden.tasks.preprocess.Encode makes the model's input. A missing category is a category of its own, "", and
    one that the training rows lack counts as missing.

    Raises:
        UserError: no path or target, or a file that makes no table; with line and column.
    """

    def __init__(
        self,
        path: str | None = None,
        target: str | None = None,
        target_kind: str = "auto",
        numeric: Sequence[str] | None = None,
        categorical: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        missing: Sequence[str] = ("",),
        separator: str | None = None,
        **loader: Any,
    ):
        super().__init__(**loader)
        if path is None:
            raise UserError("data=table is a file of yours; type data.path=<CSV file> data.target=<column>.")
        if target_kind not in ("auto", "classes", "numbers"):
            raise UserError(f"data.target_kind={target_kind} is none; choose auto, classes or numbers.")
        if separator is not None and len(separator) != 1:
            raise UserError(f"data.separator='{separator}' is not one character; leave it out to have it found.")
        self.path, self.separator = Path(path).expanduser(), separator
        self.target, self.target_kind = "" if target is None else str(target), target_kind
        self.numeric, self.categorical, self.ignore = (
            list(map(str, names or [])) for names in (numeric, categorical, ignore)
        )
        self.missing = {"", *map(str, missing)}
        self.columns: list[dict[str, Any]] = []  # what x holds; of training rows only from `splits` on

    @property
    def title(self) -> str:
        return f"The table {self.path}"

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        cells, self.lines = load(self.path, self.separator)
        self.check_names(list(cells))
        cells = {name: ["" if text in self.missing else text for text in texts] for name, texts in cells.items()}
        y = self.targets(cells.pop(self.target))
        self.columns = [self.column(name, texts) for name, texts in cells.items() if name not in self.ignore]
        x = [codes(column, cells[column["name"]]) for column in self.columns]
        return torch.tensor(x, dtype=torch.float32).T.contiguous(), y

    def check_names(self, names: list[str]) -> None:
        if not self.target:
            raise UserError(f"{self.title} has the columns {', '.join(names)}; type data.target=<the one to predict>.")
        if self.target not in names:
            raise UserError(f"{self.title} has no column '{self.target}' (data.target); it has {', '.join(names)}.")
        others = [name for name in names if name != self.target]
        asked = {"numeric": self.numeric, "categorical": self.categorical, "ignore": self.ignore}
        for key, columns in asked.items():
            for name in columns:
                if name not in others:
                    raise UserError(
                        f"{self.title} has no column '{name}' to predict from (data.{key}); it has {', '.join(others)}."
                    )
        used = set(others) - set(self.ignore)
        if not used:
            raise UserError(f"{self.title} has no columns to predict {self.target} from; see data.ignore.")
        if "" in used:
            raise UserError(f"{self.title} has a column without a name; give it one, or type \"data.ignore=['']\".")

    # what a column holds

    def column(self, name: str, texts: list[str]) -> dict[str, Any]:
        if name in self.numeric:
            self.require_numbers(name, texts, "take it out of data.numeric")
            return {"name": name}
        if name not in self.categorical and self.holds_numbers(name, texts, f"type 'data.categorical=[{name}]'"):
            return {"name": name}
        categories = sorted(set(texts))
        if len(categories) > MOST:
            raise UserError(
                f"Column {name} of {self.path} has {len(categories)} different texts, too many for categories; "
                f"type 'data.ignore=[{name}]'."
            )
        return {"name": name, "categories": categories}

    def holds_numbers(self, name: str, texts: list[str], otherwise: str) -> bool:
        """Whether a column holds nothing but numbers; other text in one that mostly does is taken for a mistake."""
        known = [number(text) is not None for text in texts if text]
        if sum(known) * 2 > len(known):
            self.require_numbers(name, texts, otherwise)
        return all(known)

    def require_numbers(self, name: str, texts: list[str], otherwise: str) -> None:
        for line, text in zip(self.lines, texts, strict=True):
            if text and number(text) is None:
                raise UserError(
                    f"Column {name} of {self.path} holds numbers, but '{text}' in line {line}; mend it, "
                    f"add it to data.missing, or {otherwise}."
                )

    def targets(self, texts: list[str]) -> Tensor:
        """Class indices, with their names in `classes`, or float targets."""
        if "" in texts:
            line = self.lines[texts.index("")]
            raise UserError(
                f"Line {line} of {self.path} has no {self.target}, which is to be predicted; fill or delete it."
            )
        otherwise, kind = "type data.target_kind=classes", self.target_kind
        if kind == "auto":
            numbers = self.holds_numbers(self.target, texts, otherwise)
            few = numbers and len(set(texts)) <= FEW and all(float(text).is_integer() for text in texts)
            kind = "numbers" if numbers and not few else "classes"
        if kind == "numbers":
            self.require_numbers(self.target, texts, otherwise)
            return torch.tensor([float(text) for text in texts])
        names = sorted(set(texts))
        self.classes = names if None in map(number, names) else sorted(names, key=float)
        return torch.tensor(codes({"categories": self.classes}, texts), dtype=torch.int64)

    # what only the training rows may say

    @cached_property
    def splits(self) -> dict[str, Tensors | Sequences]:
        splits: dict[str, Any] = super().splits
        for place, column in enumerate(self.columns):
            values = splits["train"].x[:, place]
            if "categories" not in column:
                column["fill"] = float(values[~values.isnan()].median().nan_to_num())
                continue
            names = column["categories"]
            column["categories"] = [names[index] for index in values.long().unique().tolist()]
            known = torch.tensor(codes(column, names))
            for samples in splits.values():
                samples.x[:, place] = known[samples.x[:, place].long()]
        return splits

    def facts_of_x(self, train: Tensors) -> dict[str, Any]:
        mean, std = [], []  # of the model's inputs: categories stay 0 and 1
        for column, values in zip(self.columns, train.x.T, strict=True):
            if "categories" in column:
                mean += [0.0] * len(column["categories"])
                std += [1.0] * len(column["categories"])
            else:
                moment = moments(values.nan_to_num(column["fill"])[:, None])
                mean, std = mean + moment[0], std + moment[1]
        self.tell()
        return {"kind": "table", "shape": [len(mean)], "mean": mean, "std": std, "columns": self.columns}

    @rank_zero_only
    def tell(self) -> None:
        counts = [
            f" ({len(column['categories'])} categories)" if "categories" in column else "" for column in self.columns
        ]
        names = [column["name"] + count for column, count in zip(self.columns, counts, strict=True)]
        kind = f"{len(self.classes)} classes" if self.classes else "numbers"
        log.info("%s: %s (%s) from %s", self.path, self.target, kind, ", ".join(names))


def number(text: str) -> float | None:
    """The finite float32 that Python reads in a text, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 3e38 and "_" not in text else None


def codes(column: dict[str, Any], texts: list[str]) -> list[float]:
    """Cells of a column as x holds them; NaN is a missing number, or a category that training has not seen."""
    if "categories" not in column:
        return [float(text or "nan") for text in texts]
    index = {name: float(place) for place, name in enumerate(column["categories"])}
    return [index.get(text, index.get("", torch.nan)) for text in texts]


def load(path: Path, separator: str | None) -> tuple[dict[str, list[str]], list[int]]:
    """The cells of a CSV file by column, and the line of each row; empty lines are left out.

    Raises:
        UserError: no such file, no CSV in UTF-8, no rows, a name twice, or a row of another length.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            file.seek(0)
            mark = separator or max(",;\t", key=lambda mark: len(next(csv.reader([head], delimiter=mark), [])))
            reader = csv.reader(file, delimiter=mark, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except OSError as error:
        raise UserError(f"The table {path.absolute()} cannot be read ({error.strerror}); correct data.path.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"The table {path} is no CSV file in UTF-8 ({error}); save it as one.") from error
    rows = [(line, row) for line, row in rows if any(row)]
    if len(rows) < 2:
        raise UserError(f"The table {path} has no rows; it needs a header and a row for each sample.")
    (_, names), *rows = rows
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"The table {path} has more than one column '{min(twice)}'; rename them.")
    for line, row in rows:
        if len(row) != len(names):
            raise UserError(
                f"Line {line} of {path} has {len(row)} cells, but the header has {len(names)}; "
                "mend it, or set data.separator."
            )
    lines, cells = zip(*rows, strict=True)
    return dict(zip(names, map(list, zip(*cells, strict=True)), strict=True)), list(lines)
