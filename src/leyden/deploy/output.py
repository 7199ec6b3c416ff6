"""The one file that a command writes: whole, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leyden import UserError, files


@contextmanager
def writing(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path beside the file, which takes the file's place at the end; after an error nothing is left.

    Raises:
        UserError: the file is there and may not be replaced, or it cannot be written.
    """
    if path.is_dir() or (path.exists() and not overwrite):
        raise UserError(f"{path} is there already; type another output=<file>, or overwrite=true to replace a file.")
    places, made = {None, *map(str, path.parents)}, not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as beside:
            places.add(str(beside))
            beside.touch()  # a mistake is told before any work
            yield beside
    except OSError as error:
        if error.filename not in places:  # something else, which was read meanwhile
            raise
        raise UserError(f"{path} cannot be written ({error.strerror or error}); set output=<file>.") from error
    finally:
        if made:
            with suppress(OSError):  # a folder with files in it stays
                path.parent.rmdir()
