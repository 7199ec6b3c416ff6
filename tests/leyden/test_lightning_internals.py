"""What ranks log and read is what one process would."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.trainer.states import RunningStage
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from leyden.lightning_internals import RankLoader, joint
from leyden.resume import exact
from leyden.resume.exact import Share
from leyden.run import build
from leyden.tasks.supervised import Supervised

DATA = range(101)


def loaders(make, mode=RunningStage.TRAINING, world=2, deal=True):
    """A user's loader as each of the ranks gets it."""
    made = make()
    settings = SimpleNamespace(use_distributed_sampler=deal, is_distributed=True)
    for rank in range(world):
        trainer = SimpleNamespace(world_size=world, global_rank=rank, _accelerator_connector=settings)
        connector = RankLoader(trainer)
        connector.share = Share
        yield connector._prepare_dataloader(made, shuffle=True, mode=mode)


def read(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("world", [1, 2, 3, 7, 101])
@pytest.mark.parametrize("sampler", [SequentialSampler, RandomSampler])
def test_each_sample_is_evaluated_once_and_ranks_train_equally_long(world, sampler):
    shares = [Share(sampler(DATA), rank, world, equal=False) for rank in range(world)]
    assert sorted(i for share in shares for i in share) == list(DATA)
    assert all(len(share) == len(list(share)) for share in shares)
    shares = [list(Share(sampler(DATA), rank, world, equal=True)) for rank in range(world)]
    assert {len(share) for share in shares} == {-(-101 // world)} and {i for share in shares for i in share} == set(
        DATA
    )


def test_ranks_draw_alike_whatever_they_have_drawn_before():
    torch.manual_seed(1)
    first = list(Share(RandomSampler(DATA), 0, 2, equal=False))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = Share(RandomSampler(DATA), 1, 2, equal=False)
    assert sorted(first + list(second)) == list(DATA) and torch.equal(torch.get_rng_state(), before)
    drawn = list(second)
    second.set_epoch(1)
    assert list(second) != drawn


@pytest.mark.parametrize("mode", [RunningStage.TRAINING, RunningStage.VALIDATING])
def test_a_batch_sampler_of_torch_keeps_its_size_its_order_and_what_it_draws(mode):
    def shuffled():
        return DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 20, False))

    first, second = map(read, loaders(shuffled, mode))
    assert [len(batch) for batch in first] == [20, 20, 11]
    assert {i for batch in first + second for i in batch} == set(DATA) and first[0] != sorted(first[0])

    weights = [0.0] * 100 + [1.0]
    for loader in loaders(
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(WeightedRandomSampler(weights, 40), 8, True)), mode
    ):
        assert read(loader) == [[100] * 8] * 2
    for loader in loaders(lambda: DataLoader(DATA, 8, sampler=WeightedRandomSampler(weights, 40)), mode):
        assert read(loader) == [[100] * 8] * 2 + [[100] * 4]


class Pairs(BatchSampler):
    """A user's own."""


class Fixed:
    """Batches of a kind that knows no sampler."""

    def __iter__(self):
        return iter([list(range(100)), [100]])

    def __len__(self):
        return 2


class Loader(DataLoader):
    def __init__(self, data, batch_size=1, shuffle=False, fill=0, **others):
        super().__init__(data, batch_size, shuffle, collate_fn=lambda rows: torch.tensor(rows) + fill, **others)


class Closed(DataLoader):
    def __init__(self, data):
        super().__init__(data, 10)


def test_loaders_of_all_kinds_are_divided():
    order = [read(loader) for loader in loaders(lambda: DataLoader(DATA, 25))]  # to be read as it stands
    assert sorted(order[0][0] + order[1][0]) == list(range(50))
    for make in (
        lambda: DataLoader(DATA, 10, False),
        lambda: DataLoader(DATA, 10, True),
        lambda: Loader(DATA, 10, fill=0),
        lambda: DataLoader(DATA, batch_sampler=Pairs(SequentialSampler(DATA), 10, False)),
        lambda: DataLoader(DATA, batch_sampler=Fixed()),
        lambda: Closed(DATA),
    ):
        seen = [read(loader) for loader in loaders(make, RunningStage.TESTING)]
        assert sorted(i for batches in seen for batch in batches for i in batch) == list(DATA)


def test_what_is_divided_already_is_left_alone():
    plain = DataLoader(DATA, 10)
    assert list(loaders(lambda: plain, deal=False)) == [plain, plain]
    ordered = DataLoader(DATA, sampler=exact.Order(101))
    assert list(loaders(lambda: ordered)) == [ordered, ordered]
    assert [len(read(loader)) for loader in loaders(lambda: DataLoader(range(1), 4), RunningStage.TESTING)] == [1, 1]


@pytest.mark.parametrize("length", [100, 101, 102, 119, 121, 199, 201])
def test_ranks_evaluate_equally_many_batches(length):
    """What a step sends to the others would wait for one that has none left."""
    data = range(length)
    batches = [read(loader) for loader in loaders(lambda: DataLoader(data, 10), RunningStage.VALIDATING)]
    assert len({len(part) for part in batches}) == 1 and max(len(batch) for batch in batches[0]) >= 9
    assert sorted(i for part in batches for batch in part for i in batch) == list(data)


def test_a_joint_value_is_that_of_all_samples():
    assert joint([(51 * 50.0, 51.0, "mean"), (50 * 50.0, 50.0, "mean")]) == 50
    assert joint([(6.0, 1.0, "mean"), (0.0, 0.0, "mean")]) == 6  # another rank has logged nothing
    assert [joint([(2.0, 1.0, name), (3.0, 1.0, name)]) for name in ("sum", "max", "min")] == [5, 3, 2]
    assert joint([(float("nan"), 1.0, "max"), (3.0, 1.0, "max")]) != 3


class Watch(Callback):
    """Notes the hooks that it has."""

    def __init__(self):
        self.seen = set()

    def on_after_backward(self, trainer, task):
        self.seen.add("backward")

    def on_test_batch_end(self, trainer, task, outputs, batch, batch_idx, dataloader_idx=0):
        self.seen.add("test")


def test_only_hooks_that_somebody_has_written_are_called(train, monkeypatch):
    watch, watchers = Watch(), build.watchers
    given = LambdaCallback(on_before_zero_grad=lambda *_: watch.seen.add("lambda"))
    monkeypatch.setattr(build, "watchers", lambda cfg: [*(made := watchers(cfg))[:-1], watch, given, made[-1]])
    monkeypatch.setattr(Supervised, "on_before_zero_grad", lambda self, optimizer: watch.seen.add("task"), False)
    train("trainer.max_epochs=1")
    assert watch.seen == {"backward", "test", "lambda", "task"}
    assert watch.on_train_batch_end is None and callable(watch.on_after_backward)
