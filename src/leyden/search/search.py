"""A search with Optuna: what it proposes, and what it is told."""

import math
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from leyden import UserError, said
from leyden.files import lock, read_json, write_json
from leyden.launch import sweeps
from leyden.run import paths
from leyden.run.run import DONE, Run, Status
from leyden.run.study import build, optuna, store


def values_of(override: Override) -> list[str]:
    """The values of a range; UserError where there are none, or no end of them."""
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
    """Proposes values, and tells the study what came of them, in any number of processes.

    A trial has the number of its job; one that was stopped or lost is proposed again. Each has its own seed:
    a search that was stopped goes on as one that was not.
    """

    def __init__(self, directory: Path, spaces: dict[str, Any], direction: str, retry: bool = False, **settings: Any):
        self.directory, self.spaces, self.retry, self.settings = directory, spaces, retry, settings
        self.tried, journal = set[int](), directory / "study.log"  # by this process
        self.sweep = str(read_json(directory / "sweep.json").get("id") or directory.name)  # a moved one keeps its name
        name, url, pruner = settings["study_name"] or self.sweep, settings["storage"], settings["pruner"]

        if url and url.startswith("sqlite:///"):  # its file counts from the project
            url = f"sqlite:///{paths.in_project(url.removeprefix('sqlite:///'))}"
        build(pruner)  # before a trial needs it
        shared = f"leyden-{zlib.crc32(f'{url} {name}'.encode()):x}.lock"
        self.lock = lock(Path(tempfile.gettempdir(), shared) if url else directory / ".lock")
        with self.lock:  # one makes the tables
            content = journal.read_bytes() if journal.is_file() else b""
            if content and not content.endswith(b"\n"):  # by a killed process or a full disk
                os.truncate(journal, content.rfind(b"\n") + 1)
            words = {"study_name": name, "direction": direction, "load_if_exists": True}
            self.study = optuna().create_study(storage=store(directory, url), **words)

        if (is_to := self.study.direction.name.lower()) != direction:
            raise UserError(f"The study {name} is to {is_to}, not {direction}.")
        jobs = [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
        if max(jobs, default=-1) >= len(self.trials()):
            raise UserError(f"{directory} has a job that its study does not know; start a new search.")
        write_json(directory / "study.json", {"storage": url, "name": name, "pruner": pruner})

    def trials(self, *states: str) -> list[Any]:
        """All trials of the study, or those in some states that are this sweep's, or nobody's yet."""
        known = self.study.get_trials(deepcopy=False)
        mine = [trial for trial in known if trial.user_attrs.get("sweep", self.sweep) == self.sweep]
        return [trial for trial in mine if trial.state.name in states] if states else known

    def propose(self, at_once: int) -> dict[int, list[str]]:
        """The next jobs, number -> overrides; none at the end; some may be those of another process."""
        with self.lock:
            self.settle()
            left = [trial for trial in self.trials("RUNNING", *["FAIL"] * self.retry) if "sweep" in trial.user_attrs]
            left = [trial.number for trial in left if self.job(trial).status not in (Status.RUNNING, *DONE)]
            numbers = [number for number in left if number not in self.tried][:at_once]

            started = sum("sweep" in trial.user_attrs for trial in self.trials())  # whose process was not killed first
            new = min(at_once - len(numbers), self.settings["n_trials"] - started)
            numbers += [self.ask() for _ in range(new)]
            self.tried.update(numbers)
            known = self.trials()
        return {number: [f"{key}={value}" for key, value in known[number].params.items()] for number in numbers}

    def job(self, trial: Any) -> Run:
        return Run(self.directory / str(trial.number))

    def ask(self) -> int:
        """The number of a new trial with its values; UserError where the sampler refuses the ranges."""
        seed, node = self.settings["seed"], self.settings["sampler"]
        own = None if seed is None else zlib.crc32(f"{seed} {len(self.trials())}".encode())
        self.study.sampler = build(node, seed=own)
        try:
            trial = self.study.ask(self.spaces)
        except (ValueError, ImportError) as error:
            raise UserError(f"{node['_target_']}: {said(error)}.") from error
        trial.set_user_attr("sweep", self.sweep)
        return trial.number

    def settle(self) -> None:
        """Tell the study of jobs that have ended, and of trials whose process was killed before they had one."""
        states = optuna().trial.TrialState
        for trial in self.trials("RUNNING"):
            run, state = self.job(trial), None
            value = run.objective if run.status == Status.FINISHED else None
            if value is None or not math.isfinite(value):
                value, state = None, states.PRUNED if run.status == Status.PRUNED else states.FAIL
            if "sweep" not in trial.user_attrs or not sweeps.is_left(run.directory, False):
                self.study.tell(trial.number, value, state, skip_if_finished=True)
