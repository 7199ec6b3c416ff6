"""A sweep: what it was started with, the numbers of its jobs, and how one is tried."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from leyden import Failed, UserError
from leyden.files import lock, read_json, write_json
from leyden.launch.line import Line, name_of
from leyden.run import configs, paths
from leyden.run.run import DONE, Busy, Run, Status, slurm_job

POLICY = ("retry_failed", "max_failures", "stop_on_failure")  # holds for one start of a sweep
ELSEWHERE = re.compile(rf"({'|'.join(POLICY)}|log_dir)=|hydra\.")  # does not tell jobs from each other
# what of a sweep.json, perhaps another's, makes nothing run that is not in conf/
KEYS = r"[+~]*(?!hydra\b|own\b|trusted\b|.*_target_|.*\.\.)\w[\w./-]*(=.*)?"
OF_HYDRA = (
    r"|hydra/(sweeper|launcher)=[\w-]+|\+*hydra\.(launcher\.(?!setup|_)\w+=[\w.-]*|sweeper\.("
    r"(sampler|pruner)\._target_=optuna\.(samplers|pruners)\.\w+"
    r"|storage='?sqlite:///[\w.-]+'?"
    r"|(?!params|storage|.*_target_)[\w.]+=[^{$]*))"
)


def go_on(line: Line, asked: str, logs: Path) -> Path:
    """Put what a sweep was started with before what is typed, which wins; returns its directory."""
    places = paths.sweeps(logs) if asked == "latest" else [Path(asked).expanduser(), paths.in_project(asked)]
    directory = next((path.resolve() for path in places if "keys" in read_json(path / "sweep.json")), None)
    if directory is None:
        raise UserError(f"There is no sweep {asked} in {logs}; type sweep=latest, or train.py -m <key>=<a>,<b>.")

    said, typed = read_json(directory / "sweep.json"), {name_of(key) for key in line.keys}
    keys = [str(key) for key in said["keys"] if name_of(str(key)) not in typed]
    config = str(line.flags.get("--config-name") or said.get("config") or line.config)

    refused = [key for key in keys if not re.fullmatch(KEYS + OF_HYDRA, key)]
    refused += [key for key in keys if "$" in key and (paths.CONF / name_of(key)).is_dir()]  # another option then
    refused += [] if re.fullmatch(r"\w[\w.-]*", config) else [config]
    if refused:
        raise UserError(f"{directory}/sweep.json has {refused[0]!r}, which may run anything; if yours, type it again.")

    line.keys = keys + line.keys
    line.typed, line.multirun, line.config = list(line.keys), True, config.removesuffix(".yaml")
    print(f"going on with {paths.in_words(directory)}")
    return directory


@contextmanager
def kept(directory: Path, line: Line) -> Iterator[None]:
    """Note what a sweep is started with, or goes on with, unless that is refused."""
    file, keys = directory / "sweep.json", [key for key in line.typed if name_of(key) not in POLICY]
    started = {"keys": keys, "config": line.config, "command": os.environ.get("LEYDEN_COMMAND"), "slurm": slurm_job()}
    with lock(directory / ".lock"):
        before = read_json(file)
        write_json(file, {"id": directory.name} | before | started)
    try:
        yield
    except UserError as error:
        if before and not isinstance(error, Failed):
            write_json(file, read_json(file) | before)
        raise


def numbered(directory: Path, jobs: list[list[str]]) -> dict[int, list[str]]:
    """Jobs by number: that of an earlier start for the same job, else a new one."""
    names = [tuple(sorted(key for key in job if not ELSEWHERE.match(key))) for job in jobs]
    with lock(directory / ".lock"):
        said = read_json(directory / "sweep.json")
        known = {tuple(job): number for number, job in enumerate(said.get("jobs", []))}
        for name in names:
            known.setdefault(name, len(known))
        write_json(directory / "sweep.json", said | {"jobs": list(known)})

    return {known[name]: job for name, job in zip(names, jobs, strict=True)}


def is_left(directory: Path, retry: bool) -> bool:
    """Whether a job is still to be done: not at its end, or failed and to be tried again."""
    record = Run(directory).record
    again = retry or "SLURM" in str(record.get("reason"))  # which lost it, or one of its ranks
    return record.get("status") not in (*DONE, *([] if again else [Status.FAILED]))


def attempt(directory: Path, cfg: DictConfig, carry_out: Callable[[DictConfig, bool], Any]) -> Any:
    """Try a job of a sweep unless it is done, being run, or failed before; returns its objective, if any."""
    run, record = Run(directory), {}
    try:
        with run.claim():
            record = run.record  # now that nobody else has it
            if not is_left(directory, cfg.get("retry_failed", False)):
                raise Busy(f"it is {record['status']}")
            tree = cfg
            if run.config_file.is_file():  # it was stopped: its own config, not conf/'s
                tree = configs.continued(directory, cfg)
                configs.set_resume_checkpoint(tree, run, str(directory))
            return carry_out(tree, record.get("status") == Status.RUNNING)  # apart, if it killed its process
    except Busy as busy:
        print(f"job {directory.name} is not started: {busy}", flush=True)
    except Exception as error:  # this job's alone
        if isinstance(error, UserError) and record and run.record == record:  # refused, and as it was
            print(f"job {directory.name} did not go on: {error}", flush=True)
        else:
            fail(directory, error)
        if cfg.get("stop_on_failure"):
            raise SystemExit(1) from error
    return None


def fail(directory: Path, error: Exception) -> None:
    """Note why a job failed, where the run itself could not."""
    run, what = Run(directory), str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    directory.mkdir(exist_ok=True)  # of a job that SLURM has not started
    print(f"job {directory.name} failed: {what.splitlines()[0]}", flush=True)
    if run.status != Status.FAILED:
        run.end(Status.FAILED, what)
