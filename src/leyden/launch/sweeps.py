"""A sweep: its directory, what it was started with, the numbers of its jobs, and how one job is tried."""

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from leyden import Failed, UserError
from leyden.files import lock, read_json, write_json
from leyden.launch import cluster, ranks, stored
from leyden.launch.line import Line, name_of
from leyden.run import configs, paths
from leyden.run.run import DONE, Busy, Run, Status, now, slurm_job

POLICY = ("retry_failed", "max_failures", "stop_on_failure")  # what may be typed anew for a sweep that goes on
ELSEWHERE = (*POLICY, "log_dir")  # what does not tell jobs from each other
LOST = "SLURM says"  # how the reason of a job begins that did not end by itself
MULTIRUN = ("-m", "--multirun")
OF_HYDRA = (  # what may be taken from a sweep.json of Hydra's own, each with no dict and nothing that stands elsewhere
    r"hydra/(sweeper|launcher)=[\w-]+"
    r"|hydra\.launcher\.(n_jobs|dry_run|wait|partition|account|nodes|mem_gb|timeout_min|array_parallelism|\w+_per_\w+)=[\w.-]*"
    r"|hydra\.sweeper\.(sampler|pruner)\._target_=optuna\.(samplers|pruners)\.\w+"
    r"|hydra\.sweeper\.(?!params|.*_target_)[\w.]+=[^{]*"
)


# the directory


def find(asked: str, logs: Path) -> Path:
    """The directory of a sweep: a path, a name in logs/sweep, or latest; UserError if there is no such sweep."""
    places = [Path(asked).expanduser(), paths.in_project(asked), logs / "sweep" / asked]
    for path in sorted(logs.glob("sweep/*/"), reverse=True) if asked == "latest" else places:
        if "keys" in read_json(path / "sweep.json"):
            return path.resolve()
    raise UserError(f"There is no sweep {asked} in {logs}; type sweep=latest, or train.py -m <key>=<a>,<b> for one.")


def go_on(line: Line, asked: str, logs: Path) -> Path:
    """Put what a sweep was started with before what is typed now, which wins; returns the sweep's directory.

    Raises:
        UserError: the sweep cannot be found, or was started with what counts only where it is typed.
    """
    directory = find(asked, logs)
    said = read_json(directory / "sweep.json")
    typed = {name_of(key) for key in line.keys}
    keys = [str(key) for key in said["keys"] if name_of(str(key)) not in typed]
    refused = [key for key in keys if not may_be_stored(key)]
    flags = [flag for flag in line.flags if flag not in MULTIRUN]
    if not flags:
        flags = list(map(str, said.get("flags", [])))
        if not re.fullmatch(r"((-cn|--config-name) \w[\w-]*(\.yaml)?)?", " ".join(flags)):
            refused.append(shlex.join(flags))
    if refused:
        what = f"{directory / 'sweep.json'} has {' '.join(refused[0].split())}, which is not taken from a file"
        raise UserError(f"{what}, as it may build or run anything; if you know it, type it again after sweep=.")
    line.keys = keys + line.keys
    line.typed, line.multirun = list(line.keys), True
    line.flags = ["--multirun", *flags]
    line.config = (line.value("-cn", "--config-name") or line.config).removesuffix(".yaml")
    print(f"going on with {paths.in_words(directory)}")
    return directory


def may_be_stored(override: str) -> bool:
    """Whether an override out of a sweep.json, which may be another's, can make nothing run that is not in conf/."""
    override = override.lstrip("+~").removeprefix("hydra.sweeper.params.")  # a key and its ranges
    if override.startswith("hydra"):
        return bool(re.fullmatch(OF_HYDRA, override))
    name, _, value = override.partition("=")
    if not re.fullmatch(r"\w[\w-]*([./][\w-]+)*", name) or "_target_" in override:  # no flag, no package, no way up
        return False
    option = not (paths.CONF / name).is_dir() or not re.search(r"\.\.|\$", value)  # one of conf/
    return option and name.split(".")[0] not in configs.PACKAGES


@contextmanager
def kept(directory: Path, line: Line) -> Iterator[None]:
    """Note what a sweep is started with, or goes on with, unless that is refused."""
    lasting = [key for key in line.typed if name_of(key) not in POLICY]
    new = {"keys": lasting, "flags": [flag for flag in line.flags if flag not in MULTIRUN]}
    before = note(directory, new)
    try:
        yield
    except UserError as error:
        if before and not isinstance(error, Failed):
            note(directory, {name: before[name] for name in new})
        raise


def note(directory: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Change fields of sweep.json; returns what it was."""
    with lock(directory / ".lock"):
        before = read_json(directory / "sweep.json")
        job = {"command": os.environ.get("LEYDEN_COMMAND"), "slurm": slurm_job()}
        write_json(directory / "sweep.json", {"id": directory.name, "started": now()} | before | job | fields)
        return before


def numbered(directory: Path, jobs: list[list[str]]) -> list[int]:
    """The number of each job: that of an earlier start if it is the same, else a new one."""
    mine = [sorted(key for key in job if name_of(key) not in ELSEWHERE and key[:6] != "hydra.") for job in jobs]
    with lock(directory / ".lock"):
        said = read_json(directory / "sweep.json")
        known = said.get("jobs", [])
        for job in mine:
            if job not in known:
                known.append(job)
        write_json(directory / "sweep.json", said | {"jobs": known})
    return [known.index(job) for job in mine]


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
            lost = re.match(rf"{LOST}|rank [\d, ]+ was lost", str(record.get("reason")))
            if status in DONE or (status == Status.FAILED and not lost and not cfg.get("retry_failed")):
                again = "" if status in DONE else "; retry_failed=true tries it again"
                return leave(f"job {directory.name} is {status}{again}", run.objective)
            value = carry_out(going_on(cfg, run) if status else cfg, status == Status.RUNNING)
            logged = {name: last for split in ("train", "val") for name, last in run.metrics.get(split, {}).items()}
            if value is None and math.isnan(logged.get(cfg.get("objective"), 0)):
                raise Failed(f"{cfg.objective} is not a number.")
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


def leave(sentence: str, value: Any) -> Any:
    """Say why a job is not run, to its other ranks, too."""
    print(sentence, flush=True)
    if ranks.outside():
        cluster.share("0")
    return value


def fail(directory: Path, what: str) -> None:
    """Note why a job failed, where the run itself could not."""
    run = Run(directory)
    directory.mkdir(exist_ok=True)  # of a job that SLURM has not started
    print(f"job {directory.name} failed: {what.splitlines()[0]}", flush=True)
    if run.status != Status.FAILED:
        run.end(Status.FAILED, what)


def going_on(cfg: DictConfig, run: Run) -> DictConfig:
    """The config of a job that was stopped: its own, not what conf/ says now."""
    if not run.config_file.is_file():
        return cfg
    tree = stored.continued(run.directory, cfg)
    stored.set_resume_checkpoint(tree, run, str(run.directory))
    return tree
