"""A study of Optuna: where it is kept, how its parts are made, what a job asks it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from leyden import UserError, require, said
from leyden.files import read_json


def optuna() -> Any:
    """The package, without its chatter; UserError if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError("search=optuna needs Optuna: type pip install -e '.[search]'.") from error

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def build(node: Any, **kwargs: Any) -> Any:
    """A sampler or pruner from its node; UserError if it cannot be built."""
    require(isinstance(node, dict) and "_target_" in node, "a sampler or pruner", "a node with a _target_", node)
    try:
        return instantiate(node, **kwargs, _convert_="all")
    except Exception as error:  # of Hydra, of Optuna
        raise UserError(f"{node['_target_']} cannot be built: {said(error.__cause__ or error)}.") from error


def store(directory: Path, url: str | None) -> Any:
    """Optuna's storage: a journal in the directory, or a database; UserError if it cannot be used."""
    storages, journal = optuna().storages, directory / "study.log"
    try:
        if url:
            return storages.RDBStorage(url)
        return storages.JournalStorage(storages.journal.JournalFileBackend(str(journal)))
    except Exception as error:  # of any driver
        what = f"{'hydra.sweeper.storage' if url else journal} cannot be used: {said(error)}"
        raise UserError(f"{what}; name another, or start a new search.") from error


def judge(directory: Path, checked: Callable[[Any], Any]) -> Callable[[float, int], bool] | None:
    """What a job of a search asks it: (objective, epochs) -> whether it is hopeless; None for any other run."""
    noted = read_json(directory.parent / "study.json")
    if not noted or not directory.name.isdecimal():
        return None

    number, storage = int(directory.name), store(directory.parent, noted["storage"])
    study = optuna().load_study(study_name=noted["name"], storage=storage, pruner=build(checked(noted["pruner"])))
    study_id = storage.get_study_id_from_name(noted["name"])
    trial = optuna().trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def hopeless(value: float, epochs: int) -> bool:
        known = study.get_trials(deepcopy=False)[number]
        if known.state.is_finished():  # a run that somebody repeats by hand
            return False
        if epochs not in known.intermediate_values:
            trial.report(value, epochs)
        return bool(trial.should_prune())

    return hopeless
