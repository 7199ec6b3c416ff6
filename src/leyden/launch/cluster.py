"""Ranks that torchrun or SLURM has started: one of them decides, the others do as it does."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.launch import ranks

WAIT = timedelta(minutes=10)  # that the others wait for rank 0's config


def number(name: str, otherwise: int = 0) -> int:
    """A number of the environment; what is empty or no number counts as not there."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def translate() -> None:
    """Give a task of srun the variables that torchrun would have set, so that there is one kind of rank.

    Lightning then leaves SLURM alone, its own way to requeue a job with it.
    """
    env, tasks = os.environ, number("SLURM_NTASKS", 1)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST", "")
    if "SLURM_PROCID" not in env or "RANK" in env or tasks == 1 or ranks.entered():
        return
    first = re.sub(r"\[(\d+).*", r"\1", nodes).split(",")[0]  # of a list such as node[01-04,7],gpu2
    each = tasks // (number("SLURM_NNODES") or number("SLURM_JOB_NUM_NODES", 1))
    words: dict[str, Any] = {"RANK": number("SLURM_PROCID"), "WORLD_SIZE": tasks, "LOCAL_RANK": number("SLURM_LOCALID")}
    words |= {"LOCAL_WORLD_SIZE": each, "GROUP_RANK": number("SLURM_NODEID"), "MASTER_ADDR": first or "127.0.0.1"}
    words |= {"MASTER_PORT": 15_000 + number("SLURM_JOB_ID") % 10_000, "TORCHELASTIC_RUN_ID": number("SLURM_JOB_ID")}
    for name, word in words.items():
        env.setdefault(name, str(word))


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def fit(trainer: DictConfig) -> None:
    """Set the trainer's processes to those that were started.

    Raises:
        UserError: the config asks for other numbers.
    """
    world = int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    nodes, typed = world // here, str(trainer.devices)
    if typed.isdecimal() and typed not in ("1", str(here)):
        raise UserError(
            f"trainer.devices={typed}, but {here} processes were started on each machine; leave devices out."
        )
    if trainer.num_nodes not in (1, nodes):
        raise UserError(f"trainer.num_nodes={trainer.num_nodes}, but processes run on {nodes}; leave num_nodes out.")
    trainer.update(devices=here, num_nodes=nodes)
    if trainer.strategy == "auto" and world > 1:
        trainer.strategy = "ddp"


SHARED: list[Any] = []  # the store, which ends when rank 0 lets go of it


def share(text: str) -> None:
    """Give the others a config as rank 0, or the status that they are to leave with; the first word counts."""
    if not SHARED:
        SHARED.append(store())
        SHARED[0].set("config", text)


@contextmanager
def awaited() -> Iterator[None]:
    """Let the others leave as rank 0 does, if it has not come to a config."""
    try:
        yield
    finally:
        if ranks.outside():
            left = sys.exc_info()[1]
            code = getattr(left, "code", getattr(left, "status", 1))
            share("0" if left is None else str(code or 0))


def store() -> Any:
    """What all ranks share before there is a process group; waits for them where signals still work.

    Raises:
        UserError: they do not come.
    """
    found: list[Any] = []

    def meet() -> None:
        from torch.distributed import PrefixStore, rendezvous

        try:
            found.append(PrefixStore("leyden", next(iter(rendezvous("env://", timeout=WAIT)))[0]))
        except Exception as error:  # of sockets, of torch, of the time
            found.append(error)

    thread = threading.Thread(target=meet, daemon=True)
    thread.start()
    thread.join(10)
    if thread.is_alive():
        print(f"waiting for {os.environ['WORLD_SIZE']} ranks; srun or torchrun must start them all", file=sys.stderr)
        thread.join()
    if isinstance(found[0], Exception):
        raise UserError(
            f"The {os.environ['WORLD_SIZE']} ranks did not meet ({found[0]}); start them by srun or torchrun."
        )
    return found[0]


def join(function: Callable[[DictConfig], Any]) -> Any:
    """Run the function on rank 0's config, as another rank; leave as rank 0 did where it has none."""
    text = store().get("config").decode()
    if text.isdecimal():
        sys.exit(int(text))
    cfg = OmegaConf.create(text)
    OmegaConf.set_struct(cfg, True)  # as Hydra does
    return function(cfg)
