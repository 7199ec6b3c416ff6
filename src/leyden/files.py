"""Files that are written whole, JSON, and locks."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def replacing(path: Path, synced: bool = False) -> Iterator[Path]:
    """A path beside the file, which takes its place at the end; after an error the file is as it was.

    `synced`: a power cut leaves the old file or the new one.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        if synced:
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_json(path: Path) -> dict:
    """The content of a JSON file; empty where it is not there, half written, or another's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict) -> None:
    """Indented, but a list of numbers in one line."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    text = re.sub(r"\[\n[\d\s,.e+-]*\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def lock(path: Path, seconds: float = -1) -> FileLock:
    """A lock for `with`, which the system lets go of when the process ends.

    `seconds`: after which waiting ends in filelock.Timeout.
    """
    return FileLock(path, timeout=seconds)


def shown(text: str) -> str:
    """A text that can be written anywhere, also where a file's name is none."""
    return os.fsencode(text).decode(errors="backslashreplace")
