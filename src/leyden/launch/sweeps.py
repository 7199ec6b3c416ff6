"""A sweep: its directory, which of its jobs are left to do, how one job is tried, and what came of all."""

import math
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig

from leyden import Failed, UserError
from leyden.files import read_json, write_json
from leyden.launch import cluster, ranks, stored
from leyden.launch.line import Line
from leyden.run import configs, paths
from leyden.run.run import DONE, Busy, Run, Status, now

POLICY = ("retry_failed", "max_failures", "stop_on_failure")  # what may be typed anew for a sweep that goes on
ELSEWHERE = (*POLICY, "log_dir", "threads")  # what does not tell jobs from each other
MULTIRUN = ("-m", "--multirun")
LAUNCHER = (  # numbers and names that a launcher only hands on; its others may be commands
    r"(n_jobs|dry_run|partition|account|nodes|(cpus|gpus|tasks)_per_\w+|mem_gb|timeout_min|array_parallelism)=[\w.-]*"
)


# the directory


def find(asked: str, logs: Path) -> Path:
    """The directory of a sweep: a path, a name in logs/sweep, or latest.

    Raises:
        UserError: there is no such sweep.
    """
    newest = sorted(logs.glob("sweep/*/"), reverse=True)
    places = (
        newest if asked == "latest" else [Path(asked).expanduser(), paths.in_project(asked), logs / "sweep" / asked]
    )
    for path in places:
        if "keys" in read_json(path / "sweep.json"):
            return path.resolve()
    if asked == "latest":
        raise UserError(f"There is no sweep in {logs / 'sweep'}; python src/train.py -m <key>=<a>,<b> starts one.")
    raise UserError(f"{asked} is no sweep: it has no sweep.json that can be read; try sweep=latest.")


def go_on(line: Line, asked: str, logs: Path) -> Path:
    """Put what a sweep was started with before what is typed now, which wins; returns the sweep's directory.

    Raises:
        UserError: the sweep cannot be found or read, or was started with what counts only where it is typed.
    """
    directory = find(asked, logs)
    keys, flags = texts(directory, "keys"), texts(directory, "flags")
    typed = {stored.name_of(key) for key in line.keys}
    keys = [key for key in keys if stored.name_of(key) not in typed]
    refused = [key for key in keys if not may_be_stored(key)]
    if new_flags := [flag for flag in line.flags if flag not in MULTIRUN]:
        flags = new_flags
    elif not re.fullmatch(r"((-cn|--config-name) \w[\w-]*(\.yaml)?)?", " ".join(flags)):
        refused.append(shlex.join(flags))
    if refused:
        raise UserError(
            f"{directory / 'sweep.json'} has {' '.join(refused[0].split())}, which is not taken from a file, as "
            "it may build or run anything; if you know it, type it again after sweep=."
        )
    line.keys = keys + line.keys
    line.typed, line.multirun = list(line.keys), True
    line.flags = ["--multirun", *flags]
    line.config = (line.value("-cn", "--config-name") or line.config).removesuffix(".yaml")
    print(f"going on with {paths.in_words(directory)}")
    return directory


def may_be_stored(override: str) -> bool:
    """Whether an override out of a sweep.json, which may be another's, can make nothing run that is not in conf/."""
    name, value = stored.name_of(override), override.partition("=")[2]
    if name.startswith("hydra.sweeper.params."):  # a key and its ranges
        return may_be_stored(override.partition(".params.")[2])
    if name in ("hydra.sweeper.sampler._target_", "hydra.sweeper.pruner._target_"):
        return bool(re.fullmatch(r"optuna\.(samplers|pruners)\.\w+", value))
    plain = re.fullmatch(r"\w[\w-]*([./][\w-]+)*", name)  # no flag, no package, no folder above
    if not plain or "_target_" in override or name.split(".")[0] in configs.PACKAGES:
        return False
    if name.startswith("hydra.launcher."):
        return bool(re.fullmatch(LAUNCHER, override.partition(".launcher.")[2]))
    if name.startswith("hydra.sweeper."):
        return "{" not in value  # no dict, and nothing that stands elsewhere
    if name.startswith("hydra") and name not in ("hydra/sweeper", "hydra/launcher"):
        return False
    return not (paths.CONF / name).is_dir() or not re.search(r"\.\.|\$", value)  # an option is one of conf/


@contextmanager
def kept(directory: Path, line: Line) -> Iterator[None]:
    """Note what a sweep is started with, or goes on with, unless that is refused."""
    file, lock = directory / "sweep.json", FileLock(directory / ".lock")
    lasting = [key for key in line.typed if stored.name_of(key) not in POLICY]
    flags = [flag for flag in line.flags if flag not in MULTIRUN]
    with lock:
        before = read_json(file)
        new = {"id": directory.name, "started": now()} | before | {"keys": lasting, "flags": flags}
        write_json(file, new)
    try:
        yield
    except UserError as error:
        if before and not isinstance(error, Failed):
            with lock:
                again = {"keys": before["keys"], "flags": before.get("flags", [])}
                write_json(file, read_json(file) | again)
        raise


def texts(directory: Path, name: str) -> list[Any]:
    """A list of a sweep.json: of overrides, of flags, or of jobs, which are lists of overrides.

    Raises:
        UserError: it is none.
    """
    found = read_json(directory / "sweep.json").get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, list if name == "jobs" else str) for each in found):
        raise UserError(f"{directory / 'sweep.json'} cannot be read; start a new sweep.")
    return found


def numbered(directory: Path, jobs: list[list[str]]) -> list[int]:
    """The number of each job: that of an earlier start if it is the same, else a new one."""
    with FileLock(directory / ".lock"):
        known = texts(directory, "jobs")
        numbers = {frozenset(map(str, job)): number for number, job in enumerate(known)}
        for job in map(own, jobs):
            if numbers.setdefault(frozenset(job), len(numbers)) == len(known):
                known.append(job)
        write_json(directory / "sweep.json", read_json(directory / "sweep.json") | {"jobs": known})
        return [numbers[frozenset(own(job))] for job in jobs]


def own(job: list[str]) -> list[str]:
    """The overrides of a job that say what it is."""
    return [key for key in job if stored.name_of(key) not in ELSEWHERE and not key.startswith("hydra.")]


# one job


def attempt(directory: Path, cfg: DictConfig, carry_out: Callable[[DictConfig, bool], Any]) -> Any:
    """Try a job of a sweep unless it is done, being run, or failed before; returns its objective, None without one.

    It goes on where it was stopped, by its own config. `carry_out` gets True for a job that ended with the process it
    was in: in a process of its own it cannot take the sweep with it again.
    """
    run, record = Run(directory), {}
    try:
        with run.claim():
            record = run.record  # as it is now that nobody else has it
            status = record.get("status")
            if status in DONE or (status == Status.FAILED and not cfg.get("retry_failed")):
                again = "" if status in DONE else "; retry_failed=true tries it again"
                return leave(f"job {directory.name} is {status}{again}", run.objective)
            value = carry_out(going_on(cfg, directory) if status else cfg, status == Status.RUNNING)
            if value is None and (metric := nan(directory, cfg)):
                raise Failed(f"{metric} is not a number.")
            return value
    except Busy as busy:
        return leave(f"job {directory.name} is not started: {busy}", None)
    except Exception as error:  # this job's alone
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(error, UserError) and record and run.record == record:
            print(f"job {directory.name} did not go on: {what}", flush=True)  # refused, and as it was
        else:
            fail(directory, what)
        if cfg.get("stop_on_failure"):
            raise SystemExit(1) from error
        return None


def fail(directory: Path, what: str) -> None:
    """Note why a job failed, in run.json and in its train.log, where the run itself could not."""
    first = (what.splitlines() or ["without a word"])[0]
    print(f"job {directory.name} failed: {first}", flush=True)
    run = Run(directory)
    if run.status != Status.FAILED:
        run.end(Status.FAILED, what)
    if not run.log_file.is_file() or first not in run.log_file.read_text("utf-8", "replace"):
        with run.log_file.open("a", encoding="utf-8") as file:
            file.write(f"{now()} failed: {first}\n")


def leave(sentence: str, value: Any) -> Any:
    print(sentence, flush=True)
    if ranks.outside():
        cluster.share("0")
    return value


def going_on(cfg: DictConfig, directory: Path) -> DictConfig:
    """The config of a job that was stopped: its own, not what conf/ says now."""
    if not (directory / "config.yaml").is_file():
        return cfg
    tree = configs.stored(directory)
    tree.update({"own": [], "trusted": configs.packages(cfg)})
    tree.update({name: cfg[name] for name in ("log_dir", "exact") if name in cfg})
    stored.set_resume_checkpoint(tree, Run(directory), str(directory))
    return tree


def nan(directory: Path, cfg: DictConfig) -> str | None:
    """The objective's name, if its last value was none."""
    name = str(cfg.get("objective"))
    found = Run(directory).metrics.get(name.partition("/")[0])
    value = found.get(name) if isinstance(found, dict) else None
    return name if isinstance(value, float) and math.isnan(value) else None
