"""Ranks that torchrun or SLURM has started: one of them decides, the others do as it does."""

import os
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from omegaconf import DictConfig, OmegaConf

from leyden import UserError, ranks

WAIT = timedelta(minutes=10)  # that the others wait for rank 0's config


def translate() -> None:
    """Give a task of srun the variables that torchrun would have set, so that there is one kind of rank.

    Lightning then leaves SLURM alone, its own way to requeue a job with it.
    """
    env = os.environ
    tasks, nodes = int(env.get("SLURM_NTASKS", 1)), env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST", "")
    if "SLURM_PROCID" not in env or "RANK" in env or tasks == 1 or ranks.entered():
        return
    first = re.sub(r"\[(\d+).*", r"\1", nodes).split(",")[0]  # of a list such as node[01-04,7],gpu2
    job = env.get("SLURM_JOB_ID", "0")
    each = tasks // int(env.get("SLURM_NNODES") or env.get("SLURM_JOB_NUM_NODES", 1))
    words = {"RANK": env["SLURM_PROCID"], "WORLD_SIZE": tasks, "LOCAL_RANK": env.get("SLURM_LOCALID", 0)}
    words |= {"LOCAL_WORLD_SIZE": each, "GROUP_RANK": env.get("SLURM_NODEID", 0), "TORCHELASTIC_RUN_ID": job}
    words |= {"MASTER_ADDR": first or "127.0.0.1", "MASTER_PORT": 15_000 + int(job[-4:])}
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


def store() -> Any:
    """What all ranks share before there is a process group."""
    from torch.distributed import PrefixStore, rendezvous

    found, _, _ = next(iter(rendezvous("env://", timeout=WAIT)))
    return PrefixStore("leyden", found)


def join(function: Callable[[DictConfig], Any]) -> Any:
    """Run the function on rank 0's config, as another rank; leave as rank 0 did where it has none."""
    text = store().get("config").decode()
    if text.isdecimal():
        sys.exit(int(text))
    cfg = OmegaConf.create(text)
    OmegaConf.set_struct(cfg, True)  # as Hydra does
    return function(cfg)
