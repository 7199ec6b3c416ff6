"""Searches whose jobs are written by hand."""

from hydra.core.override_parser.overrides_parser import OverridesParser

from leyden.files import write_json
from leyden.run.run import Run
from leyden.search import search

TPE, NONE = {"_target_": "optuna.samplers.TPESampler"}, {"_target_": "optuna.pruners.NopPruner"}


def space(text, usual=0.1):
    return search.space(OverridesParser.create().parse_overrides([text])[0], usual)


def started(directory, n_trials, sampler=TPE, seed=1, storage=None, name=None, retry=False, **spaces):
    directory.mkdir(exist_ok=True)
    spaces = spaces or {"lr": space("lr=tag(log,interval(1e-4,1e-1))"), "model": space("model=cnn,mlp")}
    words = {"sampler": sampler, "pruner": NONE, "storage": storage, "study_name": name, "seed": seed}
    return search.Search(directory, spaces, "maximize", retry, n_trials=n_trials, **words)


def end(directory, number, status="finished", value=0.5, reason=None):
    folder = directory / str(number)
    folder.mkdir(exist_ok=True)
    Run(folder).write_metrics({"best": {"objective": value}})  # before the end is said, as a run does
    write_json(folder / "run.json", {"status": status, "reason": reason})
