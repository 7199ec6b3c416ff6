"""Which targets of a config that comes from a run directory may be built."""

import logging
from collections.abc import Iterator
from typing import Any

import torchmetrics
from hydra.utils import get_object
from lightning import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, Sampler
from torchvision.transforms import v2

from leyden import UserError
from leyden.data.augment import Transform

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # what it says of a missing target our sentence says, too
KINDS = (
    nn.Module, Optimizer, LRScheduler, LightningDataModule, Dataset, Sampler, Callback, Logger, Profiler, Strategy,
    torchmetrics.Metric, v2.Transform, Transform, Trainer,
)  # fmt: skip
PREFIXES = ("leyden", "torch", "torchvision", "lightning", "torchmetrics")
FUNCTIONS = {f"leyden.schedules.{name}" for name in ("constant", "cosine", "onecycle", "step")}


def targets(node: Any) -> Iterator[str]:
    """Each `_target_` of a plain container, however deep."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from targets(child)


def check_targets(cfg: DictConfig) -> None:
    """Let a config from a run directory build only classes of the kinds that a run is made of.

    Raises:
        UserError: a target is something else.
    """
    prefixes = (*PREFIXES, *cfg.trusted)
    for target in targets(OmegaConf.to_container(cfg, resolve=True)):
        if target in FUNCTIONS:
            continue
        allowed = any(target.startswith(f"{prefix}.") for prefix in prefixes)
        allowed &= not target.startswith("torchvision.datasets.")  # some of them read pickles
        try:
            found = get_object(target) if allowed else None
        except Exception as error:  # whatever the import raises: the target is not there
            cause = " ".join(str(error).split())
            raise UserError(f"The stored config wants {target}, which is missing ({cause}); set PYTHONPATH.") from error
        if not (isinstance(found, type) and issubclass(found, KINDS)):
            own = "" if allowed else f"; if it is of a package of yours, type 'trusted=[{target.split('.')[0]}]'"
            raise UserError(
                f"The stored config wants to build {target}, which may not be trusted: it is no class of ours, torch's "
                f"or Lightning's that a run is made of{own}."
            )
