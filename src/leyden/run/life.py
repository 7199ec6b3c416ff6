"""Whether the process that wrote a run.json still lives."""

import os
import socket
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

BEAT = 30  # seconds between the signs of life of a run
DEAD = 4 * BEAT  # seconds without one, after which a run on another machine is given up


def alive(record: dict[str, Any]) -> bool:
    """Whether the process that wrote this run.json still runs: by its start on this machine, else by its heartbeat."""
    if record.get("status") != "running":
        return False
    if record.get("host") == socket.gethostname():
        return record.get("pid_born") == born(record.get("pid"))
    then, here = record.get("slurm"), slurm()
    if then and here and then["job"] == here["job"]:
        return then["restarts"] >= here["restarts"]
    try:
        beat = datetime.fromisoformat(str(record.get("heartbeat") or record.get("started")))
        return (datetime.now().astimezone() - beat).total_seconds() < DEAD
    except (ValueError, TypeError):  # no time, or one without a zone
        return False


def slurm() -> dict[str, Any] | None:
    """The job of SLURM that this process is in, and how often it was requeued; None outside of one."""
    job, restarts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "")
    return {"job": job, "restarts": int(restarts) if restarts.isdecimal() else 0} if job else None


def born(pid: int | None) -> str | None:
    """When a process of this machine started, in the system's own words; None where there is none."""
    if Path("/proc/self/stat").exists():
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it is gone
            return None
        return None if words[0] in "ZX" else words[19]
    if os.name != "posix" or not pid:
        return None
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True).stdout
    return shown.strip() or None
