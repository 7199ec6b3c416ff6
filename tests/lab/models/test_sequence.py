import torch

from lab.models import sequence


def test_valid():
    assert sequence.valid(torch.tensor([1, 3, 0]), 3).int().tolist() == [[1, 0, 0], [1, 1, 1], [1, 0, 0]]


def test_mean_counts_valid_steps_only():
    values, lengths = torch.randn(3, 7, 2), torch.tensor([7, 1, 4])
    expected = torch.stack([value[:length].mean(0) for value, length in zip(values, lengths, strict=True)])
    values[1, 1:] = float("nan")  # what stands in the padding does not matter
    torch.testing.assert_close(sequence.mean(values, lengths), expected)
