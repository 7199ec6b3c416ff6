"""Any classification network of torchvision, by its name, with or without its published weights."""

import difflib
from collections.abc import Sequence

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from lab.models import shape
from leyden import UserError


class Torchvision(nn.Module):
    """`backbone` up to the features, `head` of its own: B, C, H, W -> B x num_classes.

    `published` is where weights for it can be fetched from, None where it has them.

    Pictures that have not 3 channels enter as their mean, three times. UserError if the name is unknown, the weights
    cannot be had, or the network does not take pictures of this size.
    """

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
        self.published = None if weights else published(arch)
        self.backbone = network(arch, weights)
        self.head = nn.Linear(cut(self.backbone), num_classes)
        self.eval()
        try:
            with torch.no_grad():
                self(torch.zeros(1, planes, height, width))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise UserError(
                f"model.arch={arch} takes no pictures of {height} x {width}; set model.size=224."
            ) from error
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            x = x.mean(1, keepdim=True).expand(-1, 3, -1, -1)
        if self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return self.head(self.backbone(x))


def network(arch: str, weights: str | None) -> nn.Module:
    """The network as torchvision builds it, without auxiliary outputs."""
    known = torchvision.models.list_models(module=torchvision.models)
    if arch not in known:
        near = ", ".join(difflib.get_close_matches(arch, known, n=3, cutoff=0.0))
        raise UserError(f"model.arch: torchvision has no classification network '{arch}'; the nearest: {near}.")
    names = list(torchvision.models.get_model_weights(arch).__members__)
    if weights is not None and weights not in names:
        raise UserError(f"model.weights: {arch} has no '{weights}'; choose null, {', '.join(names)}.")
    try:
        net = torchvision.models.get_model(arch, weights=weights)
    except (OSError, RuntimeError) as error:  # no network; a file that is cut short
        raise UserError(
            f"model.weights: could not fetch those of {arch} ({error}); go online once, or type model.weights=null."
        ) from error
    for name in ("aux1", "aux2", "AuxLogits"):
        if hasattr(net, name):
            setattr(net, name, None)
            net.aux_logits = False
    return net


def published(arch: str) -> str | None:
    """The address of the published weights; None where there are none, or no such network."""
    known = arch in torchvision.models.list_models(module=torchvision.models)
    weights = next(iter(torchvision.models.get_model_weights(arch)), None) if known else None
    return weights and weights.url


def cut(net: nn.Module) -> int:
    """Takes the classifying layer out of the network; returns how many features come out instead."""
    kind = nn.Linear if any(isinstance(layer, nn.Linear) for layer in net.modules()) else nn.Conv2d  # SqueezeNet's
    name, layer = [(name, layer) for name, layer in net.named_modules() if isinstance(layer, kind)][-1]
    net.set_submodule(name, nn.Identity())
    return layer.weight.shape[1]
