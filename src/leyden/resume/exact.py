"""Orders and seeds as pure functions of counters, so that nothing depends on what ran before."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

MASK = 2**64 - 1
POOL = 50  # batches of a shuffled pool that is sorted by length


def mix(*counters: int) -> int:
    """One 63-bit seed from several counters (the finaliser of SplitMix64: Steele et al. 2014, OOPSLA)."""
    state = 0
    for counter in counters:
        state = (state + counter + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def generator(*counters: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix(*counters))


@contextmanager
def seeded(*counters: int) -> Iterator[None]:
    """Draw from the counters inside, and leave torch's own generator as it was."""
    state = torch.get_rng_state()
    torch.manual_seed(mix(*counters))
    try:
        yield
    finally:
        torch.set_rng_state(state)


def reseed(*counters: int) -> None:
    """Let all that draws from now on, with torch, numpy or random, draw from the counters."""
    seed = mix(*counters)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 100 us more to ask for devices
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    elif torch.backends.mps.is_built():
        torch.mps.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def isolated(*counters: int) -> Iterator[None]:
    """Draw from the counters inside, with torch, numpy or random, and leave all their generators as they were."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    of_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    reseed(*counters)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)


# orders of an epoch: int64 indices


def shuffled(length: int, seed: int, epoch: int = 0) -> Tensor:
    """Each sample once."""
    return torch.randperm(length, generator=generator(seed, epoch))


def balanced(y: Tensor, seed: int, epoch: int) -> Tensor:
    """As many draws as there are samples, with replacement, each class equally likely."""
    weights = 1 / y.bincount().double()
    return torch.multinomial(weights[y], len(y), replacement=True, generator=generator(seed, epoch))


def bucketed(lengths: Tensor, batch: int, seed: int, epoch: int) -> Tensor:
    """Each sample once, those of a batch of similar length; a short batch stays the last."""
    order = shuffled(len(lengths), seed, epoch)
    pools = [pool[lengths[pool].argsort(stable=True)] for pool in order.split(POOL * batch)]
    batches = list(torch.cat(pools).split(batch))
    last = [batches.pop()] if len(batches[-1]) < batch else []
    return torch.cat([batches[i] for i in shuffled(len(batches), seed, ~epoch & MASK)] + last)


class Order(DistributedSampler):
    """The samples of one rank, as every rank can compute them, in keys of epoch * length + index.

    With `draw`, a function of the epoch, all ranks get equally many, and step s of all ranks together holds what step s
    of one process with the joint batch would. Without it each sample comes once, in order, as epoch 0.
    It is a DistributedSampler so that Lightning calls `set_epoch` and does not put its own in place.
    """

    def __init__(self, length: int, rank: int = 0, world: int = 1, draw: Callable[[int], Tensor] | None = None):
        self.length, self.rank, self.world, self.draw, self.epoch = length, rank, world, draw, 0
        self.skip = 0  # samples that the next pass leaves out at its start

    def __len__(self) -> int:
        return self.length // self.world if self.draw else len(range(self.rank, self.length, self.world))

    def __iter__(self) -> Iterator[int]:
        order = self.draw(self.epoch) + self.epoch * self.length if self.draw else torch.arange(self.length)
        skip, self.skip = self.skip, 0
        return iter(order[self.rank :: self.world][: len(self)][skip:].tolist())


def deaf(worker: int, then: Callable[[int], None]) -> None:
    """Let a loader's worker leave signals to the process that it works for: Ctrl-C reaches all of them."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    then(worker)


def once(datamodule: Any, begin: Callable[[int], None], seed: int = 0) -> Any:
    """Let each hook of a datamodule that may cut splits draw from the seed, and its workers ignore signals.

    `begin`: what a worker begins with where its loader does not say.
    """

    def unheard(loader: Any) -> Any:
        if isinstance(loader, DataLoader) and loader.num_workers:
            loader.worker_init_fn = partial(deaf, then=loader.worker_init_fn or begin)
        return loader

    def wrapped(name: str, *steps: Callable[[Any], Any]) -> Callable[..., Any]:
        method = getattr(datamodule, name)

        @wraps(method)
        def seeded_hook(*arguments: Any, **keywords: Any) -> Any:
            epoch = loading_epoch(datamodule) if name == "train_dataloader" else 0
            with isolated(seed, epoch) if epoch else isolated(seed):
                found = method(*arguments, **keywords)
            for step in steps:
                found = tree_map(step, found)
            return found

        return seeded_hook

    loaders = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
    for name in (*loaders, "setup", "prepare_data"):
        if hasattr(datamodule, name):
            setattr(datamodule, name, wrapped(name, *[unheard] * (name in loaders)))
    return datamodule


def loading_epoch(datamodule: Any) -> int:
    """The epoch that training loaders are made for, where they are made anew: they may draw other samples then."""
    trainer = getattr(datamodule, "trainer", None)
    every = trainer.reload_dataloaders_every_n_epochs if trainer else 0
    return trainer.current_epoch // every * every if every else 0


def why_not(loader: Any) -> str | None:
    """Why a loader's order is no function of seed and epoch; None where it is."""
    if not isinstance(loader, DataLoader):
        return f"a {type(loader).__name__} gives the batches, which is no DataLoader of torch"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset, which alone knows its order"
    for sampler in (loader.sampler, loader.batch_sampler):
        sampler = getattr(sampler, "shared", sampler)  # of lightning_internals.Share
        if not isinstance(sampler, Order | None) and not type(sampler).__module__.startswith("torch.utils.data."):
            return f"{type(sampler).__name__} is not a sampler of torch or of leyden"
    if loader.persistent_workers and not isinstance(loader.sampler, Order):
        return "workers that persist go on with random numbers of their own"
    return None


def fast_forward(trainer: Any, seed: int) -> None:
    """Set the training loaders to the batch that a fit begins or goes on with.

    Lightning opens them before the counters of a checkpoint are restored. Orders of ours skip; what other samplers
    give is drawn again, up to that batch.
    """
    loop, fetcher = trainer.fit_loop, trainer.fit_loop._data_fetcher
    progress, loaders = loop.epoch_loop.batch_progress, fetcher.combined_loader.flattened
    done, orders = progress.current.completed, [getattr(loader, "sampler", None) for loader in loaders]
    ours = all(isinstance(order, Order) for order in orders)
    if ours and not loop.restarting:
        return
    if loop.restarting and progress.is_last_batch:
        fetcher.iterator = iter(())  # the epoch has no batch left, whatever the loader has
        return
    for loader, order in zip(loaders, orders, strict=True):
        if hasattr(order, "set_epoch"):
            order.set_epoch(trainer.current_epoch)
        if isinstance(order, Order):
            order.skip = done * loader.batch_size
    reseed(seed, ~trainer.current_epoch)
    iter(fetcher)
    if not ours:
        for _ in range(done):
            next(fetcher.iterator)
