"""The run directory: its birth, its files, and the way back to it."""

import json
import os
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError

PROJECT = Path(__file__).resolve().parents[2]
NEEDED = ("data", "task", "trainer")  # in the config of a run


def in_project(path: str | Path) -> Path:
    """An absolute path as it is, a relative one from the project.

    Raises:
        UserError: it is no path.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"{path} is no folder; type log_dir=<folder> or data_dir=<folder>.")
    return PROJECT / Path(path).expanduser()


# where runs are


def create(folder: Path, name: str | None = None) -> Path:
    """Make a run directory that no other launch has: by its name, or by the time.

    Raises:
        UserError: the folder cannot be written, or the name is taken.
    """
    while True:
        path = folder / (name or datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError as error:
            if name:
                raise UserError(f"There is a run {path} already; choose another name, or delete it.") from error
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"The run directory {path} cannot be made ({reason}); set log_dir=<folder>.") from error


def find(run: str, logs: Path) -> Path:
    """The directory of a run: from a path, a checkpoint in it, a name, or latest.

    Raises:
        UserError: there is no such run.
    """
    if run == "latest":
        records = [*logs.glob("train/*/run.json"), *logs.glob("sweep/*/*/run.json")]
        records = [path for path in records if any((path.parent / "checkpoints").glob("*.ckpt"))]
        if not records:
            raise UserError(f"There is no run with a checkpoint in {logs} yet; python src/train.py makes one.")
        return max(records, key=lambda path: read_json(path).get("started", "")).parent
    for path in (Path(run).expanduser(), in_project(run), logs / "train" / run):
        directory = path.parent.parent if path.suffix == ".ckpt" else path
        if (directory / "config.yaml").is_file():
            return directory.resolve()
    raise UserError(f"run={run} is no run directory (it has no config.yaml), nor a checkpoint in one; try run=latest.")


def checkpoint(run: str, directory: Path) -> Path:
    """The checkpoint that `run=` means: itself, or the best, or else the last one.

    Raises:
        UserError: the run has none.
    """
    folder = directory / "checkpoints"
    for path in [folder / Path(run).name] if run.endswith(".ckpt") else [folder / "best.ckpt", folder / "last.ckpt"]:
        if path.is_file():
            return path
    raise UserError(f"The run {directory} has no checkpoint{' ' + Path(run).name if run.endswith('.ckpt') else ''}.")


def stored(directory: Path) -> DictConfig:
    """The tree that a run was built from, with its interpolations.

    Raises:
        UserError: it cannot be read.
    """
    try:
        tree = OmegaConf.load(directory / "config.yaml")
    except Exception as error:  # of YAML and of OmegaConf alike
        raise UserError(f"{directory / 'config.yaml'} cannot be read ({str(error).splitlines()[0]}).") from error
    if not isinstance(tree, DictConfig) or not all(isinstance(tree.get(key), DictConfig) for key in NEEDED):
        raise UserError(f"{directory / 'config.yaml'} is no config of a run: it needs {', '.join(NEEDED)}.")
    return tree


# what a run says of itself


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty when it is not there or half written."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write beside the file and rename, so that a reader never sees a half."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)


def update(directory: Path, **fields: Any) -> None:
    """Change some fields of run.json."""
    write_json(directory / "run.json", read_json(directory / "run.json") | fields)


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def table(results: dict[str, Any], directory: Path) -> str:
    """What a run came to, a plain line for each number, and where to look further."""
    lines, best, test = [], results.get("best") or {}, results.get("test") or {}
    if best:
        lines.append(f"{best['monitor']} {best['value']:.4f} (best, epoch {best['epoch'] + 1})")
    lines += [f"{name} {value:.4f}" for name, value in test.items() if "/" in name]
    if test:
        count = f" on {test['samples']} samples" if test["samples"] else ""
        lines.append(f"tested {test['checkpoint'] or 'the last weights'}{count}")
    path = directory.relative_to(PROJECT) if directory.is_relative_to(PROJECT) else directory
    lines.append(f"run {path}")
    if (directory / "tensorboard").exists():
        inside = directory.is_relative_to(PROJECT / "logs")
        lines.append("curves: make tensorboard" if inside else f"curves: tensorboard --logdir {shlex.quote(str(path))}")
    return "\n".join(lines)
