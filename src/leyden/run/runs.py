"""The run directory: its birth, its files, and the way back to it."""

import json
import os
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from leyden import UserError
from leyden.run import life

PROJECT = Path(__file__).resolve().parents[3]
CONF = PROJECT / "conf"
WRITING = threading.Lock()  # of run.json, which two threads update


def in_project(path: str | Path) -> Path:
    """An absolute path as it is, a relative one from the project.

    Raises:
        UserError: it is no path.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"{path} is no folder; type log_dir=<folder> or data_dir=<folder>.")
    return PROJECT / Path(path).expanduser()


# where runs are


def logs_folder(typed: str | None = None) -> Path:
    """The folder of all runs: as typed, or as conf/train.yaml and conf/local say.

    Raises:
        UserError: it cannot be known.
    """
    folder: Any = typed
    for name in ("train", "local/default") if typed is None else ():
        if (CONF / f"{name}.yaml").is_file():
            tree: Any = OmegaConf.load(CONF / f"{name}.yaml")
            folder = tree.get("log_dir", folder)
    return in_project(folder)


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


def find(run: str, logs: Path, unfinished: bool = False) -> Path:
    """The directory of a run: from a path, a checkpoint in it, a name, or latest: the newest one with a checkpoint,
    or the newest unfinished one that nobody is running.

    Raises:
        UserError: there is no such run.
    """
    if run == "latest":
        folders = [*logs.glob("train/*/"), *logs.glob("sweep/*/*/")]
        records = {path: read_json(path / "run.json") for path in folders}
        if unfinished:
            fit = [path for path, record in records.items() if record.get("status") not in (None, "finished")]
            fit = [path for path in fit if (path / "config.yaml").is_file() and not life.alive(records[path])]
        else:
            fit = [path for path, record in records.items() if record and any((path / "checkpoints").glob("*.ckpt"))]
        if not fit:
            kind = "unfinished run" if unfinished else "run with a checkpoint"
            raise UserError(f"There is no {kind} in {logs}; python src/train.py makes one.")
        return max(fit, key=lambda path: records[path].get("started", ""))
    for path in (Path(run).expanduser(), in_project(run), logs / "train" / run):
        directory = path.parent.parent if path.suffix == ".ckpt" else path
        if (directory / "config.yaml").is_file():
            return directory.resolve()
    raise UserError(f"{run} is no run directory, nor a checkpoint in one, nor a run in {logs / 'train'}; try latest.")


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


def weights(source: str, logs: Path) -> Path:
    """The file that `init_from=` means: a checkpoint or a state_dict, or the best or last checkpoint of a run.

    Raises:
        UserError: there is none.
    """
    file = Path(source).expanduser()
    if not file.exists() and file.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise UserError(f"init_from={source}: there is no such file.")
    return file if file.is_file() else checkpoint(source, find(source, logs))


# whether a run lives


class Busy(UserError):
    """Another process has what was asked for."""


@contextmanager
def claim(directory: Path) -> Iterator[None]:
    """Hold a run directory; the system lets go of it when the process ends, however it ends.

    Raises:
        Busy: another process runs it.
    """
    record = read_json(directory / "run.json")
    who = f"run by process {record['pid']} on {record['host']}" if "pid" in record else "started by another process"
    busy = Busy(f"{directory} is being {who}; wait for its end.")
    if life.alive(record):
        raise busy
    try:
        import fcntl
    except ImportError:  # Windows: what run.json says must do
        yield
        return
    with open(directory / ".lock", "w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise busy from error
        yield


# what a run says of itself


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty when it is not there, half written, or another's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write beside the file and rename, so that a reader never sees a half."""
    beside = path.with_name(f".{path.name}.part")
    text = json.dumps(content, indent=2, ensure_ascii=False)
    text = re.sub(r"\[\n[\d\s,.e+-]*\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)  # one line
    beside.write_text(text + "\n", encoding="utf-8")
    os.replace(beside, path)


def update(directory: Path, **fields: Any) -> None:
    """Change some fields of run.json."""
    with WRITING:
        write_json(directory / "run.json", read_json(directory / "run.json") | fields)


def rewind(directory: Path, lengths: dict[str, int]) -> None:
    """Cut loggers' files to their lengths (a table's in lines) at a checkpoint, and remove what kills left."""
    for path in directory.glob("tensorboard/events.out.tfevents.*"):
        length = lengths.get(path.relative_to(directory).as_posix())
        if length is None:
            path.unlink()
        elif path.stat().st_size > length:
            os.truncate(path, length)
    for path in (directory / name for name in lengths if name.endswith(".csv")):
        if path.is_file():
            count = lengths[path.relative_to(directory).as_posix()]
            path.write_text("".join(path.read_text().splitlines(True)[:count]))
    for path in directory.rglob(".*.part"):
        path.unlink()


def in_words(path: Path) -> Path:
    """A path as it is shown: from the project, where it lies in it."""
    return path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def table(results: dict[str, Any], directory: Path) -> str:
    """What a run came to, a plain line for each number, and where to look further."""
    lines, best, test = [], results.get("best") or {}, results.get("test") or {}
    if best:
        lines.append(f"{best['monitor']} {best['value']:.4f} (best, epoch {best['epoch'] + 1})")
    lines += [f"{name} {value:.4f}" for name, value in test.items() if name.count("/") == 1]
    apart = sorted((value, name) for name, value in test.items() if name.count("/") > 1)
    if apart:
        shown = ", ".join(f"{name.split('/', 2)[2]} {value:.3f}" for value, name in apart[:10])
        lines.append(f"by class, lowest first: {shown}{', ...' if apart[10:] else ''}")
    if test:
        count = f" on {test['samples']} samples" if test["samples"] else ""
        lines.append(f"tested {test['checkpoint'] or 'the last weights'}{count}")
    path = in_words(directory)
    lines.append(f"run {path}")
    if (directory / "tensorboard").exists():
        inside = directory.is_relative_to(PROJECT / "logs")
        lines.append("curves: make tensorboard" if inside else f"curves: tensorboard --logdir {shlex.quote(str(path))}")
    return "\n".join(lines)
