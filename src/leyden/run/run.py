"""A run: its directory, its files, its status, and the process that holds it."""

import os
import signal
import socket
import subprocess
import threading
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, Timeout

from leyden import UserError
from leyden.files import lock, read_json, write_json

HEARTBEAT_S = 30  # between signs of life
STALE_S = 4 * HEARTBEAT_S  # after which a run on another machine is given up
WRITING = threading.Lock()  # of run.json


class Status(StrEnum):
    """Where a run is; the last two are derived."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"  # by a signal
    FAILED = "failed"
    PRUNED = "pruned"  # given up by a search
    KILLED = "killed"  # its process is gone
    UNKNOWN = "unknown"  # no run.json


DONE = (Status.FINISHED, Status.PRUNED)


class Busy(UserError):
    """Another process has what was asked for."""


class Run:
    """A run directory; `record` and `metrics` are its run.json and metrics.json as they are now."""

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.config_file, self.log_file = self.directory / "config.yaml", self.directory / "train.log"
        self.checkpoints = self.directory / "checkpoints"
        self.best, self.last = self.checkpoints / "best.ckpt", self.checkpoints / "last.ckpt"

    @property
    def record(self) -> dict[str, Any]:
        return read_json(self.directory / "run.json")

    @property
    def metrics(self) -> dict[str, Any]:
        return read_json(self.directory / "metrics.json")

    @property
    def objective(self) -> float | None:
        return (self.metrics.get("best") or {}).get("objective")

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.checkpoints.glob("*.ckpt"))

    @property
    def status(self) -> Status:
        return status_of(self.record)

    @property
    def started(self) -> float:
        """When it began, in seconds; 0: unknown."""
        return instant(self.record.get("started"))

    def update(self, **fields: Any) -> None:
        """Change some fields of run.json."""
        with WRITING:
            write_json(self.directory / "run.json", self.record | fields)

    def start(self, **fields: Any) -> None:
        """Note that this process runs it."""
        pid = os.getpid()
        here = {"host": socket.gethostname(), "pid": pid, "pid_born": process_start_time(pid), "heartbeat": now()}
        self.update(status=Status.RUNNING, reason=None, ended=None, slurm=slurm_job(), **here, **fields)

    def end(self, status: Status, reason: str | None = None) -> None:
        self.update(status=status, reason=reason, ended=now())

    def write_metrics(self, content: dict[str, Any]) -> None:
        write_json(self.directory / "metrics.json", content)

    def checkpoint(self, asked: str = "") -> Path:
        """The checkpoint that `run=` means: as asked for, the best, or the last; UserError if none."""
        names = [Path(asked).name] if asked.endswith(".ckpt") else ["best.ckpt", "last.ckpt"]
        for path in map(self.checkpoints.joinpath, names):
            if path.is_file():
                return path

        raise UserError(f"The run {self.directory} has no checkpoint {' or '.join(names)}.")

    def claim(self) -> AcquireReturnProxy:
        """For `with`: hold the directory, however the process ends; Busy if another one runs it."""
        self.check_free()
        try:
            return lock(self.directory / ".lock", seconds=0).acquire()
        except Timeout as error:
            raise Busy(f"{self.directory} is being run by another process; wait for it.") from error

    def check_free(self) -> None:
        """Busy where another process runs it; its other files may not be there yet."""
        if alive(job := self.record):
            raise Busy(f"{self.directory} is being run by process {job.get('pid')} on {job.get('host')}; wait for it.")


def status_of(record: dict[str, Any]) -> Status:
    """The status that a run.json says, or killed."""
    try:
        status = Status(record["status"])
    except (KeyError, ValueError):
        return Status.UNKNOWN
    return Status.KILLED if status == Status.RUNNING and not alive(record) else status


def alive(record: dict[str, Any]) -> bool:
    """Whether a run's process lives: by its start on this machine, else by its heartbeat."""
    if record.get("status") != Status.RUNNING:
        return False
    if record.get("host") == socket.gethostname() and (born := record.get("pid_born")):
        return born == process_start_time(record.get("pid"))

    return not started_again(record) and instant(now()) - instant(record.get("heartbeat")) < STALE_S


def slurm_job() -> dict[str, Any] | None:
    """This process's job of SLURM, and how often it was requeued."""
    job, restarts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT")
    return {"job": job, "restarts": int(restarts or 0)} if job else None


def started_again(record: dict[str, Any]) -> bool:
    """Whether this process is in the job of a record, which SLURM has requeued."""
    then, here = record.get("slurm"), slurm_job()
    return bool(here and isinstance(then, dict) and then.get("job") == here["job"] and then != here)


def slurm_requeue() -> bool:
    """Let SLURM start this process's job again; False where it is not to."""
    job, array = slurm_job(), os.environ.get("SLURM_ARRAY_JOB_ID")
    if job is None or job["restarts"] >= int(os.environ.get("LEYDEN_REQUEUES", 1000)):
        return False

    name = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else job["job"]  # else of all its tasks
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which SLURM sends at once
    try:
        subprocess.run(["scontrol", "requeue", name], capture_output=True, timeout=60, check=True)
        return True
    except (OSError, subprocess.SubprocessError):
        signal.signal(signal.SIGTERM, before)
        return False


def process_start_time(pid: int | None) -> str | None:
    """When a process started, in Linux's words; None: it is gone, or this is no Linux."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def instant(text: Any) -> float:
    """A time as `now` writes it, in seconds; 0 where it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
