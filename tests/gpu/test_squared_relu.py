"""The operator's kernel on a GPU against its reference there."""

import pytest
import torch

from lab.ops.squared_relu import SquaredReLU, reference, squared_relu, squared_relu_backward
from leyden.ops import kernels
from leyden.run import paths

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """The library with its CUDA part, from the cache or built now."""
    if not kernels.load("squared_relu", paths.PROJECT / "src" / "lab" / "ops"):
        pytest.skip(f"no kernel: {kernels.found['squared_relu']}")
    if not torch._C._dispatch_has_kernel_for_dispatch_key("leyden::squared_relu", "CUDA"):
        pytest.skip("no nvcc")


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """A line, a channels-last picture, a slice with gaps, an expanded column, nothing, and special values."""
    picture = torch.randn(2, 3, 9, 5).to(memory_format=torch.channels_last)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-30, -1.0])
    sizes = [torch.randn(100_003), picture, torch.randn(40, 41)[::3, 1::2], torch.randn(5, 1).expand(5, 6)]
    return [x.to("cuda", dtype) for x in [*sizes, torch.empty(0, 4), special]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_values_are_those_of_the_reference(dtype):
    for x in inputs(dtype):
        ours, theirs, grad = x.clone().requires_grad_(), x.clone().requires_grad_(), torch.randn_like(x)
        y, z = squared_relu(ours), reference(theirs)
        y.backward(grad)
        z.backward(grad)
        torch.testing.assert_close(y, z, equal_nan=True)
        torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


def test_opcheck_and_derivatives():
    for x in inputs():
        torch.library.opcheck(squared_relu.default, (x.clone().requires_grad_(),))
        torch.library.opcheck(squared_relu_backward.default, (torch.ones_like(x), x))
    x = torch.randn(4, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, (x,)) and torch.autograd.gradgradcheck(squared_relu, (x,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_compile(dtype):
    x = torch.full((3,), 300.0, dtype=dtype, device="cuda")
    with torch.autocast("cuda", dtype):
        assert torch.equal(squared_relu(x).cpu(), x.float().square().cpu())
    compiled = torch.compile(SquaredReLU(), fullgraph=True)
    torch.testing.assert_close(compiled(x.float()), reference(x.float()))
