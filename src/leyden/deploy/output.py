"""The one file that a command writes: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leyden import UserError


@contextmanager
def writing(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path beside the file, which takes the file's place at the end; after an error nothing is left.

    Raises:
        UserError: the file is there and may not be replaced, or it cannot be written.
    """
    if path.is_dir():
        raise UserError(f"`output` must be a file; got the folder `{path}`; type output={path}/<file>.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already; type overwrite=true or another output=<file>.")
    beside, made = path.with_name(f".part.{path.name}"), not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        if error.filename not in (None, str(beside)):  # of something that was read meanwhile
            raise
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
            if made:
                path.parent.rmdir()  # which a folder with files in it refuses


def unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written ({error.strerror or error}); set output=<file>.")
