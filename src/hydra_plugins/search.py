"""The sweepers of Hydra: every combination, or what Optuna proposes. Both go on with a sweep that was stopped."""

import itertools
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from leyden import Failed, UserError, listed, require
from leyden.launch import cluster, sweeps
from leyden.run import paths
from leyden.run.keys import direction
from leyden.run.run import DONE, Status
from leyden.search import search

SHOWN = 20  # rows of the table at a sweep's end


class Grid(Sweeper):
    """Every combination of `params`, the last range varying fastest; the launcher gets max_batch_size jobs at once."""

    def __init__(self, max_batch_size: int | None = None, params: dict[str, Any] | None = None):
        self.size, self.params = max_batch_size, params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config  # type: ignore[assignment]
        launcher = Plugins.instance().instantiate_launcher
        self.launcher: Launcher = launcher(hydra_context=hydra_context, task_function=task_function, config=config)
        self.directory, self.retry = Path(config.hydra.sweep.dir), bool(config.get("retry_failed"))

    def sweep(self, arguments: list[str]) -> None:
        """Run all jobs; a key that is typed takes the place of its line in the YAML."""
        params = {} if self.params is None else self.params
        require(isinstance(params, dict | DictConfig), "hydra.sweeper.params", "keys with their ranges", params)
        texts = [f"{key}={value}" for key, value in params.items()] + arguments
        parsed = OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(texts)
        ranges = {override.get_key_element(): override for override in parsed}
        swept = {key: override for key, override in ranges.items() if override.is_sweep_override()}
        try:
            self.carry_out(swept, [str(ranges[key].input_line) for key in ranges if key not in swept])
        except SystemExit as left:
            if left.code == 1:  # by stop_on_failure
                conclude(self.directory, 0)
            raise
        conclude(self.directory, self.config.get("max_failures", 0))

    def carry_out(self, swept: dict[str, Override], fixed: list[str]) -> None:
        """Give each combination its number, and run those that are left."""
        choices = [[f"{key}={value}" for value in search.values_of(override)] for key, override in swept.items()]
        jobs = sweeps.numbered(self.directory, [[*fixed, *job] for job in itertools.product(*choices)])
        left = [number for number in jobs if sweeps.is_left(self.directory / str(number), self.retry)]
        if len(left) < len(jobs):
            print(f"{many(len(jobs) - len(left))} of {len(jobs)} done already", flush=True)
        size = self.size or len(jobs)
        for start in range(0, len(left), size):
            self.launch({number: jobs[number] for number in left[start : start + size]})

    def launch(self, jobs: dict[int, list[str]]) -> None:
        """Run jobs, by number; those at a time divide the threads."""
        named = [[*job, f"hydra.sweep.subdir={number}"] for number, job in jobs.items()]
        at_once = cluster.at_once(self.config.hydra.launcher, len(jobs))
        os.environ["LEYDEN_PARALLEL"] = str(at_once)
        try:
            done = self.launcher.launch(named, initial_job_idx=min(jobs))
        except Exception as error:  # of joblib, whose processes all go where one is killed
            if isinstance(error, UserError) or at_once == 1:
                raise
            print(f"a process was lost ({type(error).__name__}); its jobs go on, each apart", flush=True)
            done = self.launcher.launch(named, initial_job_idx=min(jobs))
        finally:
            del os.environ["LEYDEN_PARALLEL"]
        for number, job in zip(jobs, done, strict=True):
            try:
                job.return_value  # noqa: B018  (raises what the job could not say itself)
            except Exception as error:
                sweeps.fail(self.directory / str(number), f"{type(error).__name__}: {error}")


class Optuna(Grid):
    """Trials of a study, `n_jobs` at a time, which several processes may share; a job's number is its trial's.

    `direction`: minimize or maximize; None: as the objective is compared. `study`: the settings of Search.
    """

    def __init__(self, n_jobs: int, direction: str | None, params: dict[str, Any] | None = None, **study: Any):
        super().__init__(params=params)
        self.n_jobs, self.direction, self.study = n_jobs, direction, study

    def carry_out(self, swept: dict[str, Override], fixed: list[str]) -> None:
        """Raises UserError where there is nothing to search, or Optuna refuses what it was given."""
        cfg: Any = self.config
        for name, number in (("n_trials", self.study["n_trials"]), ("n_jobs", self.n_jobs)):
            require(type(number) is int and number != 0, f"hydra.sweeper.{name}", "a whole number, at least 1", number)
        if not swept:
            raise UserError("There is nothing to search; type a range such as 'optimizer.lr=interval(1e-4,1e-1)'.")
        mode = cfg.checkpoint.mode if cfg.checkpoint.monitor == cfg.objective else direction(cfg.objective)
        wanted = str(self.direction or {"min": "minimize", "max": "maximize"}.get(str(mode)))
        unsure = f"minimize or maximize, as {cfg.objective} does not say which is better"
        require(wanted in ("minimize", "maximize"), "hydra.sweeper.direction", unsure, wanted)
        spaces = {key: search.space(each, OmegaConf.select(cfg, each.key_or_group)) for key, each in swept.items()}
        found = search.Search(self.directory, spaces, wanted, self.retry, **self.study)
        at_once = cluster.at_once({"n_jobs": self.n_jobs}, self.study["n_trials"])
        while jobs := found.propose(at_once):
            self.launch({number: [*fixed, *values] for number, values in jobs.items()})


def conclude(directory: Path, allowed: int) -> None:
    """Print the table of a sweep, best first, and how its jobs ended; Failed where more failed than allowed."""
    from leyden.report import results, tables  # and with them pandas, which a single run does not need

    if not any(directory.glob("*/run.json")):
        return
    runs = results.read_all([directory], directory)
    best = [replace(table, rows=table.rows.head(SHOWN)) for table in tables.tables(runs)]
    print(tables.written(best, "text"))
    where = shlex.quote(str(paths.in_words(directory)))
    statuses = ", ".join(f"{n} {status}" for status, n in runs.status.value_counts().items())
    print(f"{many(len(runs))}: {statuses}")
    print(f"table and picture: python src/report.py {where} --plot report.png", flush=True)
    failed = runs.run[~runs.status.isin([*DONE, Status.RUNNING])]
    if len(failed) > allowed:
        again = f"python src/train.py sweep={where} retry_failed=true"
        raise Failed(f"{many(len(failed))} failed: {listed(failed)}; see train.log of each. Try again: {again}")


def many(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"
