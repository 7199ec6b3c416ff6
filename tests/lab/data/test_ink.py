import pytest
import torch
from sklearn.datasets import load_digits

from lab.data.digits import Digits, Ink


def test_sequences_are_the_pictures():
    source = load_digits()
    x, y = Ink().read("train")
    assert len(x) == 1797 and y.tolist() == source.target.tolist()
    for sequence, picture in zip(x, source.images, strict=True):
        rows, columns = sequence[:, 0].long(), sequence[:, 1].long()
        drawn = torch.zeros(8, 8)
        drawn[rows, columns] = sequence[:, 2]
        assert torch.equal(drawn * 16, torch.tensor(picture).float())
        assert sequence[:, 2].min() > 0 and (rows * 8 + columns).diff().min() > 0  # only ink, in scan order
    assert len({len(sequence) for sequence in x}) > 20


@pytest.mark.parametrize("fold", [None, 1])
@pytest.mark.parametrize("split_seed", [0, 7])
def test_splits_are_those_of_the_digits(split_seed, fold):
    ink, digits = Ink(split_seed=split_seed, fold=fold), Digits(split_seed=split_seed, fold=fold)
    for split, samples in ink.splits.items():
        assert torch.equal(samples.y, digits.splits[split].y)
        ink_of_pictures = (digits.splits[split].x > 0).flatten(1).sum(1)
        assert torch.equal(samples.lengths, ink_of_pictures)


def test_facts():
    facts = Ink().facts
    assert facts["kind"] == "sequence" and facts["shape"] == [None, 3] and facts["outputs"] == 10
    assert 3 < facts["mean"][0] < 4 and 0 < facts["mean"][2] < 1 and min(facts["std"]) > 0


def test_batches_are_padded_with_zeros_to_their_longest():
    data = Ink(batch_size=32)
    train = data.splits["train"]
    for (values, lengths), y, keys in data.train_dataloader():
        index = keys % len(train)
        assert values.shape == (32, int(lengths.max()), 3)
        assert torch.equal(lengths, train.lengths[index]) and torch.equal(y, train.y[index])
        for sequence, length, i in zip(values, lengths, index, strict=True):
            assert torch.equal(sequence[:length], train.x[i]) and not sequence[length:].any()


def share(loader):
    """Padding among all values of the batches of an epoch."""
    batches = [(values.shape, int(lengths.sum())) for (values, lengths), _, _ in loader]
    return 1 - sum(valid for _, valid in batches) / sum(shape[0] * shape[1] for shape, _ in batches)


def test_batches_of_similar_length_hold_less_padding():
    data = Ink(batch_size=32, drop_last=False)
    assert share(data.train_dataloader()) < share(data.loader("train")) / 4
