"""One table that says what won: the runs of a sweep or of other folders, best first.

python src/report.py                              the newest sweep
python src/report.py logs/train logs/sweep/<time> folders, sweeps and runs
python src/report.py --diff <run> <run>           what differs between two runs
"""

import argparse
import io
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from leyden import UserError
from leyden.report import difference, formats, results, tables
from leyden.report.results import Run
from leyden.run import paths
from leyden.run.run import DONE, Status

FORMATS = ("csv", "json", "markdown", "latex")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message[0].upper()}{message[1:]}; python src/report.py --help lists what there is.")


def parser() -> Parser:
    made = Parser(
        "report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("places", nargs="*", help="runs, sweeps or folders of them; log_dir=<folder> as for a run")
    made.add_argument("--metric", help="rank by this one, such as test/acc; default: the objective of the runs")
    made.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only runs that have this value"
    )
    form = made.add_mutually_exclusive_group()
    for name in FORMATS:
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=f"print {name} instead")
    made.add_argument("--plot", metavar="FILE", help="draw learning curves, and the metric against what differs")
    made.add_argument(
        "--diff", nargs=2, metavar="RUN", help="compare two runs: their config, versions, data and losses"
    )
    return made


def report(argv: list[str]) -> None:
    """Read, rank, print."""
    typed = [word for word in argv if word.startswith("log_dir=")]
    asked = parser().parse_intermixed_args([word for word in argv if word not in typed])
    logs = paths.logs_folder(*(word.partition("=")[2].strip("'\"") for word in typed[-1:]))
    if asked.diff:
        first, second = (results.read(paths.find(run, logs).directory) for run in asked.diff)
        print(difference.told(first, second), end="")
        return

    # read
    found = results.collect([place(name, logs) for name in asked.places] or [newest(logs)])
    rows = [run for run in found if run.config]
    for condition in asked.where:
        rows = results.where(rows, condition)
    if not rows:
        raise UserError(f"No run has {' and '.join(asked.where)}." if asked.where else "No run has a config.yaml.")

    # rank
    made = tables.tables(rows, asked.metric)

    # print
    sys.stdout.write(written(made, asked.form))
    for line in remarks(found):
        print(line, file=sys.stderr if asked.form else sys.stdout)
    if asked.plot:
        from leyden.report import picture

        picture.draw(made, Path(asked.plot))
        print(f"picture: {asked.plot}", file=sys.stderr if asked.form else sys.stdout)


def written(made: list[tables.Table], form: str | None) -> str:
    whole = {"csv": formats.as_csv, "json": formats.as_json}
    single = {"markdown": formats.markdown, "latex": formats.latex}
    if form in whole:
        return whole[form](made)
    if form in single:
        return "\n".join(map(single[form], made))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    return "\n".join(formats.text(table, width, ascii) for table in made)


# where to look


def place(name: str, logs: Path) -> Path:
    """A folder as it is typed, from the project, or by the name of a run."""
    if name == "latest":
        return newest(logs)
    for path in (Path(name).expanduser(), paths.in_project(name), logs / "train" / name):
        if path.is_dir():
            return path
    return Path(name)


def newest(logs: Path) -> Path:
    """The newest sweep with a run.

    Raises:
        UserError: there is none.
    """
    for folder in sorted(logs.glob("sweep/*/"), reverse=True):
        if any(folder.glob("*/run.json")):
            return folder
    raise UserError(
        f"There is no sweep in {paths.in_words(logs)}; type python src/report.py {paths.in_words(logs / 'train')} for "
        "single runs."
    )


# what is not as it should be


def remarks(found: list[Run]) -> Iterator[str]:
    """A line for each kind of trouble, with the first of the runs that have it."""
    folder = formats.above(found)

    def named(some: list[Run]) -> str:
        return formats.names(some, folder)

    reasons: dict[tuple[str, str], list[Run]] = {}
    for run in found:
        if run.status not in (*DONE, Status.RUNNING, Status.UNKNOWN):
            reason = " ".join(str(run.record.get("reason") or "").split()).removeprefix("UserError: ")
            reasons.setdefault((run.status, f" ({reason[:120]})" if reason else ""), []).append(run)
    lines = [f"{status}: {named(some)}{reason}" for (status, reason), some in reasons.items()]
    yield from lines[: formats.MOST]
    if len(lines) > formats.MOST:
        yield f"and {len(lines) - formats.MOST} more reasons"
    flaws = [f"{formats.label(run, folder)} ({' and '.join(run.flaws)})" for run in found if run.flaws]
    if flaws:
        yield f"half-written: {formats.listed(flaws)}"


if __name__ == "__main__":
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # of letters that the terminal does not have
            if hasattr(signal, "SIGPIPE"):
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # | head
        report(sys.argv[1:])
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
