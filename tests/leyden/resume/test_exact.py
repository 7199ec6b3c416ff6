import random

import numpy as np
import torch
from torch.utils.data import DataLoader, SequentialSampler

from leyden.resume import exact


def test_mix_separates_counters():
    seeds = {exact.mix(a, b) for a in range(50) for b in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)


def draws():
    return float(torch.rand(())), np.random.rand(), random.random()


def test_what_is_isolated_leaves_all_generators_alone():
    exact.reseed(1)
    expected = draws()
    exact.reseed(1)
    with exact.isolated(5):
        inside = draws()
    assert draws() == expected != inside
    with exact.isolated(5):
        assert draws() == inside


def test_shuffled_is_a_permutation_of_seed_and_epoch():
    first = exact.shuffled(100, 1, 0)
    assert torch.equal(first.sort().values, torch.arange(100))
    assert torch.equal(first, exact.shuffled(100, 1, 0))
    assert not torch.equal(first, exact.shuffled(100, 1, 1))
    assert not torch.equal(first, exact.shuffled(100, 2, 0))


def test_balanced_draws_classes_equally():
    y = torch.tensor([0] * 900 + [1] * 100)
    share = y[exact.balanced(y, 0, 0)].double().mean()
    assert 0.4 < share < 0.6


def test_bucketed_holds_each_once_and_similar_lengths_together():
    lengths = torch.randint(1, 100, (1003,), generator=torch.Generator().manual_seed(0))
    order = exact.bucketed(lengths, 10, 0, 0)
    assert torch.equal(order.sort().values, torch.arange(1003))
    assert not torch.equal(order, exact.bucketed(lengths, 10, 0, 1))

    def padding(order):
        return sum(int(lengths[b].max() * len(b) - lengths[b].sum()) for b in order.split(10))

    assert padding(order) < padding(exact.shuffled(1003, 0)) / 3


def test_ranks_share_the_joint_batches():
    def draw(epoch):
        return exact.shuffled(101, 7, epoch)

    ranks = [exact.Order(101, rank, 2, draw) for rank in range(2)]
    for order in ranks:
        order.set_epoch(3)
    assert [len(order) for order in ranks] == [50, 50]
    one = (draw(3) + 3 * 101).tolist()
    first, second = (list(order) for order in ranks)
    for step in range(5):
        part = slice(step * 10, step * 10 + 10)
        assert sorted(first[part] + second[part]) == sorted(one[step * 20 : step * 20 + 20])


def test_evaluation_counts_each_sample_once():
    for world in (1, 2, 3, 7):
        keys = [key for rank in range(world) for key in exact.Order(5, rank, world)]
        assert sorted(keys) == list(range(5))


def test_ranks_that_may_read_the_same_samples_are_named():
    assert "unless it divides its samples" in exact.why_not([1], world=2) and "divides" not in exact.why_not([1])
    loader = DataLoader(range(9), sampler=exact.Share(SequentialSampler(range(9)), 0, 2, equal=True))
    assert exact.why_not(loader, world=2) is None
