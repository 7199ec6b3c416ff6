"""Any classifier of torchvision, with or without published weights."""

from collections.abc import Sequence

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from . import shape


class Torchvision(nn.Module):
    """A `backbone` and a linear `head`: B, C, H, W -> B x num_classes; other than 3 channels become 3 of their mean."""

    def __init__(
        self,
        in_shape: Sequence[int],
        num_classes: int,
        arch: str = "resnet18",
        weights: str | None = None,
        size: int | None = None,
    ):
        super().__init__()
        planes, height, width = shape.picture(in_shape)
        self.size = size
        self.backbone = network(arch, weights)
        self.head = nn.Linear(remove_classifier(self.backbone), num_classes)

        try:
            with torch.no_grad():
                self.eval()(torch.zeros(1, planes, height, width))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise ValueError(f"{arch} takes no pictures of {height} x {width}; type model.size=224") from error
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            x = x.mean(1, keepdim=True).expand(-1, 3, -1, -1)
        if self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return self.head(self.backbone(x))


def network(arch: str, weights: str | None) -> nn.Module:
    """The network without auxiliary outputs; ValueError where there is none."""
    known = list(torchvision.models.get_model_weights(arch).__members__)
    if weights not in (None, *known):
        raise ValueError(f"`weights` of {arch} must be one of null, {', '.join(known)}; got `{weights}`")
    try:
        net = torchvision.models.get_model(arch, weights=weights)
    except (OSError, RuntimeError) as error:  # no connection, or a damaged file
        fix = "go online once, or type model.weights=null"
        raise ValueError(f"the weights of {arch} cannot be fetched ({error}); {fix}") from error
    for name in ("aux1", "aux2", "AuxLogits"):
        if hasattr(net, name):
            setattr(net, name, None)
            net.aux_logits = False
    return net


def remove_classifier(net: nn.Module) -> int:
    """Remove the classifying layer; returns how many features it had."""
    kind = nn.Linear if any(isinstance(layer, nn.Linear) for layer in net.modules()) else nn.Conv2d  # SqueezeNet
    *_, (name, layer) = ((name, layer) for name, layer in net.named_modules() if isinstance(layer, kind))
    net.set_submodule(name, nn.Identity())
    return layer.weight.shape[1]
