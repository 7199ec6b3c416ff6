"""A sweep: its directory, which of its jobs are left to do, how one job is tried, and what came of all."""

import logging
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from leyden import Failed, UserError, cluster, overrides, ranks, results, runs, stored

DONE = ("finished", "pruned")
POLICY = ("retry_failed", "max_failures", "stop_on_failure")  # what may be typed anew for a sweep that goes on
ELSEWHERE = (*POLICY, "log_dir", "threads")  # what does not tell jobs from each other
MULTIRUN = ("-m", "--multirun")
SHOWN = 20  # rows of the table at a sweep's end
log = logging.getLogger(__name__)


# the directory


def find(asked: str, logs: Path) -> Path:
    """The directory of a sweep: a path, a name in logs/sweep, or latest.

    Raises:
        UserError: there is no such sweep.
    """
    if asked == "latest":
        found = sorted(path.parent for path in logs.glob("sweep/*/sweep.json") if "keys" in runs.read_json(path))
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
    content = runs.read_json(directory / "sweep.json")
    keys, flags = content.get("keys"), content.get("flags", [])
    if not all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in (keys, flags)):
        raise UserError(f"{directory / 'sweep.json'} cannot be read; start a new sweep.")
    typed = {stored.name_of(key) for key in line.keys}
    line.keys = [key for key in keys if stored.name_of(key) not in typed] + line.keys
    line.typed = list(line.keys)
    line.flags = ["--multirun", *([flag for flag in line.flags if flag not in MULTIRUN] or flags)]
    line.config = (line.value("-cn", "--config-name") or line.config).removesuffix(".yaml")
    line.multirun = True
    print(f"going on with {runs.in_words(directory)}")
    return directory


@contextmanager
def kept(directory: Path, line: overrides.Line) -> Iterator[None]:
    """Note what a sweep is started with, or goes on with, unless that is refused."""
    file = directory / "sweep.json"
    lasting = [key for key in line.typed if stored.name_of(key) not in POLICY]
    with locked(directory / ".lock"):
        before = runs.read_json(file)
        flags = [flag for flag in line.flags if flag not in MULTIRUN]
        new = {"id": directory.name, "started": runs.now()} | before | {"keys": lasting, "flags": flags}
        runs.write_json(file, new)
    try:
        yield
    except UserError as error:
        if before and not isinstance(error, Failed):
            with locked(directory / ".lock"):
                again = {name: before[name] for name in ("keys", "flags") if name in before}
                runs.write_json(file, runs.read_json(file) | again)
        raise


def identity(directory: Path) -> str:
    """What a sweep is called, also when its directory has another name by now."""
    return str(runs.read_json(directory / "sweep.json").get("id") or directory.name)


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
        if not isinstance(known, list) or not all(isinstance(job, list) for job in known):
            raise UserError(f"{file} cannot be read; start a new sweep.")
        numbers = {frozenset(map(str, job)): number for number, job in enumerate(known)}
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
    record: dict[str, Any] = {}
    try:
        with runs.claim(directory):
            record = runs.read_json(directory / "run.json")  # as it is now that nobody else has it
            status = record.get("status")
            if status in DONE or (status == "failed" and not cfg.get("retry_failed")):
                again = "" if status in DONE else "; retry_failed=true tries it again"
                return leave(f"job {directory.name} is {status}{again}", objective(directory))
            value = carry_out(going_on(cfg, directory) if status else cfg, status == "running")
            if value is None and (metric := nan(directory, cfg)):
                raise Failed(f"{metric} is not a number.")
            return value
    except runs.Busy as busy:
        return leave(f"job {directory.name} is not started: {busy}", None)
    except Exception as error:  # this job's alone
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(error, UserError) and record and runs.read_json(directory / "run.json") == record:
            print(f"job {directory.name} did not go on: {what}", flush=True)  # refused, and as it was
        else:
            fail(directory, what)
        if cfg.get("stop_on_failure"):
            raise SystemExit(1) from error
        return None


def fail(directory: Path, what: str) -> None:
    """Note why a job failed, in run.json and in its train.log, where the run itself could not."""
    record, first = runs.read_json(directory / "run.json"), (what.splitlines() or ["without a word"])[0]
    print(f"job {directory.name} failed: {first}", flush=True)
    if record.get("status") != "failed":
        runs.update(directory, status="failed", reason=what, ended=runs.now())
    log_file = directory / "train.log"
    if not log_file.is_file() or first not in log_file.read_text("utf-8", "replace"):
        with log_file.open("a", encoding="utf-8") as file:
            file.write(f"{runs.now()} failed: {first}\n")


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
    tree.update({"own": [], "trusted": stored.packages(cfg)})
    tree.update({name: cfg[name] for name in ("log_dir", "exact") if name in cfg})
    stored.point(tree, directory, str(directory))
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


def conclude(directory: Path, allowed: int) -> None:
    """Print the table of a sweep, best first, and how its jobs ended.

    Raises:
        Failed: more jobs failed, or were never done, than allowed.
    """
    from leyden import formats, tables  # and with them pandas, which a single run does not need

    if not any(directory.glob("*/run.json")):
        return
    found = [run for run in results.collect([directory]) if not made_good(run)]
    for table in tables.tables([run for run in found if run.config]):
        more = len(table.results) - SHOWN
        table.settings, table.results = table.settings[:SHOWN], table.results[:SHOWN]
        print(formats.text(table, None, True) + (f"... and {more} rows more" if more > 0 else ""))
    counts, where = Counter(run.status for run in found), shlex.quote(str(runs.in_words(directory)))
    print(f"{many(len(found))}: {', '.join(f'{n} {status}' for status, n in counts.most_common())}")
    print(f"table and picture: python src/report.py {where} --plot report.png", flush=True)
    failed = [run.path.name for run in found if run.status not in (*DONE, "running")]
    if len(failed) > allowed:
        again = f"python src/train.py sweep={where} retry_failed=true"
        raise Failed(f"{many(len(failed))} failed: {', '.join(failed)}; see train.log of each. Try again: {again}")


def made_good(run: results.Run) -> bool:
    """Whether a failed trial was tried again under another number, and was done then."""
    again = run.path.parent / str(run.record.get("again"))
    return run.status == "failed" and runs.read_json(again / "run.json").get("status") in DONE


def many(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"
