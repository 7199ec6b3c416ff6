"""A table from a CSV or Parquet file: numbers, categories, and a column to predict."""

import csv
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leyden import UserError, listed, require, said
from leyden.data.datamodule import DataModule
from leyden.data.folders import log_once, natural
from leyden.data.samples import Samples, moments

FEW = 20  # different whole numbers that are classes
GROUPS = re.compile(r"[+-]?\d{1,3}([,' \u00a0\u2009\u202f]\d{3})+(\.\d*)?")
SWAP = str.maketrans(",.", ".,")
DATE = "date"  # in place of a decimal mark: seconds, written as ISO 8601
PACKED = "", ".gz", ".bz2", ".zip", ".xz", ".zst", ".tar"
ENDINGS = (".parquet", *(kind + packed for kind in (".csv", ".tsv") for packed in PACKED))


class Table(DataModule):
    """The rows of a CSV or Parquet file; conf/data/table.yaml explains the arguments.

    x is B x columns: a number less the column's `offset`, the index of a category, or NaN for a missing value. The
    facts' `columns` hold the `categories` of the training rows, "" for missing, or `fill`, their median.
    """

    def __init__(
        self,
        path: str,
        target: str,
        target_kind: str = "auto",
        numeric: list[str] | None = None,
        categorical: list[str] | None = None,
        ignore: list[str] | None = None,
        missing: list[str] | None = None,
        separator: str | None = None,
        encoding: str = "utf-8",
        compression: str = "infer",
        **loader: Any,
    ):
        super().__init__(**loader)
        self.path, self.target = Path(path).expanduser(), str(target)
        self.format = separator, missing or [], encoding, compression
        named = ([str(name) for name in names or []] for names in (numeric, categorical, ignore))
        self.numeric, self.categorical, self.ignore = named
        kinds = {"auto": list[str](), "classes": self.categorical, "numbers": self.numeric}
        require(target_kind in kinds, "data.target_kind", "auto, classes or numbers", target_kind)
        kinds[target_kind].append(self.target)

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        cells, self.lines, self.mark = load(self.path, *self.format)
        for name in (self.target, *self.numeric, *self.categorical, *self.ignore):
            if name not in cells:
                raise UserError(f"{self.path} has no column '{name}', only {listed(cells)}; see data.separator.")

        y = self.targets(cells.pop(self.target))
        train = self.cut(y, val=True, test=True)["train"].tolist()
        self.columns = [self.column(name, cells[name], train) for name in cells if name not in self.ignore]
        x = [codes(column, cells[column["name"]]) for column in self.columns]
        return torch.tensor(list(zip(*x, strict=True))), y

    def targets(self, texts: list[str]) -> Tensor:
        """Places in `classes`, or numbers: float32, or float64 where they need it."""
        if "" in texts:
            raise UserError(f"Line {self.lines[texts.index('')]} of {self.path} has no {self.target}; fill or drop it.")
        self.classes = sorted(set(texts), key=natural)
        if found := self.numbers(self.target, texts):
            values, form = found
            if self.target in self.numeric or len(self.classes) > FEW or (values % 1).any():
                return values if "offset" in form else values.float()
        return torch.tensor(codes({"categories": self.classes}, texts), dtype=torch.int64)

    def column(self, name: str, texts: list[str], train: list[int]) -> dict:
        """What the facts say of a column: its kind by all rows, the rest by training rows."""
        if found := self.numbers(name, texts):
            values, form = found
            known = (values - form.get("offset", 0.0))[train].float()
            return {"name": name, "fill": float(known[~known.isnan()].median().nan_to_num()), **form}
        return {"name": name, "categories": sorted({texts[row] for row in train})}

    def numbers(self, name: str, texts: list[str]) -> tuple[Tensor, dict] | None:
        """A column's values in float64, and their form for `codes`; None for categories. UserError for mixed cells."""
        if name in self.categorical:
            return None

        forms = [".", DATE] if self.mark == "," else [",", ".", DATE] if "," in "".join(texts) else [".", ",", DATE]
        read = {form: torch.tensor([number(text, form) for text in texts], dtype=torch.float64) for form in forms}
        decimal, values = min(read.items(), key=lambda item: int(item[1].isnan().sum()))
        wrong = [row for row in values.isnan().nonzero()[:, 0].tolist() if texts[row]]
        if wrong and name not in self.numeric and 2 * len(wrong) >= len(texts) - texts.count(""):
            return None
        if wrong:
            what = f"Column {name} of {self.path} holds numbers, but '{texts[wrong[0]]}' in line {self.lines[wrong[0]]}"
            raise UserError(f"{what}; mend it, add it to data.missing, or type 'data.categorical=[{name}]'.")

        form: dict = {} if decimal == "." else {"decimal": decimal}
        numbers = values[~values.isnan()]
        close = len(numbers.float().unique()) < len(numbers.unique())
        if decimal == DATE or (close and numbers.median().abs() > numbers.std()):
            form["offset"] = float(numbers.median())

        apart, kept = len(set(texts) - {""}), len((numbers - form.get("offset", 0.0)).float().unique())
        if kept < 0.99 * apart:
            log_once("%s of %s: %d of %d different values are equal as float32", name, self.path, apart - kept, apart)
        return values, form

    def facts_of_x(self, train: Samples) -> dict:
        mean, std = list[float](), list[float]()  # categories stay 0 and 1
        for column, values in zip(self.columns, train.x.T, strict=True):
            count = len(column.get("categories", []))
            part = ([0.0] * count, [1.0] * count) if count else moments([values.nan_to_num(column["fill"])[:, None]])
            mean, std = mean + part[0], std + part[1]
        return {"kind": "table", "shape": [len(mean)], "mean": mean, "std": std, "columns": self.columns}


def number(text: str, decimal: str = ".") -> float:
    """A cell as a number; NaN if a float32 cannot hold it."""
    try:
        if decimal == DATE:
            time = datetime.fromisoformat(text)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        text = text.translate(SWAP) if decimal == "," else text
        value = float(re.sub(r"[^-+.\d]", "", text) if GROUPS.fullmatch(text) else text)
    except ValueError:
        return torch.nan
    return value if abs(value) < 3e38 and "_" not in text else torch.nan


def codes(column: dict, texts: list[str]) -> list[float]:
    """Cells as x holds them; NaN: a missing number, or a category that train lacks."""
    if "categories" not in column:
        return [number(text, column.get("decimal", ".")) - column.get("offset", 0.0) for text in texts]
    index = {name: float(place) for place, name in enumerate(column["categories"])}
    return [index.get(text, index.get("", torch.nan)) for text in texts]


def load(path: Path, separator: str | None, missing: list[str], encoding: str, compression: str = "infer") -> Any:
    """A dict of the cells by column, "" where missing, the line of each row, the separator."""
    import pandas as pd  # slow

    how = {"header": None, "dtype": object, "keep_default_na": False, "skip_blank_lines": False, "engine": "python"}
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    read: Any = partial(pd.read_csv, path, encoding=encoding, compression=compression, **how)
    mark, parquet = separator, path.suffix.lower() == ".parquet"
    try:
        if parquet:
            frame = pd.read_parquet(path).astype(object)
            frame = frame.where(frame.notna(), "").T.reset_index().T  # the header is the first row
        else:
            if not mark:
                head = read(sep="\0", quoting=csv.QUOTE_NONE, nrows=1).iat[0, 0]
                mark = max(",;\t", key=lambda mark: len(next(csv.reader([head], delimiter=mark))))
            frame = read(sep=mark)
    except Exception as error:  # of many kinds
        fix = f"({said(error)}); see data.path, data.separator, data.encoding and data.compression."
        if parquet and isinstance(error, ImportError):
            fix = "without pyarrow; type: pip install pyarrow"
        raise UserError(f"{path.absolute()} cannot be read {fix}") from error

    frame.index = (frame.map(lambda cell: str(cell).count("\n")).sum(axis=1) + 1).cumsum()  # lines
    frame = frame.map(lambda cell: str(cell).strip(), na_action="ignore")
    lines = frame.index[(frame.notna() & frame.ne("")).any(axis=1)].tolist()
    if len(lines) < 2:
        raise UserError(f"{path} has no rows below a header.")

    frame = frame.loc[lines[1:]].set_axis(frame.loc[lines[0]].tolist(), axis=1)
    if not frame.columns.is_unique:
        raise UserError(f"The header of {path} has a name twice: {listed(frame)}.")
    if (short := frame.isna().any(axis=1)).any():
        raise UserError(f"Line {short.idxmax()} of {path} has fewer cells than the header.")
    return frame.mask(frame.isin(missing), "").to_dict("list"), lines[1:], mark
