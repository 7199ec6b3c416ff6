"""Runs as their directories tell of them: what each was built with, and what came of it."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from leyden import UserError
from leyden.files import read_json
from leyden.run import configs
from leyden.run.keys import direction
from leyden.run.run import status_of

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times faster
DEPTH = 4  # folders below a place in which runs are looked for
FILES = ("config.yaml", "run.json", "metrics.json", ".hydra/config.yaml")  # of which a run has at least one


@dataclass
class Run:
    """One run directory, read."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)  # dotted key -> value, interpolations as they stand
    record: dict[str, Any] = field(default_factory=dict)  # run.json
    metrics: dict[str, Any] = field(default_factory=dict)  # metrics.json
    flaws: list[str] = field(default_factory=list)  # files that are missing or half written
    foreign: bool = False  # of another command

    @property
    def status(self) -> str:
        """As run.json has it, but `killed` where it says running and nobody runs it."""
        return str(status_of(self.record))

    @property
    def overrides(self) -> dict[str, str]:
        """What was typed for this run alone: key -> value."""
        typed = self.record.get("overrides")
        texts = [text.lstrip("+~") for text in typed if isinstance(text, str)] if isinstance(typed, list) else []
        return {key: value for key, _, value in (text.partition("=") for text in texts)}

    @property
    def objective(self) -> str:
        return str(self.get("objective") or part(self.metrics, "best").get("monitor"))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; one that is another key's is looked up there."""
        value, seen = self.config.get(key, default), {key}
        while isinstance(value, str) and (other := re.fullmatch(r"\$\{([\w.]+)\}", value)):
            if other[1] in seen or other[1] not in self.config:
                break
            seen.add(other[1])
            value = self.config[other[1]]
        return value

    def mode(self, metric: str) -> str | None:
        """`min` or `max`: as the run says of what it monitored, on any split, else by the name; None: it is unknown."""
        same = str(self.get("checkpoint.monitor")).rpartition("/")[2] == metric.rpartition("/")[2]
        typed = self.get("checkpoint.mode") if same else None
        return typed if typed in ("min", "max") else direction(metric)

    def value(self, metric: str) -> tuple[float | None, int | None]:
        """The best value of a metric and its epoch, from 1: of the best weights if they know it, else over epochs.

        Where it is unknown which value is better, the last one.
        """
        best = part(self.metrics, "best")
        epoch = best["epoch"] + 1 if isinstance(best.get("epoch"), int) else None
        if metric.startswith("test/"):
            return number(part(self.metrics, "test").get(metric)), epoch
        for name, key in ((best.get("monitor"), "value"), (self.objective, "objective")):
            if metric == name and number(best.get(key)) is not None:
                return number(best[key]), epoch
        points = [(value, epoch) for epoch, value in self.curve(metric) if value == value]
        if not (mode := self.mode(metric)):
            return points[-1] if points else (None, None)
        return (min if mode == "min" else max)(points, default=(None, None), key=lambda point: point[0])

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Epoch, from 1, and the last value in it, of a metric in metrics.csv."""
        points = {}
        for row in self.logged():
            if (value := number(row.get(metric))) is not None and (epoch := number(row.get("epoch"))) is not None:
                points[int(epoch) + 1] = value
        return list(points.items())

    def logged(self) -> list[dict[str, str]]:
        """The rows of metrics.csv; none where it cannot be read."""
        try:
            with open(self.path / "metrics.csv", newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error):
            return []

    def names(self) -> list[str]:
        """Metrics of which the run knows a value."""
        known = [part(self.metrics, "best").get("monitor"), self.objective if self.metrics else None]
        known += [
            name for split in ("val", "train", "test") for name in part(self.metrics, split) if name.count("/") == 1
        ]
        return list(dict.fromkeys(name for name in known if name))


def number(value: Any) -> float | None:
    """A number as it is, or as a CSV file has it; None for anything else."""
    try:
        return None if isinstance(value, bool | None) else float(value)
    except (TypeError, ValueError):
        return None


def part(content: dict[str, Any], name: str) -> dict[str, Any]:
    return found if isinstance(found := content.get(name), dict) else {}


# from directories to runs


def collect(places: list[Path]) -> list[Run]:
    """The runs in folders or their sub-folders, each once.

    Raises:
        UserError: a place is no folder or cannot be read, or there is no run in any.
    """
    found: dict[Path, Run] = {}
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is no folder; type a run, a sweep, or a folder of them, such as logs/train.")
        try:
            for path in [place] if is_run(place) else walk(place):
                found.setdefault(path.resolve(), read(path))
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror}).") from error
    mine = [run for run in found.values() if not run.foreign]
    if not mine:
        raise UserError(f"There is no run in {' or '.join(map(str, places))}; python src/train.py makes one.")
    return mine


def walk(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run directories in a folder, 2 before 10."""
    for child in sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), natural(path))):
        if child.name.startswith(".") or (child.is_symlink() and folder.resolve().is_relative_to(child.resolve())):
            continue
        if is_run(child):
            yield child
        elif child.is_dir() and depth:
            yield from walk(child, depth - 1)


def natural(path: Path) -> list[tuple[bool, int, str]]:
    return [(not text.isdigit(), int(text) if text.isdigit() else 0, text) for text in re.split(r"([0-9]+)", path.name)]


def is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES)


def read(path: Path) -> Run:
    """A run directory, whatever state it is in."""
    run = Run(path)
    for name in ("run.json", "metrics.json"):
        content = read_json(path / name)
        if isinstance(content, dict) and content:
            setattr(run, "record" if name == "run.json" else "metrics", content)
        elif (path / name).exists() or name == "run.json" or run.status == "finished":
            run.flaws.append(name)
    tree = load(path / "config.yaml")
    if not (path / "config.yaml").exists() and run.status != "finished":
        tree = load(path / ".hydra" / "config.yaml")  # of a run that ended before it was built
    run.foreign = "run" in tree or "rounds" in tree  # an evaluation, a prediction, an export; a benchmark
    if not all(isinstance(tree.get(key), dict) for key in configs.NEEDED):
        run.flaws.append("config.yaml")
    else:
        run.config = flat(tree)
    return run


def load(path: Path) -> dict[str, Any]:
    """The content of a YAML file; empty where it is none."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of nested dicts; lists are values."""
    found: dict[str, Any] = {}
    for name, child in node.items():
        found |= flat(child, f"{prefix}{name}.") if isinstance(child, dict) and child else {f"{prefix}{name}": child}
    return found


# choosing among them


def where(found: list[Run], condition: str) -> list[Run]:
    """The runs that have key=value: a key of the config, or `status`.

    Raises:
        UserError: no run has such a key, or it is no condition.
    """
    key, equals, text = condition.partition("=")
    if not equals:
        raise UserError(f"--where {condition} is no condition; type --where optimizer.lr=1e-3.")
    known = {name.removesuffix("._target_") for run in found for name in run.config} | {"status"}
    if key not in known:
        near = get_close_matches(key, known, 1)
        raise UserError(f"No run has the key {key} of --where" + (f"; did you mean {near[0]}?" if near else "."))
    values = [run.status if key == "status" else run.get(key, run.get(f"{key}._target_")) for run in found]
    return [run for run, value in zip(found, values, strict=True) if like(value, text)]


def like(value: Any, text: str) -> bool:
    """Whether a value of a config is what was typed: a number, a list, a text, or the name of a class."""
    try:
        typed = number(text) if number(text) is not None else yaml.load(text, LOADER)
    except yaml.YAMLError:
        typed = text
    words = [word.replace("_", "").lower() for word in value.split(".")[-2:]] if isinstance(value, str) else []
    return value == typed or str(value) == text or (len(words) == 2 and text.replace("_", "").lower() in words)
