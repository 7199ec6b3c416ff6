"""A search with Optuna: what it proposes, and what it is told; several processes may share it."""

import math
import os
import re
import socket
import tempfile
import zlib
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from leyden import UserError
from leyden.files import read_json, write_json
from leyden.run import paths
from leyden.run.run import Run, Status, alive, now, process_start_time
from leyden.run.study import build, live, optuna, repair_journal, store


def space(override: Override, usual: Any) -> Any:
    """Optuna's distribution of a range; one of whole numbers where the key's usual value is one.

    Raises:
        UserError: it has no values.
    """
    kinds, value = optuna().distributions, override.value()
    scale = "log" in getattr(value, "tags", ())
    low, high, step = None, None, None
    if isinstance(value, RangeSweep) and not value.shuffle:
        ends = [float(text) for text in override.sweep_string_iterator()]
        if not ends:
            raise UserError(f"{override.input_line} has no values.")
        low, high, step = ends[0], ends[-1], None if scale else value.step
    elif isinstance(value, IntervalSweep):
        low, high = value.start, value.end
    try:
        if low is None or high is None:
            return kinds.CategoricalDistribution(list(override.sweep_string_iterator()))
        whole = all(float(number).is_integer() for number in (low, high, step or 1))
        if isinstance(low, int) or (whole and isinstance(value.start if step else usual, int)):
            return kinds.IntDistribution(int(low), int(high), scale, int(step or 1))
        return kinds.FloatDistribution(low, high, scale, step)
    except ValueError as error:
        raise UserError(f"{override.input_line}: {str(error).rstrip('.')}.") from error


class Search:
    """Proposes values, and tells the study what came of them; any number of processes may do so at once.

    The number of a trial is that of its job. A trial whose job was stopped stays open, and a process that goes on with
    the sweep proposes it again. Each proposal has a seed of its own, so that a search that was stopped goes on as one
    that was not.

    Args:
        directory: of the sweep
        spaces: key -> distribution
        direction: minimize or maximize
        n_trials, sampler, pruner, storage, study_name, seed: as in conf/hydra/sweeper/optuna.yaml
    """

    def __init__(
        self,
        directory: Path,
        spaces: dict[str, Any],
        direction: str,
        *,
        n_trials: int,
        sampler: dict[str, Any],
        pruner: dict[str, Any],
        storage: str | None = None,
        study_name: str | None = None,
        seed: int | None = None,
    ):
        self.directory, self.spaces = directory, spaces
        self.n_trials, self.sampler, self.seed = n_trials, sampler, seed
        # what a sweep is called, also when its directory has another name by now
        self.sweep = str(read_json(directory / "sweep.json").get("id") or directory.name)
        self.name, url = study_name or self.sweep, from_anywhere(storage)
        build(pruner)  # before a trial needs it
        shared = f"leyden-{zlib.crc32(f'{url} {self.name}'.encode()):x}.lock"
        self.lock = FileLock(Path(tempfile.gettempdir(), shared) if url else directory / ".lock")
        with self.lock:  # one makes the tables
            if url is None:
                repair_journal(directory / "study.log")
            self.storage = store(directory, url)
            self.study = self.opened(direction)
            self.study.sampler = self.next_sampler()
            write_json(directory / "study.json", {"storage": url, "name": self.name, "pruner": pruner})
        self.tried: set[int] = set()  # jobs that this process has started

    def opened(self, direction: str) -> Any:
        """The study. Raises UserError where it is to do something else, or is not the one that the jobs are of."""
        study = optuna().create_study(
            study_name=self.name, storage=self.storage, direction=direction, load_if_exists=True
        )
        if study.direction.name.lower() != direction:
            raise UserError(f"The study {self.name} is to {study.direction.name.lower()}, not to {direction}.")
        jobs = [int(path.name) for path in self.directory.iterdir() if path.name.isdecimal()]
        if (count := len(study.get_trials(deepcopy=False))) <= max(jobs, default=-1):
            raise UserError(
                f"The study {self.name} has {count} trials, but {self.directory} has a job {max(jobs)}: its storage "
                "is not the one that it had; start a new search."
            )
        return study

    def trials(self, state: str = "", mine: bool = False) -> list[Any]:
        """Those of a state; `mine`: whose jobs are in this sweep's directory."""
        found = self.study.get_trials(deepcopy=False)
        found = [trial for trial in found if not state or trial.state.name == state]
        return [t for t in found if t.user_attrs.get("sweep") == self.sweep] if mine else found

    def propose(self, at_once: int) -> dict[int, list[str]]:
        """The next jobs, number -> overrides; none: the search is at its end."""
        with self.lock:
            self.fail_orphaned_trials()
            left = [trial.number for trial in self.trials("RUNNING", mine=True) if not self.alive(trial)]
            numbers = [number for number in left if number not in self.tried][:at_once]
            while len(numbers) < at_once and (self.trials("WAITING") or (self.missing() > 0 and not self.exhausted())):
                numbers.append(self.ask())
            self.tried.update(numbers)
            return {number: self.claim(number) for number in numbers}

    def missing(self) -> int:
        """Trials that are still to be started; one that is tried again counts once, one that got no values not."""
        counted = [trial.user_attrs for trial in self.trials() if "overrides" in trial.user_attrs]
        return self.n_trials - sum("again" not in attributes for attributes in counted)

    def exhausted(self) -> bool:
        """Whether the sampler has said that all values of these ranges have had their turn."""
        return self.study.user_attrs.get("exhausted") == str(self.spaces)

    def fail_orphaned_trials(self) -> None:
        """End trials that got no values: their process was killed, or their ranges were refused."""
        for trial in self.trials("RUNNING"):
            if "overrides" not in trial.user_attrs:
                self.tell(trial.number, None, optuna().trial.TrialState.FAIL)

    def next_sampler(self) -> Any:
        """The sampler of the next trial, with that trial's seed."""
        seed = None if self.seed is None else zlib.crc32(f"{self.seed} {len(self.trials())}".encode())
        if re.search("(Grid|QMC)Sampler", str(self.sampler)):
            seed = self.seed or 0  # these go through one sequence
        return build(self.sampler, seed=seed, search_space=values(self.spaces))

    def ask(self) -> int:
        """The number of a new trial, which has its values.

        Raises:
            UserError: the sampler refuses the ranges.
        """
        self.study.sampler = self.next_sampler()
        try:
            trial = self.study.ask(self.spaces)
        except (ValueError, ImportError) as error:
            self.fail_orphaned_trials()
            raise UserError(f"{self.sampler['_target_']}: {' '.join(str(error).split()).rstrip('.')}.") from error
        trial.set_user_attr("sweep", self.sweep)
        trial.set_user_attr("overrides", [f"{key}={value}" for key, value in trial.params.items()])
        return trial.number

    def claim(self, number: int) -> list[str]:
        """Note which process runs a trial; returns its overrides."""
        trial = self.trial(number)
        if (failed := trial.user_attrs.get("again")) is not None:
            Run(self.directory / str(failed)).update(again=number)
        born = process_start_time(os.getpid())
        who = {"host": socket.gethostname(), "pid": os.getpid(), "pid_born": born, "heartbeat": now()}
        trial.set_user_attr("by", {"status": "running", **who})
        return trial.user_attrs["overrides"]

    def trial(self, number: int) -> Any:
        return live(self.study, self.storage, number)

    def alive(self, trial: Any) -> bool:
        record = Run(self.directory / str(trial.number)).record
        return alive(trial.user_attrs.get("by", {})) or alive(record)

    def settle(self) -> None:
        """Tell the study of each job that has ended."""
        with self.lock:
            for trial in self.trials("RUNNING", mine=True):
                self.close(trial.number)

    def close(self, number: int) -> None:
        states, directory = optuna().trial.TrialState, self.directory / str(number)
        record, value = Run(directory).record, Run(directory).objective
        status = record.get("status")
        if status == Status.FINISHED and value is not None and math.isfinite(value):
            self.tell(number, value, states.COMPLETE)
        elif status == Status.PRUNED:
            self.tell(number, None, states.PRUNED)
        elif status in (Status.FINISHED, Status.FAILED):
            self.trial(number).set_user_attr("reason", record.get("reason") or "no value of the objective")
            self.tell(number, None, states.FAIL)

    def tell(self, number: int, value: float | None, state: Any) -> None:
        try:
            self.study.tell(number, value, state, skip_if_finished=True)
        except RuntimeError as error:  # a sampler stops the study where it has no further values
            if "stop" not in str(error).lower():
                raise
            self.study.set_user_attr("exhausted", str(self.spaces))

    def retry(self) -> None:
        """Put the values of failed trials in front, once for each."""
        with self.lock:
            before = {trial.user_attrs.get("again") for trial in self.trials()}
            for trial in self.trials("FAIL", mine=True):
                if trial.number not in before:
                    self.study.enqueue_trial(trial.params, user_attrs={"again": trial.number})


def from_anywhere(url: str | None) -> str | None:
    """An URL in which the file of SQLite counts from the project, wherever the command is typed."""
    start = "sqlite:///"
    return f"{start}{paths.in_project(url.removeprefix(start))}" if url and url.startswith(start) else url


def values(spaces: dict[str, Any]) -> dict[str, list[Any]]:
    """All values of each key, for a sampler of a grid; without those keys that have no end of values."""
    found: dict[str, list[Any]] = {}
    for key, space in spaces.items():
        if hasattr(space, "choices"):
            found[key] = list(space.choices)
        elif space.step:
            count = round((space.high - space.low) / space.step) + 1
            found[key] = [space.low + i * space.step for i in range(count)]
    return found
