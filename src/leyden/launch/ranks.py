"""One process per device: the job process starts them from the composed config and waits."""

import faulthandler
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf

from leyden import UserError, require, said

Function = Callable[[DictConfig], Any]
GRACE = 10  # seconds for the others to end after one has failed
SIGNALS = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")]


class RankError(RuntimeError):
    """A rank failed: which one, and how it ended."""


# how many


def count(trainer: DictConfig) -> int:
    """Processes to start on this machine; 1: train in this one. Of too few GPUs Lightning tells."""
    devices = str(trainer.devices)
    known = re.fullmatch(r"auto|-1|[1-9]\d*|\[\d+(, \d+)*\]", devices)
    require(bool(known), "trainer.devices", "a number, auto or a list such as [0,1]", devices)
    here = int(devices) if devices.isdecimal() else len(re.findall(r"\d+", devices))
    if devices in ("auto", "-1"):  # without GPUs ddp means two, so that it works anywhere
        here = gpus(trainer.accelerator) or 1 + bool(re.search("ddp|parallel", str(trainer.strategy).lower()))

    nodes = max(trainer.num_nodes, int(os.environ.get("SLURM_NNODES") or 1) if here > 1 else 1)
    if nodes > 1 and not outside():
        torchrun = f"torchrun --nnodes={nodes} --nproc-per-node={here} (README.md)"
        raise UserError(f"A run on {nodes} nodes needs a start on each: type srun python, or {torchrun}.")
    return here


def gpus(accelerator: str) -> int:
    """GPUs that a run may take; torch is asked only where the system shows one."""
    shown = [path for name in ("nvidia[0-9]*", "kfd", "dxg") for path in Path("/dev").glob(name)]
    if accelerator not in ("auto", "gpu", "cuda") or not shown:
        return 0
    import torch

    return torch.cuda.device_count()


def listen() -> None:
    """Let the signals that stop a run end this process."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def outside() -> bool:
    """Whether torchrun or srun started this process as a rank."""
    return not entered() and {"RANK", "WORLD_SIZE"} <= os.environ.keys()


# the job process


class Rank(subprocess.Popen):
    """A rank as the job process sees it, in a session of its own; its pipe ends with the job."""

    def __init__(self, number: int, script: str, words: dict[str, Any], run_dir: Path):
        self.number, self.left = number, dict[str, Any]()  # a value, a mistake, or an error and its time
        self.log = run_dir / (f"rank{number}.log" if number else "train.log")
        self.pipe, its_end = Pipe()
        words = words | {"RANK": number, "LOCAL_RANK": number, "LEYDEN_RANK_PIPE": its_end.fileno()}
        env = os.environ | {name: str(word) for name, word in words.items()}
        more: Any = {"stdin": subprocess.DEVNULL, "pass_fds": [its_end.fileno()], "start_new_session": True}
        with self.log.open("wb") if number else nullcontext() as out, its_end:
            super().__init__([sys.executable, "-u", script], stdout=out, stderr=out, env=env, **more)

    def has_ended(self) -> bool:
        """Whether it has; then `left` is what it sent."""
        ended = self.poll() is not None
        with suppress(EOFError, OSError):  # it was killed
            self.left = self.pipe.recv() if ended and self.pipe.poll() else {}
        return ended

    def kill(self) -> None:
        """Kill it and its workers."""
        with suppress(ProcessLookupError, PermissionError):  # all gone
            os.killpg(self.pid, signal.SIGKILL)


def start(script: str, cfg: DictConfig, run_dir: Path, processes: int) -> Any:
    """Run a script in new processes, one per rank, and wait; returns what rank 0 returned.

    Raises UserError where a rank did, SystemExit(128 + signal) after a signal, RankError for other bad ends.
    """
    ranks, received = [], []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in SIGNALS}
    try:
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Linux gives its port to rank 0 alone
            reserved.bind(("", 0))
            port = reserved.getsockname()[1]
            if sys.platform != "linux":  # where a second socket may not have it
                reserved.close()

            # torchrun's; with the run id Lightning reads them in a SLURM job, too
            words = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0, "MASTER_PORT": port}
            words |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": f"leyden-{port}"}
            for number in range(processes):
                ranks.append(Rank(number, script, words, run_dir))
                ranks[-1].pipe.send(cfg)
            return outcome(ranks, wait(ranks, received, cfg.get("timeout") or 600), received)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.pipe.close()
        refused = any("mistake" in rank.left for rank in ranks)
        for rank in ranks[1:]:
            if refused or not rank.log.read_bytes().strip():
                rank.log.unlink()
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(ranks: list[Rank], received: list[int], lag: float) -> Rank | None:
    """Wait for all, and at most `lag` seconds after one has finished; returns the first that went wrong.

    A signal is passed on, a second one kills.
    """
    running, culprit, deadline, passed = list(ranks), None, float("inf"), False
    while running:
        time.sleep(0.05)
        for rank in [rank for rank in running if rank.has_ended()]:
            running.remove(rank)
            fine = "value" in rank.left
            culprit = culprit or (None if fine else rank)
            deadline = min(deadline, time.monotonic() + (lag if fine or received else GRACE))

        if received and not passed:
            passed = True
            for rank in running:
                rank.send_signal(received[0])
            time.sleep(1)
            del received[1:]  # `timeout` signals a process and then its group

        # not SLURM's SIGTERM after its warning: all leave
        insisted = len(received) > 1 and received[0] in (signal.SIGTERM, signal.SIGINT)
        for rank in running if time.monotonic() > deadline or insisted else []:
            rank.kill()
    return culprit


def outcome(ranks: list[Rank], culprit: Rank | None, received: list[int]) -> Any:
    """Rank 0's value, or the error that the ranks' ends amount to."""
    if mistakes := [rank.left["mistake"] for rank in ranks if "mistake" in rank.left]:
        raise mistakes[0]
    if received:
        raise SystemExit(128 + received[0])
    if not culprit:
        return ranks[0].left["value"]
    if "error" in culprit.left:  # the first to leave need not be the first that failed
        culprit = min(ranks, key=lambda rank: rank.left.get("time", float("inf")))
    how = f"left with status {culprit.returncode} before the end"
    if culprit.returncode < 0:
        how = f"was ended by signal {-culprit.returncode} ({signal.strsignal(-culprit.returncode)})"
    raise RankError(f"rank {culprit.number} {culprit.left.get('error', how)}; see {culprit.log}")


# a rank


def entered() -> bool:
    """Whether this process is a rank that start() has started."""
    return "LEYDEN_RANK_PIPE" in os.environ


def enter(function: Function) -> NoReturn:
    """Be a rank: run the function on the job process's config, leave it a value or an error, exit."""
    job = Connection(int(os.environ["LEYDEN_RANK_PIPE"]))
    cfg = job.recv()

    def watch() -> None:
        job.poll(None)  # until the job process is gone
        os.kill(0, signal.SIGKILL)  # 0: this rank's workers, too

    threading.Thread(target=watch, daemon=True).start()
    if not OmegaConf.is_list(cfg.trainer.devices):  # which says which GPUs
        cfg.trainer.devices = int(os.environ["WORLD_SIZE"])
    listen()
    left: dict[str, Any] = {}
    try:
        left["value"] = function(cfg)
    except UserError as mistake:
        left["mistake"] = mistake
    except Exception as error:
        traceback.print_exc()
        left |= {"error": f"failed: {type(error).__name__}: {said(error)}", "time": time.time()}

    job.send(left)
    distributed = sys.modules.get("torch.distributed")
    if "value" not in left:  # a process group in a collective may never end
        faulthandler.dump_traceback_later(5, exit=True)
    elif distributed and distributed.is_initialized():
        distributed.destroy_process_group()
    sys.exit("value" not in left)
