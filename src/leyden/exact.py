"""Orders and seeds as pure functions of counters, so that nothing depends on what ran before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
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

    def __len__(self) -> int:
        return self.length // self.world if self.draw else len(range(self.rank, self.length, self.world))

    def __iter__(self) -> Iterator[int]:
        order = self.draw(self.epoch) + self.epoch * self.length if self.draw else torch.arange(self.length)
        return iter(order[self.rank :: self.world][: len(self)].tolist())


def why_not(loader: Any) -> str | None:
    """Why a loader's order is no function of seed and epoch; None where it is."""
    if not isinstance(loader, DataLoader):
        return f"a {type(loader).__name__} gives the batches, which is no DataLoader of torch"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset, which alone knows its order"
    for sampler in (loader.sampler, loader.batch_sampler):
        if not isinstance(sampler, Order | None) and not type(sampler).__module__.startswith("torch.utils.data."):
            return f"{type(sampler).__name__} is not a sampler of torch or of leyden"
    return None
