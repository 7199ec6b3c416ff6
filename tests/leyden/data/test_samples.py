import torch

from leyden.data.samples import moments


def test_moments_are_those_of_the_floats():
    x = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = moments([x])
    exact = (x.double() / 255).transpose(0, 1).flatten(1)
    assert torch.allclose(torch.tensor(mean, dtype=torch.float64), exact.mean(1))
    assert torch.allclose(torch.tensor(std, dtype=torch.float64), exact.std(1, correction=0))
    assert moments([torch.tensor([[1.0, 5.0], [3.0, 5.0]])]) == ([2.0, 5.0], [1.0, 1.0])  # 1 where nothing differs
