"""The sweepers of Hydra: every combination, or what Optuna proposes. Both go on with a sweep that was stopped."""

import itertools
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from leyden import Failed, UserError
from leyden.launch import cluster, sweeps
from leyden.run import paths
from leyden.run.keys import direction
from leyden.run.run import DONE, Run, Status
from leyden.search import search

SHOWN = 20  # rows of the table at a sweep's end


class Sweep(Sweeper):
    """What both have in common: where the sweep is, the ranges, and how jobs are started."""

    def __init__(self, params: dict[str, Any] | None):
        self.params = params if params is not None else {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config  # type: ignore[assignment]
        launcher = Plugins.instance().instantiate_launcher
        self.launcher: Launcher = launcher(hydra_context=hydra_context, task_function=task_function, config=config)
        self.directory = Path(config.hydra.sweep.dir)

    def ranges(self, arguments: list[str]) -> list[Override]:
        """The overrides, those typed in place of those in the YAML."""
        if not isinstance(self.params, dict | DictConfig):
            raise UserError(f"hydra.sweeper.params={self.params} must be keys with their ranges.")
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        parsed = parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()] + arguments)
        return list({override.get_key_element(): override for override in parsed}.values())

    def sweep(self, arguments: list[str]) -> None:
        """Raises Failed where more jobs failed than max_failures allows."""
        self.directory.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, self.directory / "multirun.yaml")
        ranges = self.ranges(arguments)
        try:
            self.carry_out(ranges)
        except SystemExit as left:
            if self.config.get("stop_on_failure") and left.code == 1:
                conclude(self.directory, 0)
            raise
        conclude(self.directory, self.config.get("max_failures", 0))

    def carry_out(self, ranges: list[Override]) -> None:
        raise NotImplementedError

    def launch(self, jobs: dict[int, list[str]]) -> None:
        """Run jobs, by number; those at a time divide the threads.

        Where a process of the launcher is killed, the others go with it: all that were not done go on, each apart.
        """
        named = [[*job, f"hydra.sweep.subdir={number}"] for number, job in jobs.items()]
        at_once = cluster.at_once(self.config.hydra.launcher, len(jobs))
        os.environ["LEYDEN_PARALLEL"] = str(at_once)
        try:
            try:
                done = self.launcher.launch(named, initial_job_idx=min(jobs))
            except Exception as error:
                if isinstance(error, UserError) or at_once == 1:
                    raise
                print(f"a process was lost ({type(error).__name__}); its jobs go on", flush=True)
                done = self.launcher.launch(named, initial_job_idx=min(jobs))
            for number, job in zip(jobs, done, strict=True):
                try:
                    job.return_value  # noqa: B018  (raises what the job could not say itself)
                except Exception as error:
                    sweeps.fail(self.directory / str(number), f"{type(error).__name__}: {error}")
        finally:
            del os.environ["LEYDEN_PARALLEL"]


class Grid(Sweep):
    """Every combination, the last range varying fastest.

    Args:
        max_batch_size: jobs that the launcher gets at once; None: all
        params: ranges, key -> values as on the command line
    """

    def __init__(self, max_batch_size: int | None = None, params: dict[str, Any] | None = None):
        super().__init__(params)
        self.size = max_batch_size

    def carry_out(self, ranges: list[Override]) -> None:
        """Raises UserError for an interval, which has no end of values."""
        lists = []
        for override in ranges:
            key = override.get_key_element()
            if override.is_interval_sweep():
                raise UserError(f"{override.input_line}: an interval has no list of values; type search=optuna.")
            values = override.sweep_string_iterator() if override.is_sweep_override() else []
            lists.append([f"{key}={value}" for value in values] or [str(override.input_line)])
        jobs = [list(job) for job in itertools.product(*lists)]
        numbers = sweeps.numbered(self.directory, jobs)
        size = self.size or len(jobs)
        for start in range(0, len(jobs), size):
            self.launch(dict(zip(numbers[start : start + size], jobs[start : start + size], strict=True)))


class Optuna(Sweep):
    """Trials of a study, which several processes may share; a job's number is its trial's.

    Args:
        n_trials: in all, with those of an earlier start
        n_jobs: at a time
        direction: minimize or maximize; None: as the objective is compared
        params: ranges, key -> interval, choice or range as on the command line
        study: the other arguments of leyden.search.search.Search
    """

    def __init__(
        self, n_trials: int, n_jobs: int, direction: str | None, params: dict[str, Any] | None = None, **study: Any
    ):
        super().__init__(params)
        self.n_trials, self.n_jobs, self.direction, self.study = n_trials, n_jobs, direction, study

    def carry_out(self, ranges: list[Override]) -> None:
        """Raises UserError where there is nothing to search, or Optuna refuses what it was given."""
        cfg: Any = self.config
        for name, number in (("n_trials", self.n_trials), ("n_jobs", self.n_jobs)):
            if type(number) is not int or number == 0 or (number < 1 and name == "n_trials"):
                raise UserError(f"hydra.sweeper.{name}={number} must be a whole number of at least 1.")
        swept = {override.get_key_element(): override for override in ranges if override.is_sweep_override()}
        fixed = [str(override.input_line) for override in ranges if not override.is_sweep_override()]
        if not swept:
            raise UserError("There is nothing to search; type a range such as 'optimizer.lr=interval(1e-4,1e-1)'.")
        judged = cfg.checkpoint.mode if cfg.checkpoint.monitor == cfg.objective else direction(cfg.objective)
        wanted = self.direction or {"min": "minimize", "max": "maximize"}.get(str(judged))
        if wanted not in ("minimize", "maximize"):
            raise UserError(
                f"hydra.sweeper.direction must be minimize or maximize, and {cfg.objective} does not say which is "
                f"better; got {wanted}; type hydra.sweeper.direction=minimize or hydra.sweeper.direction=maximize."
            )
        spaces = {key: search.space(each, OmegaConf.select(cfg, each.key_or_group)) for key, each in swept.items()}
        settings: Any = {
            name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for name, value in self.study.items()
        }
        study = search.Search(self.directory, spaces, wanted, n_trials=self.n_trials, **settings)
        study.settle()
        if cfg.retry_failed:
            study.retry()
        at_once = cluster.at_once({"n_jobs": self.n_jobs}, self.n_trials)
        while jobs := study.propose(at_once):
            self.launch({number: [*fixed, *values] for number, values in jobs.items()})
            study.settle()


# what came of a sweep


def conclude(directory: Path, allowed: int) -> None:
    """Print the table of a sweep, best first, and how its jobs ended.

    Raises:
        Failed: more jobs failed, or were never done, than allowed.
    """
    from leyden.report import formats, results, tables  # and with them pandas, which a single run does not need

    if not any(directory.glob("*/run.json")):
        return
    found = [run for run in results.collect([directory]) if not retried_successfully(run)]
    for table in tables.tables([run for run in found if run.config]):
        more = len(table.results) - SHOWN
        table.settings, table.results = table.settings[:SHOWN], table.results[:SHOWN]
        print(formats.text(table, None, True) + (f"... and {more} rows more" if more > 0 else ""))
    counts, where = Counter(run.status for run in found), shlex.quote(str(paths.in_words(directory)))
    print(f"{many(len(found))}: {', '.join(f'{n} {status}' for status, n in counts.most_common())}")
    print(f"table and picture: python src/report.py {where} --plot report.png", flush=True)
    failed = [run.path.name for run in found if run.status not in (*DONE, Status.RUNNING)]
    if len(failed) > allowed:
        again = f"python src/train.py sweep={where} retry_failed=true"
        raise Failed(f"{many(len(failed))} failed: {', '.join(failed)}; see train.log of each. Try again: {again}")


def retried_successfully(run: Any) -> bool:
    """Whether a failed trial was tried again under another number, and was done then."""
    again = run.path.parent / str(run.record.get("again"))
    return run.status == Status.FAILED and Run(again).status in DONE


def many(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"
