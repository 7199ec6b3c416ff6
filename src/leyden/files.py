"""Files that are written whole, JSON, and locks."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock


@contextmanager
def replacing(path: Path, synced: bool = False) -> Iterator[Path]:
    """A path beside a file, which takes its place in the end; `synced`: on the disk."""
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        if synced:
            sync(beside)
        os.replace(beside, path)
        if synced and os.name == "posix":
            sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    text = re.sub(r"\[\n[\d\s,.e+-]*\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)  # one line
    with replacing(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def lock(path: Path, seconds: float = -1) -> FileLock:
    """A lock for `with`, until the process ends; filelock.Timeout after so many seconds."""
    return FileLock(path, timeout=seconds)
