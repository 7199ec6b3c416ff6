"""One process per device: the job process starts them from the composed config and waits; it never trains itself."""

import faulthandler
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf

from leyden import Failed, UserError, require

GRACE = 10  # seconds that the other ranks get to end by themselves after one has failed
LAG = 600  # seconds that they may work on after one has finished: as long as a collective waits
SIGNALS = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")]


class RankError(RuntimeError):
    """A rank failed: which one, and how it ended."""


# how many


def count(trainer: DictConfig) -> int:
    """Processes to start on this machine; 1: train in this process. Whether there are as many GPUs, Lightning says."""
    devices = str(trainer.devices)
    known = re.fullmatch(r"auto|-1|None|[1-9]\d*|\[\d+(, ?\d+)*\]|\d+,|\d+(, ?\d+)+", devices)
    require(bool(known), "trainer.devices", "a number, auto or a list such as [0,1]", devices)
    number = int(devices) if devices.isdecimal() else len(re.findall(r"\b\d+", devices.replace("-1", "")))
    # without a GPU ddp means two processes, so that the same command works anywhere
    several = 2 if re.search("ddp|parallel", str(trainer.strategy).lower()) else 1
    here, of_slurm = number or gpus(trainer.accelerator) or several, int(os.environ.get("SLURM_NNODES") or 1)
    nodes = max(trainer.num_nodes, of_slurm if here > 1 else 1)
    if nodes > 1 and not outside():
        each = f"--nnodes={nodes} --nproc-per-node={number or 'auto'}"
        torchrun = f"torchrun {each} --rdzv-backend=c10d --rdzv-endpoint=<first machine>:29500"
        typed = " ".join(["srun python" if of_slurm > 1 else torchrun, *sys.orig_argv[1:]])
        raise UserError(f"A run on {nodes} nodes (trainer.num_nodes, SLURM) needs a start on each: type `{typed}`.")
    return here


def gpus(accelerator: str) -> int:
    """GPUs that a run may take; torch is asked only where the system shows one."""
    if accelerator == "mps" or (accelerator == "gpu" and sys.platform == "darwin"):
        return 1
    shown = [path for name in ("nvidia[0-9]*", "kfd", "dxg") for path in Path("/dev").glob(name)]
    if accelerator not in ("auto", "gpu", "cuda") or (sys.platform == "linux" and not shown):
        return 0
    import torch

    return torch.cuda.device_count()


def listen() -> None:
    """Let the signals that stop a run end this process."""
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


def outside() -> bool:
    """Whether torchrun, or srun in the words of torchrun, started this process as a rank."""
    return not entered() and {"RANK", "WORLD_SIZE"} <= os.environ.keys()


# the job process


class Rank(subprocess.Popen):
    """A rank as the job process sees it: in a session of its own, with an input that ends with the job."""

    def __init__(self, number: int, script: str, env: dict[str, str], run_dir: Path):
        self.number, self.file = number, run_dir / ".ranks" / f"{number}.json"
        self.log = run_dir / (f"rank{number}.log" if number else "train.log")
        command, env = [sys.executable, "-u", script], env | {"RANK": str(number), "LOCAL_RANK": str(number)}
        with self.log.open("wb") if number else nullcontext() as out:
            super().__init__(command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, start_new_session=True)

    def kill(self) -> None:
        """Kill it and the workers that it started."""
        with suppress(ProcessLookupError, PermissionError):  # all gone
            os.killpg(self.pid, signal.SIGKILL)

    def left(self) -> dict[str, Any]:
        """What it left: its status with a value, the mistake of a UserError, or an error and its time; or nothing."""
        return json.loads(self.file.read_text("utf-8") or "{}") if self.file.exists() else {}

    def fate(self) -> str:
        """How it ended, and the last lines of its error."""
        error = self.left().get("error", "")
        status = 1 if error else self.returncode  # it may have been killed while it was leaving
        how = f"left with status {status}" + " before the end" * (status == 0)
        if status < 0:
            how = f"was ended by signal {-status} ({signal.strsignal(-status)}); see {self.log}"
        return "\n".join([f"rank {self.number} {how}", *error.splitlines()[-20:]])


def script(function: Callable[[DictConfig], Any]) -> str:
    """The file that a function is in."""
    return os.path.abspath(inspect.getfile(inspect.unwrap(function)))


def start(script: str, cfg: DictConfig, run_dir: Path, processes: int) -> Any:
    """Run a script with cfg in new processes, one per rank, and wait; returns what rank 0 returned, through JSON.

    Raises UserError where a rank did, SystemExit(128 + signal) after a signal, RankError for any other bad end.
    """
    run_dir = run_dir.absolute()
    private = run_dir / ".ranks"
    shutil.rmtree(private, ignore_errors=True)  # of a job that was killed
    private.mkdir(parents=True)
    OmegaConf.save(cfg, private / "config.yaml")
    ranks, received = [], []
    catch = SIGNALS if threading.current_thread() is threading.main_thread() else []  # others may not
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in catch}
    try:
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Linux gives its port to rank 0 alone
            reserved.bind(("", 0))
            port = reserved.getsockname()[1]
            if sys.platform != "linux":  # where a second socket may not have it
                reserved.close()
            # torchrun's variables; the run id makes Lightning read them also inside a SLURM job
            words = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0, "MASTER_PORT": port}
            words |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": f"leyden-{port}", "LEYDEN_RANK_DIR": private}
            env = os.environ | {name: str(word) for name, word in words.items()}
            for number in range(processes):
                ranks.append(Rank(number, script, env, run_dir))
            return outcome(ranks, wait(ranks, received, cfg.get("timeout") or LAG), received)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        refused = any("mistake" in rank.left() for rank in ranks)  # which its sentence says
        for rank in ranks[1:]:
            if refused or not rank.log.read_bytes().strip():
                rank.log.unlink()
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        shutil.rmtree(private, ignore_errors=True)


def wait(ranks: list[Rank], received: list[int], lag: float) -> Rank | None:
    """Wait until all are gone, pass a signal on, kill who does not follow; returns the first that went wrong."""
    running, culprit, deadline, passed = list(ranks), None, float("inf"), False
    while running:
        time.sleep(0.05)
        for rank in [rank for rank in running if rank.poll() is not None]:
            running.remove(rank)
            rank.kill()  # what is left of its workers
            fine = rank.returncode == 0 and "value" in rank.left()  # a status of 0 alone may be an early end
            culprit = culprit or (None if fine else rank)
            deadline = min(deadline, time.monotonic() + (lag if fine or rank.returncode - 128 in SIGNALS else GRACE))
        if received and not passed:
            passed = True
            for rank in running:
                rank.send_signal(received[0])
            time.sleep(1)
            del received[1:]  # `timeout` signals a process and then its group: that is one signal
        late = time.monotonic() > deadline
        if late and running and not culprit:
            raise RankError(f"rank {running[0].number} was still running {lag:g} s after another rank had finished")
        # a second signal kills, but not SLURM's SIGTERM after its warning, for which all leave anyway
        insisted = len(received) > 1 and received[0] in (signal.SIGTERM, signal.SIGINT)
        for rank in running if late or insisted else []:
            rank.kill()
    return culprit


def outcome(ranks: list[Rank], culprit: Rank | None, received: list[int]) -> Any:
    """Rank 0's value, or the error that the ranks' ends amount to."""
    for rank in ranks:
        if mistake := rank.left().get("mistake"):
            raise (Failed if rank.left()["status"] == Failed.status else UserError)(mistake)
    died = max(-culprit.returncode, culprit.returncode - 128) if culprit else 0  # of this signal, or obeyed it
    if (stop := received[0] if received else died) in SIGNALS:
        raise SystemExit(128 + stop)
    if not culprit:
        return ranks[0].left()["value"]
    if "error" in culprit.left():  # the first to leave need not be the first that failed
        culprit = min(ranks, key=lambda rank: rank.left().get("time", float("inf")))
    raise RankError(culprit.fate())


# a rank


def entered() -> bool:
    """Whether this process is a rank that start() has started."""
    return "LEYDEN_RANK_DIR" in os.environ


def enter(function: Callable[[DictConfig], Any]) -> NoReturn:
    """Be a rank: run function(cfg) on the stored config, leave a value or an error for the job process, exit."""
    private, lifeline = Path(os.environ["LEYDEN_RANK_DIR"]), os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a run reads

    def watch() -> None:
        os.read(lifeline, 1)  # until the job process, which holds the other end, is gone
        os.kill(0, signal.SIGKILL)  # 0: this rank's workers, too

    threading.Thread(target=watch, daemon=True).start()
    cfg: Any = OmegaConf.load(private / "config.yaml")
    OmegaConf.set_struct(cfg, True)  # as Hydra does
    if not re.search(r"[\[,]", str(cfg.trainer.devices)):  # a list of GPUs stays: it says which ones
        cfg.trainer.devices = int(os.environ["WORLD_SIZE"])
    listen()
    try:
        left = {"status": 0, "value": function(cfg)}
    except UserError as mistake:
        left = {"status": mistake.status, "mistake": str(mistake)}
    except Exception:
        left = {"status": 1, "error": traceback.format_exc(), "time": time.time()}
        print(left["error"], file=sys.stderr)
    (private / f"{os.environ['RANK']}.json").write_text(json.dumps(left, default=float), "utf-8")
    distributed = sys.modules.get("torch.distributed")
    if left["status"]:  # a process group in the middle of a collective may never end
        faulthandler.dump_traceback_later(5, exit=True)
    elif distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    sys.exit(left["status"])
