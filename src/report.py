"""One table that says what won: the runs of a sweep or of other folders, best first.

python src/report.py                              the newest sweep
python src/report.py logs/train logs/sweep/<time> folders, sweeps and runs
python src/report.py --diff <run> <run>           what differs between two runs
"""

import argparse
import sys
from functools import reduce
from pathlib import Path

from leyden import UserError, listed
from leyden.launch.line import answering, value_of
from leyden.report import results, tables
from leyden.run import paths
from leyden.run.run import DONE, Status


class Parser(argparse.ArgumentParser):
    """Its mistakes are a UserError."""

    def error(self, message: str) -> None:
        raise UserError(f"{message}; see python src/report.py --help.")


def parsed(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("places", nargs="*", help="runs or folders of them; log_dir=<folder> as for a run")
    add("--metric", help="rank by this; default: the objective")
    add("--where", action="append", default=[], metavar="KEY=VALUE", help="only runs with this value")
    form = parser.add_mutually_exclusive_group().add_argument
    for name in ("csv", "json", "markdown", "latex"):
        form(f"--{name}", dest="form", action="store_const", const=name, default="text", help=f"print {name}")
    add("--plot", metavar="FILE", help="draw curves, and the metric by what differs")
    add("--diff", nargs=2, metavar="RUN", help="compare two runs")
    return parser.parse_intermixed_args(argv)


def report(argv: list[str]) -> None:
    """Read, rank, print."""
    typed = [word for word in argv if word.startswith("log_dir=")]
    asked = parsed([word for word in argv if word not in typed])
    logs = paths.logs_folder(*map(value_of, typed[-1:]))
    if asked.diff:
        from leyden.report.difference import difference

        print(difference(*(paths.find(run, logs).directory for run in asked.diff)))
        return

    places = asked.places or [folder for folder in paths.sweeps(logs) if any(folder.glob("*/run.json"))][:1]
    if not places:
        folder = paths.in_words(logs)
        raise UserError(f"There is no sweep in {folder}; type python src/report.py {folder / 'train'}.")

    runs = reduce(results.where, asked.where, results.read_all(places, logs))
    if not runs.objective.notna().any():
        raise UserError(f"No run has {' and '.join(asked.where) or 'a config.yaml'}.")
    made = tables.tables(runs[runs.objective.notna()], asked.metric)
    print(tables.written(made, asked.form))

    failed = runs[~runs.status.isin([*DONE, Status.RUNNING])]
    for (status, reason), group in failed.groupby(["status", "reason"], sort=False):
        why = f" ({reason[:120]})" if reason else ""
        print(f"{status}: {listed(group.run)}{why}", file=sys.stdout if asked.form == "text" else sys.stderr)

    if asked.plot:
        from leyden.report.picture import draw

        draw(made, Path(asked.plot))


if __name__ == "__main__":
    with answering():
        report(sys.argv[1:])
