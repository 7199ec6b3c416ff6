import pytest
import torch
import torchvision

from lab.models.torchvision import Torchvision


@pytest.mark.parametrize(
    "arch", ["resnet18", "squeezenet1_1", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x0_5"]
)
def test_head_and_backbone(arch):
    net = Torchvision((3, 40, 40), 7, arch=arch)
    assert net.training and net(torch.randn(2, 3, 40, 40)).shape == (2, 7)
    whole = {id(p) for p in net.parameters()}
    assert whole == {id(p) for part in (net.backbone, net.head) for p in part.parameters()}
    assert 1000 not in {len(p) for p in net.parameters()}  # nothing is left of the classes of ImageNet


def test_the_backbone_is_torchvisions():
    torch.manual_seed(1)
    reference = torchvision.models.resnet18()
    torch.manual_seed(1)
    net = Torchvision((3, 32, 32), 2)
    reference.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net.backbone.eval()(x), reference.eval()(x))


@pytest.mark.parametrize("planes", [1, 2, 4])
def test_other_numbers_of_channels(planes):
    net = Torchvision((planes, 8, 8), 2).eval()
    x = torch.randn(2, planes, 8, 8)
    torch.testing.assert_close(net(x), net(x.mean(1, keepdim=True).repeat(1, 3, 1, 1)))


def test_auxiliary_outputs_are_gone():
    assert Torchvision((3, 64, 64), 2, arch="googlenet")(torch.randn(2, 3, 64, 64)).shape == (2, 2)


def test_size():
    assert Torchvision((1, 8, 8), 2, arch="squeezenet1_1", size=64)(torch.randn(2, 1, 8, 8)).shape == (2, 2)
    with pytest.raises(ValueError, match=r"8 x 8.*model.size=224"):
        Torchvision((1, 8, 8), 2, arch="squeezenet1_1")


def test_unknown_names():
    with pytest.raises(ValueError, match="Unknown model resnet81"):
        Torchvision((3, 32, 32), 2, arch="resnet81")
    with pytest.raises(ValueError, match="IMAGENET1K_V1"):
        Torchvision((3, 32, 32), 2, weights="IMAGENET")


def test_weights_that_cannot_be_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ValueError, match=r"resnet18.*model.weights=null"):
        Torchvision((3, 32, 32), 2, weights="DEFAULT")
