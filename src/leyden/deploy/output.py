"""The one file that a command writes: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leyden import UserError


def refuse(path: Path, overwrite: bool) -> None:
    """Raises UserError for a file that is there and may not be replaced, or that cannot be written."""
    if path.is_dir():
        raise UserError(f"output={path} is a folder; type output=<folder>/<file>.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; type overwrite=true or another output=<file>.")
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UserError(f"{path} cannot be written: {folder} is no folder that you may write to; set output=<file>.")


@contextmanager
def writing(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path beside the file, which takes the file's place at the end; after an error nothing is left.

    Raises:
        UserError: the file is there already, or its folder cannot be written.
    """
    refuse(path, overwrite)
    beside, made = path.with_name(f".part.{path.name}"), not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); set output=<file>.") from error
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); set output=<file>.") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
            if made:
                path.parent.rmdir()  # which a folder with files in it refuses
