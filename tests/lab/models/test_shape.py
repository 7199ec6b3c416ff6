import pytest
import torch

from lab.models import shape


def test_what_fits():
    assert shape.picture([3, 4, 5]) == (3, 4, 5)
    assert shape.features([None, 6]) == 6
    assert shape.size([3, 4, 5]) == 60 and shape.size([7]) == 7


@pytest.mark.parametrize(
    ("reader", "wrong", "words"),
    [
        (shape.picture, [4], "type model=mlp"),
        (shape.picture, [None, 4], "T x 4; type model=rnn"),
        (shape.picture, [1, 2, 3, 4], "pictures"),
        (shape.features, [6], "type model=mlp"),
        (shape.features, [4, 5], "sequences"),
        (shape.features, [1, 2, 3], "cnn"),
        (shape.size, [None, 3], "rnn or transformer"),
    ],
)
def test_what_does_not_is_told_what_does(reader, wrong, words):
    with pytest.raises(ValueError, match=words):
        reader(wrong)


def test_valid():
    assert shape.valid(torch.tensor([1, 3, 0]), 3).int().tolist() == [[1, 0, 0], [1, 1, 1], [1, 0, 0]]


def test_mean_counts_valid_steps_only():
    values, lengths = torch.randn(3, 7, 2), torch.tensor([7, 1, 4])
    expected = torch.stack([value[:length].mean(0) for value, length in zip(values, lengths, strict=True)])
    values[1, 1:] = float("nan")  # what stands in the padding does not matter
    torch.testing.assert_close(shape.mean(values, lengths), expected)
