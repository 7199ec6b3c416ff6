"""What every network for pictures does, whatever their size."""

import importlib.util

import pytest
import torch
from hydra.utils import get_object

NAMES = ["lab.models.mlp.MLP", "lab.models.cnn.CNN", "lab.models.resnet.ResNet", "lab.models.vit.ViT"]
MODELS = [get_object(name) for name in NAMES if importlib.util.find_spec(name.rpartition(".")[0])]  # not deleted
SHAPES = [(1, 1, 1), (3, 1, 20), (1, 7, 9), (1, 8, 8), (3, 33, 17), (1, 28, 28)]
each_model = pytest.mark.parametrize("model", MODELS)


@each_model
@pytest.mark.parametrize("shape", SHAPES)
def test_shape(model, shape):
    assert model(list(shape), 5)(torch.randn(2, *shape)).shape == (2, 5)


@each_model
def test_gradients_reach_all(model):
    net = model((3, 9, 8), 4)
    for parameter in net.parameters():  # what starts at zero would hold back the gradient of what comes before it
        torch.nn.init.normal_(parameter, std=0.1)
    net(torch.randn(6, 3, 9, 8)).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


@each_model
def test_eval_is_per_sample(model):
    net = model((1, 8, 8), 3)
    net(torch.randn(16, 1, 8, 8))  # BatchNorm takes its statistics
    net.eval()
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        together = net(x)
        assert torch.equal(together, net(x))
        alone = torch.cat([net(sample[None]) for sample in x])
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)


@each_model
def test_same_seed_same_weights(model):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(model((1, 8, 8), 3).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))


@each_model
def test_learns_a_batch(model):
    torch.manual_seed(0)
    net, x, y = model((1, 8, 8), 4), torch.randn(32, 1, 8, 8), torch.arange(32) % 4
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, fused=True)
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    assert loss < 0.3


@each_model
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripts(model):
    net, x = model((1, 8, 8), 3).eval(), torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(torch.jit.script(net)(x), net(x))


@each_model
def test_exports_with_any_batch(model):
    net = model((1, 8, 8), 3).eval()
    program = torch.export.export(net, (torch.randn(3, 1, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for batch in (1, 5):
        x = torch.randn(batch, 1, 8, 8)
        torch.testing.assert_close(program.module()(x), net(x))


@each_model
def test_head_is_the_last_layer(model):
    """Fine-tuning freezes all but `head`."""
    net = model((1, 8, 8), 7)
    assert isinstance(net.head, torch.nn.Linear) and net.head.out_features == 7
