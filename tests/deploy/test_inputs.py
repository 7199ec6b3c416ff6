"""The order of inputs, and their parts for ranks and workers."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader

from leyden import UserError
from leyden.data.samples import whole
from leyden.deploy.inputs import Stream, below, joined
from leyden.deploy.sample import Sample


def source():
    for number in range(23):
        yield Sample(str(number), (lambda number=number: read(number)))


def read(number):
    if number % 5 == 3:
        raise UserError(f"{number} is bad")
    return torch.full((2,), float(number))


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (2, 0), (3, 2)])
def test_each_input_once_and_in_order(world, workers):
    ranks = [
        list(DataLoader(Stream(source, 4, rank, world), None, num_workers=workers, collate_fn=whole))
        for rank in range(world)
    ]
    batches = [batch for row in itertools.zip_longest(*ranks) for batch in row if batch]
    assert [name for batch in batches for name in batch["names"]] == [str(number) for number in range(23)]
    for batch in batches:
        good = [name for name, error in zip(batch["names"], batch["errors"], strict=True) if error is None]
        assert batch["x"][0][:, 0].tolist() == [float(name) for name in good]
        assert all(
            error in (None, f"{name} is bad") for name, error in zip(batch["names"], batch["errors"], strict=True)
        )


def test_sequences_are_padded():
    values, lengths = joined([torch.ones(3, 2), torch.ones(5, 2)])
    assert values.shape == (2, 5, 2) and lengths.tolist() == [3, 5] and values.sum() == 16
    assert joined([]) is None


def test_a_folder_in_the_order_of_names(tmp_path):
    for name in ("b.png", "a.PNG", ".c.png", "d.txt", "x/z.png", "x/a.png", ".h/e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [name for name, _ in below(str(tmp_path), (".png",))] == ["a.PNG", "b.png", "x/a.png", "x/z.png"]
