"""A search with Optuna: what it proposes, and what it is told; several processes may share it."""

import math
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from leyden import UserError, said
from leyden.files import lock, read_json, write_json
from leyden.launch import sweeps
from leyden.run import paths
from leyden.run.run import Run, Status, alive, this_process
from leyden.run.study import build, live, optuna, repair_journal, store


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

    A trial has the number of its job. One that was stopped or lost stays open, and is proposed again. Each proposal
    has a seed of its own, so that a search that was stopped goes on as one that was not.

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
            self.storage, make = store(directory, url), optuna().create_study
            self.study = make(storage=self.storage, study_name=name, direction=direction, load_if_exists=True)
        if (is_to := self.study.direction.name.lower()) != direction:
            raise UserError(f"The study {name} is to {is_to}, not to {direction}.")
        jobs = [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
        if jobs and max(jobs) >= len(self.trials()):
            raise UserError(f"{directory} has a job that its study does not know; start a new search.")
        write_json(directory / "study.json", {"storage": url, "name": name, "pruner": pruner})

    def trials(self, *states: str) -> list[Any]:
        """All trials, or those of this sweep that have values and are in one of these states."""
        known = self.study.get_trials(deepcopy=False)
        mine = [trial for trial in known if trial.user_attrs.get("sweep") == self.sweep]
        return [trial for trial in mine if trial.state.name in states] if states else known

    def job(self, trial: Any) -> Run:
        """The run of a trial."""
        return Run(self.directory / str(trial.number))

    def end(self, trial: Any, value: float | None = None, state: str | None = None) -> None:
        """Tell the study what came of a trial: a value, or FAIL or PRUNED."""
        states = optuna().trial.TrialState
        self.study.tell(trial.number, value, states[state] if state else None, skip_if_finished=True)

    def propose(self, at_once: int) -> dict[int, list[str]]:
        """The next jobs, number -> overrides; none: the search is at its end."""
        with self.lock:
            for trial in self.trials():
                if trial.state.name == "RUNNING" and "overrides" not in trial.user_attrs:
                    self.end(trial, state="FAIL")  # it got no values: its process was killed, or its ranges refused
            numbers = [trial.number for trial in self.left() if trial.number not in self.tried][:at_once]
            started = sum("overrides" in trial.user_attrs for trial in self.trials())
            new = min(at_once - len(numbers), self.settings["n_trials"] - started)
            numbers += [self.ask() for _ in range(new)]
            self.tried.update(numbers)
            known = self.trials()
            for number in numbers:
                if not known[number].state.is_finished():  # as a failed one is
                    by = {"status": Status.RUNNING, **this_process()}
                    live(self.study, self.storage, number).set_user_attr("by", by)
            return {number: known[number].user_attrs["overrides"] for number in numbers}

    def left(self) -> list[Any]:
        """Trials whose jobs are not done, and run by nobody."""
        trials = [trial for trial in self.trials("RUNNING") if not alive(trial.user_attrs.get("by", {}))]
        trials += [trial for trial in self.trials("FAIL") if self.retry and self.job(trial).status == Status.FAILED]
        return [trial for trial in trials if not alive(self.job(trial).record)]

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
        trial.set_user_attr("overrides", [f"{key}={value}" for key, value in trial.params.items()])
        return trial.number

    def settle(self) -> None:
        """Tell the study of each job that has ended."""
        with self.lock:
            for trial in self.trials("RUNNING"):
                job, value = self.job(trial), self.job(trial).objective
                if job.status == Status.FINISHED and value is not None and math.isfinite(value):
                    self.end(trial, value)
                elif not sweeps.is_left(job.directory, False):
                    self.end(trial, state="PRUNED" if job.status == Status.PRUNED else "FAIL")
