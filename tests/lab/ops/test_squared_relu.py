"""The operator with its kernel against its reference, which has the same bits, and where PyTorch takes it."""

import copy
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import cpp_extension

from conftest import SMALL
from lab.models.cnn import CNN
from lab.models.mlp import MLP
from lab.models.resnet import ResNet
from lab.models.vit import ViT
from lab.ops.squared_relu import SquaredReLU, reference, squared_relu, squared_relu_backward
from leyden.ops import kernels
from leyden.run import paths

FOLDER = paths.PROJECT / "src" / "lab" / "ops"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
MODELS = [MLP, CNN, ResNet, ViT]
INPUTS = {
    "line": torch.randn(1037),
    "picture": torch.randn(2, 3, 9, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(7, 33).t(),
    "gaps": torch.randn(40, 41)[::3, 1::2],
    "expanded": torch.randn(5, 1).expand(5, 6),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
    "special": torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-30, -1e-30, 1e30] * 3),
}
RANKS = [*SMALL, "model.activation=squared_relu", "trainer=ddp", "trainer.accelerator=cpu", "debug=fast"]
pytestmark = pytest.mark.slow  # the library may have to be built
each_input = pytest.mark.parametrize("name", INPUTS)


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """The library, from the cache or built now."""
    if not kernels.load("squared_relu", FOLDER):
        pytest.skip(f"no kernel: {kernels.found['squared_relu']}")


class Direct(nn.Module):
    """A model of somebody who calls the operator itself."""

    def forward(self, x):
        return squared_relu(x + 1)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, check_stride=True)


@each_input
@pytest.mark.parametrize("dtype", TYPES)
def test_the_bits_are_those_of_the_reference(name, dtype):
    x = INPUTS[name].to(dtype)
    ours, theirs = x.detach().requires_grad_(), x.detach().requires_grad_()
    y, z = squared_relu(ours), reference(theirs)
    same(y, z)
    grad = torch.randn(x.shape).to(dtype)
    grad.masked_fill_(torch.rand(x.shape) < 0.2, float("inf"))
    y.backward(grad)
    z.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", sorted({*INPUTS} - {"special"}))  # which takes no NaN for another
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(name, grad):
    x = INPUTS[name].detach().requires_grad_(grad)
    torch.library.opcheck(squared_relu.default, (x,))
    torch.library.opcheck(squared_relu_backward.default, (torch.ones(()).expand_as(x), x))


def test_first_second_and_third_derivatives():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, (x,))
    assert torch.autograd.gradgradcheck(squared_relu, (x,))
    assert torch.autograd.gradgradcheck(squared_relu_backward, (torch.randn_like(x).requires_grad_(), x))


def test_the_number_of_threads_changes_no_bit():
    x, threads, found = torch.randn(300_001), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append((squared_relu(x), squared_relu_backward(x.flip(0), x)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="built elsewhere")
def test_the_library_is_parallel():
    library = kernels.build("squared_relu", FOLDER)
    assert b"GOMP_parallel" in library.read_bytes() or b"kmpc_fork_call" in library.read_bytes()


def test_what_is_no_gradient_of_x_is_refused():
    x = torch.randn(4)
    for grad in (torch.randn(3), torch.randn(4, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="one shape and type"):
            squared_relu_backward(grad, x)


def test_autocast_squares_in_float32():
    x = torch.full((3,), 300.0, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        y = squared_relu(x)
    assert y.dtype == torch.float32 and torch.equal(y, torch.full((3,), 90_000.0))
    y.sum().backward()
    assert x.grad.dtype == torch.float16 and torch.equal(x.grad, torch.full_like(x, 600))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_without_a_break(backend):
    x = torch.randn(6, 7, requires_grad=True)
    for function in (squared_relu, SquaredReLU()):
        compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
        same(compiled(x), reference(x))
        (grad,) = torch.autograd.grad(compiled(x).sum(), x)
        same(grad, 2 * reference(x).sqrt())


def test_an_export_of_the_module_needs_nothing_of_ours_and_that_of_the_operator_holds_it():
    x, batch = torch.randn(3, 4), ({0: torch.export.Dim("batch")},)
    for module, ours in ((nn.Sequential(nn.Linear(4, 4), SquaredReLU()), False), (Direct(), True)):
        program = torch.export.export(module.eval(), (x,), dynamic_shapes=batch)
        assert any("leyden" in str(node.target) for node in program.graph.nodes) == ours
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        x = torch.randn(5, 4)
        same(torch.export.load(file).module()(x), module(x))


@pytest.mark.filterwarnings("ignore")
def test_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    x, batch = torch.randn(3, 4), ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(SquaredReLU(), (x,), dynamo=True, dynamic_shapes=batch, verbose=False)
    program.save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    x = torch.randn(6, 4)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), reference(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", MODELS)
def test_every_picture_model_takes_it(model):
    net, x = model((1, 8, 8), 3, activation="squared_relu").eval(), torch.randn(4, 1, 8, 8)
    assert any(isinstance(module, SquaredReLU) for module in net.modules())
    net(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    for other in (torch.jit.script(net), torch.jit.trace(net, x), copy.deepcopy(net)):
        torch.testing.assert_close(other(x), net(x))


@pytest.mark.slow
def test_a_run_without_a_compiler_says_so_and_ends_in_the_same_bits(train, command, tmp_path):
    keys = ["model.activation=squared_relu", "trainer.precision=bf16-mixed", "trainer.max_epochs=1", "threads=1"]
    ours = train(*keys)
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CXX": "false"}
    done = command("train.py", *SMALL, *keys, "name=plain", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs in plain PyTorch") == 1
    theirs = tmp_path / "logs" / "train" / "plain"
    assert json.loads((ours / "run.json").read_text())["kernels"] == {"squared_relu": "compiled"}
    assert "false" in json.loads((theirs / "run.json").read_text())["kernels"]["squared_relu"]
    weights = [json.loads((run / "metrics.json").read_text())["weights_sha256"] for run in (ours, theirs)]
    assert weights[0] == weights[1]


@pytest.mark.stress
def test_two_ranks_without_a_compiler_say_so_once(command, tmp_path):
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CXX": "false"}
    done = command("train.py", *RANKS, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs in plain PyTorch") == 1


@pytest.mark.stress
def test_two_ranks_build_at_once(command, tmp_path):
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    done = command("train.py", *RANKS, env=env)
    assert done.returncode == 0 and "plain PyTorch" not in done.stdout, done.stderr
    assert len(list((tmp_path / "cache" / "leyden").glob("squared_relu-*.so"))) == 1


@pytest.mark.slow
def test_without_a_kernel_the_operator_is_right_too(tmp_path):
    code = """
import torch
from lab.ops import squared_relu as ours
INPUTS = torch.load("inputs.pt")
from leyden.ops import kernels
ours.SquaredReLU()
assert kernels.found['squared_relu'] != 'compiled'
for x in INPUTS.values():
    if not x.isnan().any():
        torch.library.opcheck(ours.squared_relu.default, (x.detach().requires_grad_(),))
        torch.library.opcheck(ours.squared_relu_backward.default, (torch.ones(()).expand_as(x), x))
    x = x.detach().requires_grad_()
    y, z = ours.squared_relu(x), ours.reference(x)
    torch.testing.assert_close(y, z, rtol=0, atol=0, equal_nan=True)
    grads = [torch.autograd.grad(result.sum(), x)[0] for result in (y, z)]
    torch.testing.assert_close(*grads, rtol=0, atol=0, equal_nan=True)
x = torch.randn(5, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(ours.squared_relu, (x,)) and torch.autograd.gradgradcheck(ours.squared_relu, (x,))
"""
    torch.save({name: INPUTS[name] for name in ("picture", "gaps", "expanded", "special")}, tmp_path / "inputs.pt")
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CXX": "false"}
    env["PYTHONPATH"] = str(paths.PROJECT / "src")
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("in plain PyTorch") == 1


@pytest.mark.slow
def test_nothing_is_built_that_is_not_asked_for(tmp_path):
    code = "import lab.models.cnn as m; m.CNN((1, 8, 8), 3)"
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PYTHONPATH": str(paths.PROJECT / "src")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not (torch.version.cuda and cpp_extension.CUDA_HOME), reason="no nvcc, or a torch without CUDA")
def test_the_cuda_source_compiles_without_a_gpu(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    library = kernels.build("squared_relu", FOLDER)
    code = f"""
import torch
from lab.ops import squared_relu
torch.ops.load_library({str(library)!r})
assert torch._C._dispatch_has_kernel_for_dispatch_key("leyden::squared_relu", "CUDA")
assert torch._C._dispatch_has_kernel_for_dispatch_key("leyden::squared_relu_backward", "CUDA")
"""
    env = os.environ | {"PYTHONPATH": str(paths.PROJECT / "src")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_the_command_measures_an_operator(configure):
    from benchmark import benchmark
    from leyden import UserError

    cfg = configure("op=squared_relu", "rounds=2", config="benchmark")
    assert benchmark(cfg) > 0
    found = json.loads((Path(cfg.run_dir) / "benchmark.json").read_text())
    assert set(found["seconds"]) == {"operator", "reference"}
    said = (Path(cfg.run_dir) / "train.log").read_text()
    assert all(word in said for word in ("squared_relu on cpu", "operator", "reference"))
    with pytest.raises(UserError, match=r"`op` must be a module of the operators; got `nope`"):
        benchmark(configure("op=nope", config="benchmark"))
