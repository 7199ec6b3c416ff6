"""The sweepers: every combination, or what Optuna proposes; both go on with a stopped sweep."""

import itertools
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf

from leyden import Failed, UserError, listed, require
from leyden.launch import cluster, sweeps
from leyden.run import configs, paths
from leyden.run.run import DONE, Status
from leyden.search import search

SHOWN = 20  # rows of the table at a sweep's end


class Grid(Sweeper):
    """Every combination, the last range varying fastest; `params` are overrides by now."""

    def __init__(self, max_batch_size: int | None = None, params: Any = None):
        self.size = max_batch_size

    def setup(self, *, hydra_context: Any, config: Any, **task: Any) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher: Any = Plugins.instance().instantiate_launcher(hydra_context=hydra_context, config=config, **task)
        self.directory, self.retry = Path(config.hydra.sweep.dir), bool(config.get("retry_failed"))

    def sweep(self, arguments: list[str]) -> None:
        """Run all jobs, and show what came of them."""
        parsed = OverridesParser.create(config_loader=self.hydra_context.config_loader).parse_overrides(arguments)
        ranges = {override.get_key_element(): override for override in parsed}
        swept = {key: override for key, override in ranges.items() if override.is_sweep_override()}
        allowed = self.config.get("max_failures", 0)
        try:
            self.carry_out(swept, [str(ranges[key].input_line) for key in ranges if key not in swept])
        except SystemExit as left:
            if left.code != 1:  # by stop_on_failure
                raise
            allowed = 0
        conclude(self.directory, allowed)

    def carry_out(self, swept: dict[str, Any], fixed: list[str]) -> None:
        """Give each combination its number, and run those that are left."""
        choices = [[f"{key}={value}" for value in search.values_of(override)] for key, override in swept.items()]
        jobs = sweeps.numbered(self.directory, [[*fixed, *job] for job in itertools.product(*choices)])
        left = [number for number in jobs if sweeps.is_left(self.directory / str(number), self.retry)]
        if len(left) < len(jobs):
            print(f"{len(jobs) - len(left)} of {len(jobs)} jobs are done already", flush=True)

        size = self.size or len(jobs)
        for start in range(0, len(left), size):
            self.launch({number: jobs[number] for number in left[start : start + size]})

    def launch(self, jobs: dict[int, list[str]]) -> None:
        """Run jobs, by number; those at a time divide the threads."""
        named = [[*job, f"hydra.sweep.subdir={number}"] for number, job in jobs.items()]
        at_once = cluster.at_once(self.config.hydra.launcher.get("n_jobs"), len(jobs))
        os.environ["LEYDEN_PARALLEL"] = str(at_once)

        try:
            done = self.launcher.launch(named, initial_job_idx=min(jobs))
        except Exception as error:  # of joblib, whose processes all go where one is killed
            if isinstance(error, UserError) or at_once == 1:
                raise
            done = self.launcher.launch(named, initial_job_idx=min(jobs))

        for number, job in zip(jobs, done, strict=False):  # SLURM's launcher returns none
            if isinstance(job._return_value, Exception):  # what the job could not say itself
                sweeps.fail(self.directory / str(number), job._return_value)


class Optuna(Grid):
    """Trials of a study, which several processes may share; a job's number is its trial's."""

    def __init__(self, n_jobs: int, direction: str | None, params: Any = None, **study: Any):
        self.n_jobs, self.direction, self.study = n_jobs, direction, study

    def carry_out(self, swept: dict[str, Any], fixed: list[str]) -> None:
        """Run trials until there are enough; UserError where there is nothing to search."""
        cfg: Any = self.config
        for name, number in (("n_trials", self.study["n_trials"]), ("n_jobs", self.n_jobs)):
            require(type(number) is int and number != 0, f"hydra.sweeper.{name}", "a whole number, at least 1", number)

        if not swept:
            raise UserError("There is nothing to search; type a range, as in 'optimizer.lr=interval(1e-4,1)'.")
        mode = configs.mode(cfg.objective, cfg.checkpoint.monitor, cfg.checkpoint.mode)
        wanted = self.direction or {"min": "minimize", "max": "maximize"}.get(str(mode), "")
        require(wanted in ("minimize", "maximize"), "hydra.sweeper.direction", "minimize or maximize", wanted)

        spaces = {key: search.space(each, OmegaConf.select(cfg, each.key_or_group)) for key, each in swept.items()}
        found = search.Search(self.directory, spaces, wanted, self.retry, **self.study)
        while jobs := found.propose(cluster.at_once(self.n_jobs, self.study["n_trials"])):
            self.launch({number: [*fixed, *values] for number, values in jobs.items()})


def conclude(directory: Path, allowed: int) -> None:
    """Print a sweep's table, best first, and how its jobs ended; Failed where more failed than allowed."""
    from leyden.report import results, tables  # and pandas

    if not any(directory.glob("*/run.json")):
        return

    runs = results.read_all([directory], directory)
    print(tables.written([replace(table, rows=table.rows.head(SHOWN)) for table in tables.tables(runs)], "text"))

    where = shlex.quote(str(paths.in_words(directory)))
    print("jobs:", ", ".join(f"{n} {status}" for status, n in runs.status.value_counts().items()))
    print(f"table and picture: python src/report.py {where} --plot report.png", flush=True)

    failed = runs.run[~runs.status.isin([*DONE, Status.RUNNING])]
    if len(failed) > allowed:
        again = f"python src/train.py sweep={where} retry_failed=true"
        raise Failed(f"Failed jobs: {listed(failed)}; see train.log of each. Try again: {again}")
