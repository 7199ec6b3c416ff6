"""A study of Optuna: where it is kept, what it proposes, what it is told, and what a job asks it."""

import math
import os
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.utils import instantiate

from leyden import UserError, require, said
from leyden.files import lock, read_json, write_json
from leyden.run import paths
from leyden.run.run import DONE, Run, Status


def optuna() -> Any:
    """The package, without its chatter; UserError if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError("search=optuna needs Optuna: type pip install -e '.[search]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def build(node: Any, **keywords: Any) -> Any:
    """A sampler or pruner from its node; UserError if there is none of this name, or it takes other arguments."""
    require(isinstance(node, dict) and "_target_" in node, "a sampler or pruner", "a node with a _target_", node)
    try:
        return instantiate(node, **keywords, _convert_="all")
    except Exception as error:  # of Hydra, of Optuna, of the packages that it needs
        raise UserError(f"{node['_target_']} cannot be built: {said(error.__cause__ or error)}.") from error


def store(directory: Path, url: str | None) -> Any:
    """Optuna's storage: a journal in the directory, or a database; UserError if it cannot be read or reached."""
    storages, journal = optuna().storages, directory / "study.log"
    try:
        if url:
            return storages.RDBStorage(url)
        return storages.JournalStorage(storages.journal.JournalFileBackend(str(journal)))
    except Exception as error:  # of JSON, of SQLAlchemy, of each driver
        what, name = f"{error or type(error).__name__}".splitlines()[0], "hydra.sweeper.storage" if url else journal
        raise UserError(f"{name} cannot be used: {what}; name another storage, or start a new search.") from error


def repair_journal(file: Path) -> None:
    """Cut off the last line where a process was killed, or the disk was full, while it was written."""
    content = file.read_bytes() if file.is_file() else b""
    if content and not content.endswith(b"\n"):
        time.sleep(1)
        if file.stat().st_size == len(content):  # no other process is writing it
            os.truncate(file, content.rfind(b"\n") + 1)


def values_of(override: Override) -> list[str]:
    """The values of a range, one after the other; UserError where there are none, or no end of them."""
    if override.is_interval_sweep():
        raise UserError(f"{override.input_line}: an interval has no list of values; type search=optuna.")
    if not (values := list(override.sweep_string_iterator())):
        raise UserError(f"{override.input_line} has no values.")
    return values


def space(override: Override, usual: Any) -> Any:
    """Optuna's distribution of a range; one of whole numbers where the key's usual value is one."""
    value: Any = override.value()
    kinds, interval = optuna().distributions, override.is_interval_sweep()
    if not interval and (not override.is_range_sweep() or value.shuffle):
        return kinds.CategoricalDistribution(values_of(override))
    numbers = [value.start, value.end] if interval else list(map(float, values_of(override)))
    low, high, log = numbers[0], numbers[-1], "log" in value.tags
    step = None if interval or log else value.step
    whole = all(float(number).is_integer() for number in (low, high, step or 1))
    try:
        if whole and (isinstance(value.start, int) or isinstance(usual, int)):
            return kinds.IntDistribution(int(low), int(high), log, int(step or 1))
        return kinds.FloatDistribution(low, high, log, step)
    except ValueError as error:
        raise UserError(f"{override.input_line}: {said(error)}.") from error


class Search:
    """Proposes values, and tells the study what came of them; any number of processes may do so at once.

    A trial has the number of its job. One whose job was stopped stays open, and is proposed again. Each proposal has a
    seed of its own, so that a search that was stopped goes on as one that was not.

    `spaces`: key -> distribution; `retry`: propose failed trials again, too; `settings`: those of
    conf/hydra/sweeper/optuna.yaml.
    """

    def __init__(self, directory: Path, spaces: dict[str, Any], direction: str, retry: bool = False, **settings: Any):
        self.directory, self.spaces, self.retry, self.settings = directory, spaces, retry, settings
        self.tried: set[int] = set()  # jobs that this process has started
        self.sweep = str(read_json(directory / "sweep.json").get("id") or directory.name)  # a moved one keeps its name
        name, url, pruner = settings["study_name"] or self.sweep, settings["storage"], settings["pruner"]
        if url and url.startswith("sqlite:///"):  # its file counts from the project
            url = f"sqlite:///{paths.in_project(url.removeprefix('sqlite:///'))}"
        build(pruner)  # before a trial needs it
        shared = f"leyden-{zlib.crc32(f'{url} {name}'.encode()):x}.lock"
        self.lock = lock(Path(tempfile.gettempdir(), shared) if url else directory / ".lock")
        with self.lock:  # one makes the tables
            if not url:
                repair_journal(directory / "study.log")
            words = {"study_name": name, "direction": direction, "load_if_exists": True}
            self.study = optuna().create_study(storage=store(directory, url), **words)
        if (is_to := self.study.direction.name.lower()) != direction:
            raise UserError(f"The study {name} is to {is_to}, not to {direction}.")
        jobs = [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
        if jobs and max(jobs) >= len(self.trials()):
            raise UserError(f"{directory} has a job that its study does not know; start a new search.")
        write_json(directory / "study.json", {"storage": url, "name": name, "pruner": pruner})

    def trials(self, *states: str) -> list[Any]:
        """All trials of the study, or those of this sweep that are in one of these states."""
        known = self.study.get_trials(deepcopy=False)
        mine = [trial for trial in known if trial.user_attrs.get("sweep") == self.sweep]
        return [trial for trial in mine if trial.state.name in states] if states else known

    def job(self, trial: Any) -> Run:
        """The run of a trial."""
        return Run(self.directory / str(trial.number))

    def propose(self, at_once: int) -> dict[int, list[str]]:
        """The next jobs, number -> overrides; none: the search is at its end.

        Two processes may propose one job that has not begun: the second to claim its directory leaves it to the first.
        """
        with self.lock:
            self.settle()
            left = self.trials("RUNNING") + (self.trials("FAIL") if self.retry else [])
            left = [trial for trial in left if self.job(trial).status not in (Status.RUNNING, *DONE)]
            numbers = [trial.number for trial in left if trial.number not in self.tried][:at_once]
            started = sum("sweep" in trial.user_attrs for trial in self.trials())  # whose process was not killed first
            new = min(at_once - len(numbers), self.settings["n_trials"] - started)
            numbers += [self.ask() for _ in range(new)]
            self.tried.update(numbers)
            known = self.trials()
        return {number: [f"{key}={value}" for key, value in known[number].params.items()] for number in numbers}

    def ask(self) -> int:
        """The number of a new trial, which has its values; UserError where the sampler refuses the ranges."""
        seed, node = self.settings["seed"], self.settings["sampler"]
        if seed is not None and "QMC" not in str(node):  # which goes through one sequence
            seed = zlib.crc32(f"{seed} {len(self.trials())}".encode())
        self.study.sampler = build(node, seed=seed)
        try:
            trial = self.study.ask(self.spaces)
        except (ValueError, ImportError) as error:
            raise UserError(f"{node['_target_']}: {said(error)}.") from error
        trial.set_user_attr("sweep", self.sweep)
        return trial.number

    def settle(self) -> None:
        """Tell the study of each job that has ended."""
        states = optuna().trial.TrialState
        for trial in self.trials("RUNNING"):
            status, value = self.job(trial).status, self.job(trial).objective
            if status == Status.FINISHED and value is not None and math.isfinite(value):
                self.study.tell(trial.number, value, skip_if_finished=True)
            elif status in (*DONE, Status.FAILED):
                state = states.PRUNED if status == Status.PRUNED else states.FAIL
                self.study.tell(trial.number, state=state, skip_if_finished=True)


def judge(directory: Path, checked: Callable[[Any], Any]) -> Callable[[float, int], bool] | None:
    """What a job of a search asks it: (objective, epochs) -> whether the run is hopeless; None for any other run."""
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
