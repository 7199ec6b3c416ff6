"""What the log of a run takes: the screen at once, train.log from when the run begins."""

import logging
import logging.handlers
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logging_to(path: Path | None) -> Iterator[Callable[[], None]]:
    """Plain lines on the screen, and with their time in the file; the logger leyden.file speaks to the file only.

    The file gets nothing until what is yielded is called.
    """
    root, silent = logging.getLogger(), logging.getLogger("leyden.file")
    before, level = root.handlers[:], root.level
    screen = logging.StreamHandler(sys.stdout)
    screen.addFilter(lambda entry: entry.name.startswith("leyden") or entry.levelno >= logging.WARNING)
    root.handlers, silent.propagate = [screen], False
    file = logging.FileHandler(path, encoding="utf-8", delay=True) if path else logging.NullHandler()
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    lines = sys.maxsize if path else 0  # that may wait
    held = logging.handlers.MemoryHandler(lines, logging.CRITICAL + 1, file, flushOnClose=False)
    root.addHandler(held)
    silent.addHandler(held)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a pipe that is closed ends the output, not the run

    def release() -> None:
        if path:
            path.touch()  # a run has a log, though it may have nothing to say
        held.capacity = 0  # each further line at once
        held.flush()

    try:
        yield release
    finally:
        logging.captureWarnings(False)
        root.handlers, silent.handlers = before, []
        root.setLevel(level)
        held.close()
        file.close()
