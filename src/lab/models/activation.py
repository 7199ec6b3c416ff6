"""The nonlinearity of a model by its name, and the initialisation for it."""

from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def act(name: str) -> nn.Module:
    """A new module of that name; ValueError if there is none."""
    if name == "squared_relu":
        from ..ops.squared_relu import SquaredReLU  # here, so that `ops` can be deleted

        return SquaredReLU()
    if name not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {', '.join(ACTIVATIONS)}, squared_relu; got `{name}`")
    return ACTIVATIONS[name]()


def kaiming_(module: nn.Module) -> None:
    """Normal weights of variance 2 / fan-in, zero bias (arXiv:1502.01852); for `Module.apply`."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
