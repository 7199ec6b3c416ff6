import torch

from leyden.debug import tensors


def test_tensors_and_sizes_of_nested_containers():
    one, two = torch.zeros(2, 3), torch.zeros(4)
    assert [id(tensor) for tensor in tensors.tensors([{"x": one}, (two, 5)])] == [id(one), id(two)]
    assert tensors.sizes([{"x": one}, (two, 5)]) == "2 x 3, 4"
    assert tensors.sizes(3) == "-" and tensors.sizes(torch.tensor(1)) == "1"
    assert tensors.whole(one) is one
