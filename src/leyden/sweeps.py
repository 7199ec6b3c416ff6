"""A sweep: its directory, which of its jobs are left to do, how one job is tried, and what came of all."""

import logging
import math
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import Failed, UserError, cluster, formats, life, overrides, ranks, results, runs, stored, tables

DONE = ("finished", "pruned")
POLICY = ("retry_failed", "max_failures", "stop_on_failure")  # what may be typed anew for a sweep that goes on
ELSEWHERE = (*POLICY, "log_dir", "threads")  # what does not tell jobs from each other
SHOWN = 20  # rows of the table at a sweep's end
log = logging.getLogger(__name__)


# the directory


def find(asked: str, logs: Path) -> Path:
    """The directory of a sweep: a path, a name in logs/sweep, or latest.

    Raises:
        UserError: there is no such sweep.
    """
    if asked == "latest":
        found = sorted(path.parent for path in logs.glob("sweep/*/sweep.json"))
        if not found:
            raise UserError(f"There is no sweep in {logs / 'sweep'}; python src/train.py -m <key>=<a>,<b> starts one.")
        return found[-1]
    for path in (Path(asked).expanduser(), runs.in_project(asked), logs / "sweep" / asked):
        if (path / "sweep.json").is_file():
            return path.resolve()
    raise UserError(f"{asked} is no sweep: it has no sweep.json; try sweep=latest.")


def go_on(line: overrides.Line, asked: str, logs: Path) -> Path:
    """Put what a sweep was started with before what is typed now, which wins; returns the sweep's directory.

    Raises:
        UserError: the sweep cannot be found or read.
    """
    directory = find(asked, logs)
    keys = runs.read_json(directory / "sweep.json").get("keys")
    if not isinstance(keys, list):
        raise UserError(f"{directory / 'sweep.json'} cannot be read; start a new sweep.")
    typed = {stored.name_of(key) for key in line.keys}
    line.keys = [key for key in keys if stored.name_of(key) not in typed] + line.keys
    line.typed = list(line.keys)
    if "--multirun" not in line.flags:
        line.flags.append("--multirun")
    line.multirun = True
    print(f"going on with {runs.in_words(directory)}")
    return directory


def begin(directory: Path, typed: list[str]) -> None:
    """Note what a sweep is started with, or goes on with."""
    with locked(directory / ".lock"):
        file = directory / "sweep.json"
        lasting = [key for key in typed if stored.name_of(key) not in POLICY]
        runs.write_json(file, {"started": runs.now()} | runs.read_json(file) | {"keys": lasting})


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Be the only process here; the system lets go of it when the process ends."""
    with open(file, "w") as held:
        try:
            import fcntl

            fcntl.lockf(held, fcntl.LOCK_EX)
        except ImportError:  # Windows
            log.warning("Without fcntl two processes must not share a sweep.")
        yield


def numbered(directory: Path, jobs: list[list[str]]) -> list[int]:
    """The number of each job: that of an earlier start if it is the same, else a new one."""
    with locked(directory / ".lock"):
        file = directory / "sweep.json"
        content = runs.read_json(file)
        known: list[list[str]] = content.get("jobs", [])
        numbers = {frozenset(job): number for number, job in enumerate(known)}
        for job in map(own, jobs):
            if numbers.setdefault(frozenset(job), len(numbers)) == len(known):
                known.append(job)
        runs.write_json(file, content | {"jobs": known})
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
    name, record = directory.name, runs.read_json(directory / "run.json")
    if life.alive(record):
        return leave(f"job {name} is being run by process {record['pid']} on {record['host']}", None)
    status = record.get("status")
    if status in DONE or (status == "failed" and not cfg.get("retry_failed")):
        again = "" if status in DONE else "; retry_failed=true tries it again"
        return leave(f"job {name} is {status}{again}", objective(directory))
    try:
        with runs.claim(directory):
            value = carry_out(going_on(cfg, directory) if status else cfg, status == "running")
            if value is None and (metric := nan(directory, cfg)):
                raise Failed(f"{metric} is not a number.")
            return value
    except Exception as error:  # this job's alone; its traceback is in its train.log
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if not life.alive(record := runs.read_json(directory / "run.json")):
            runs.update(directory, status="failed", reason=record.get("reason") or what, ended=runs.now())
        print(f"job {name} failed: {what.splitlines()[0] if what else 'without a word'}", flush=True)
        if cfg.get("stop_on_failure"):
            raise SystemExit(1) from error
        return None


def leave(sentence: str, value: Any) -> Any:
    print(sentence, flush=True)
    if ranks.outside():
        cluster.share("0")
    return value


def going_on(cfg: DictConfig, directory: Path) -> DictConfig:
    """The config of a job that was stopped: its own, not what conf/ says now."""
    if not (directory / "config.yaml").is_file():
        return cfg
    tree = runs.stored(directory)
    tree.threads = tree.threads or runs.read_json(directory / "run.json").get("threads")
    tree.trusted = sorted(set(re.findall(r"_target_: (\w+)\.", OmegaConf.to_yaml(cfg))))
    tree.resume = str(directory)
    tree.update({name: cfg[name] for name in ("log_dir", "exact") if name in cfg})
    if OmegaConf.select(tree, "model.weights") and stored.begun(directory):
        tree.model.weights = None
    return tree


def objective(directory: Path) -> float | None:
    """The best value of a run's objective."""
    return results.number(results.part(runs.read_json(directory / "metrics.json"), "best").get("objective"))


def nan(directory: Path, cfg: DictConfig) -> str | None:
    """The objective's name, if its last value was none."""
    metrics = runs.read_json(directory / "metrics.json")
    name = str(cfg.get("objective"))
    value = results.part(metrics, name.partition("/")[0]).get(name)
    return name if isinstance(value, float) and math.isnan(value) else None


# what came of it


def told(directory: Path) -> tuple[str, list[str]]:
    """The table of a sweep, how its jobs ended, and which have failed."""
    found, _ = results.collect([directory])
    lines = []
    for table in tables.tables([run for run in found if run.config]) if any(run.config for run in found) else []:
        more = len(table.rows) - SHOWN
        table.rows = table.rows[:SHOWN]
        lines += [formats.text(table, None, True), *([f"... and {more} rows more"] if more > 0 else [])]
    counts = Counter(run.status for run in found)
    lines.append(f"{len(found)} jobs: {', '.join(f'{n} {status}' for status, n in counts.most_common())}")
    lines.append(f"table and picture: python src/report.py {runs.in_words(directory)} --plot report.png")
    return "\n".join(lines), [run.path.name for run in found if run.status == "failed"]


def conclude(directory: Path, allowed: int) -> None:
    """Print what came of a sweep.

    Raises:
        Failed: more jobs failed than allowed.
    """
    if not any(directory.glob("*/run.json")):
        return
    text, failed = told(directory)
    print(text, flush=True)
    if len(failed) > allowed:
        number = f"{len(failed)} job{'s' * (len(failed) > 1)}"
        again = f"python src/train.py sweep={shlex.quote(str(runs.in_words(directory)))} retry_failed=true"
        raise Failed(f"{number} failed: {', '.join(failed)}; see train.log of each. Try again: {again}")


def parallel(launcher: Any, jobs: int) -> int:
    """Jobs that a launcher runs at a time on this machine."""
    many = launcher.get("n_jobs")  # of joblib
    if many is not None:
        cores = os.cpu_count() or 1
        return max(1, min(jobs, many if many > 0 else cores + 1 + many))
    return jobs if str(launcher.get("_target_")).endswith("LocalLauncher") else 1


HELD: list[Any] = []  # the lock of this process's GPU, until it ends


def take_gpu(trainer: DictConfig) -> None:
    """Of several jobs at a time on a machine with several GPUs, give each process one that no other has."""
    if HELD or int(os.environ.get("LEYDEN_PARALLEL", 1)) == 1 or str(trainer.devices) not in ("auto", "1", "-1"):
        return
    count = ranks.gpus(trainer.accelerator)
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for name in names if count > 1 else ():
        import fcntl

        HELD.append(open(Path(tempfile.gettempdir(), f"leyden-gpu-{name}.lock"), "w"))  # noqa: SIM115
        try:
            fcntl.lockf(HELD[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another job's
            HELD.pop().close()
            continue
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        return
