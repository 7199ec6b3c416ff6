"""Orders and seeds as functions of counters, so that nothing depends on what ran before."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from lightning import Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from leyden.lightning_internals import fetcher
from leyden.resume.stopping import SIGNALS

MASK = 2**64 - 1
POOL = 50  # batches that are sorted together
HOOKS = ["setup", "prepare_data", *(f"{split}_dataloader" for split in ("train", "val", "test", "predict"))]


def mix(*counters: int) -> int:
    """One 63-bit seed from several counters (SplitMix64: Steele et al. 2014, OOPSLA)."""
    state = 0
    for counter in counters:
        state = (state + counter + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def generator(*counters: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix(*counters))


def reseed(*counters: int) -> None:
    """Let torch, numpy and random draw from the counters."""
    seed = mix(*counters)
    torch.default_generator.manual_seed(seed)  # the quicker way
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    elif torch.backends.mps.is_built():
        torch.mps.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def isolated(*counters: int) -> Iterator[None]:
    """`reseed`, undone at the end of a `with`."""
    with isolate_rng(include_cuda=torch.cuda.is_initialized()):
        reseed(*counters)
        yield


def shuffled(length: int, seed: int, epoch: int = 0) -> Tensor:
    """Each sample once."""
    return torch.randperm(length, generator=generator(seed, epoch))


def balanced(y: Tensor, seed: int, epoch: int) -> Tensor:
    """As many draws as samples, each class equally likely."""
    weights = 1 / y.bincount().double()
    return torch.multinomial(weights[y], len(y), replacement=True, generator=generator(seed, epoch))


def bucketed(lengths: Tensor, batch: int, seed: int, epoch: int) -> Tensor:
    """Each sample once, those of a batch of similar length; a short one is the last."""
    order = shuffled(len(lengths), seed, epoch)
    pools = [pool[lengths[pool].argsort(stable=True)] for pool in order.split(POOL * batch)]
    batches = list(torch.cat(pools).split(batch))
    last = [batches.pop()] if len(batches[-1]) < batch else []
    return torch.cat([batches[i] for i in shuffled(len(batches), seed, ~epoch & MASK)] + last)


class Order(DistributedSampler):
    """The samples of one rank, in keys of epoch * length + index. Lightning replaces what is no DistributedSampler.

    With `draw`, of the epoch, a step of all ranks has the samples of one process with the joint batch.
    """

    def __init__(self, length: int, rank: int = 0, world: int = 1, draw: Callable[[int], Tensor] | None = None):
        self.length, self.rank, self.world, self.draw, self.epoch = length, rank, world, draw, 0
        self.skip = 0  # samples that the next pass leaves out

    def __len__(self) -> int:
        return self.length // self.world if self.draw else len(range(self.rank, self.length, self.world))

    def __iter__(self) -> Iterator[int]:
        order = self.draw(self.epoch) + self.epoch * self.length if self.draw else torch.arange(self.length)
        skip, self.skip = self.skip, 0
        parts = order[self.rank :: self.world][: len(self)][skip:].split(2**16)
        return (key for part in parts for key in part.tolist())


class Share(DistributedSampler):
    """What one rank has of a user's own sampler. With `equal` some come twice, so that all ranks have as many."""

    def __init__(self, order: Any, rank: int, world: int, equal: bool):
        self.order, self.rank, self.world, self.equal, self.epoch = order, rank, world, equal, 0
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.order, "set_epoch"):
            self.order.set_epoch(epoch)

    def __len__(self) -> int:
        length = len(self.order)
        return -(-length // self.world) if self.equal else len(range(self.rank, length, self.world))

    def __iter__(self) -> Iterator[Any]:
        with isolated(self.seed, self.epoch):  # alike on all ranks
            order = list(self.order)
        length = len(self) * self.world if self.equal else len(order)
        return (order[i % len(order)] for i in range(self.rank, length, self.world))

    def even(self, batch_size: int) -> int:
        """The largest size with as many batches on all ranks: a step may wait for others."""
        most, least = -(-len(self.order) // self.world), len(self.order) // self.world
        sizes = (size for size in range(batch_size, 0, -1) if -(-most // size) == -(-least // size))
        return batch_size if self.equal else next(sizes, batch_size)


def ignore_signals_in_worker(worker: int, then: Callable[[int], None]) -> None:
    """Let a loader's worker leave signals to its process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    then(worker)


def seed_hooks(datamodule: Any, begin: Callable[[int], None], seed: int = 0) -> Any:
    """Let a user's datamodule draw from the seed, and its workers ignore signals and `begin`."""

    def quiet(loader: Any) -> Any:
        if isinstance(loader, DataLoader) and loader.num_workers:
            loader.worker_init_fn = partial(ignore_signals_in_worker, then=loader.worker_init_fn or begin)
        return loader

    def seeded(name: str, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        trainer = getattr(datamodule, "trainer", None)
        every = trainer.reload_dataloaders_every_n_epochs if trainer and name == "train_dataloader" else 0
        with isolated(seed, trainer.current_epoch // every * every if every else 0):  # new loaders may draw others
            return tree_map(quiet, method(*arguments, **keywords))

    for name in filter(partial(hasattr, datamodule), HOOKS):
        method = getattr(datamodule, name)
        setattr(datamodule, name, wraps(method)(partial(seeded, name, method)))
    return datamodule


def why_not(loader: Any, world: int = 1) -> str | None:
    """Why a loader's order is no function of seed and epoch, if so."""
    each = "; each rank reads all, unless it divides its samples itself" if world > 1 else ""
    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is no DataLoader{each}"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset, which alone knows its order{each}"
    for sampler in (loader.sampler, loader.batch_sampler):
        sampler = sampler.order if isinstance(sampler, Share) else sampler
        if not isinstance(sampler, Order | None) and not type(sampler).__module__.startswith("torch.utils.data."):
            return f"{type(sampler).__name__} is not a sampler of torch or of leyden"

    persist = loader.persistent_workers and not isinstance(loader.sampler, Order)
    return "workers that persist go on with random numbers of their own" if persist else None


def fast_forward(trainer: Trainer, seed: int) -> None:
    """Set the training loaders to the next batch of a fit: our orders skip, what others give is drawn again."""
    loop, source = trainer.fit_loop, fetcher(trainer)
    progress, loaders = loop.epoch_loop.batch_progress, source.combined_loader.flattened
    done, orders = progress.current.completed, [getattr(loader, "sampler", None) for loader in loaders]

    ours = all(isinstance(order, Order) for order in orders)
    if loop.restarting and progress.is_last_batch:
        source.iterator = iter(())  # no batch is left
    elif loop.restarting or not ours:
        for loader, order in zip(loaders, orders, strict=True):
            if hasattr(order, "set_epoch"):
                order.set_epoch(trainer.current_epoch)
            if ours:
                order.skip = done * loader.batch_size
        reseed(seed, ~trainer.current_epoch)
        iter(source)
        for _ in range(0 if ours else done):
            next(source.iterator)
