"""Numbers of the gradients of each layer, and the names of layers whose gradients vanish or explode."""

import logging
from math import hypot
from statistics import median
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.optim import Optimizer

from leyden.debug.tensors import whole

log = logging.getLogger(__name__)
SMALL = 1e-4  # a gradient vanishes below this norm and this share of the largest one
LARGE = 100.0  # it explodes above this norm, and above so many times the smallest one
AGAIN = 3  # measurements in a row for what may pass: zeros behind a layer that starts at zero
NUMBERS = ("norm", "mean", "std", "zeros", "update_ratio")


class Gradients(Callback):
    """Logs norm, mean, std, share of zeros and the step's size over the weights' size, of each layer's gradients.

    They are taken after unscaling, after all batches of an accumulation and all ranks are in, and before clipping.

    Args:
        every_n_steps: optimizer steps between measurements
        histograms_every: measurements between histograms; 0: none
    """

    def __init__(self, every_n_steps: int = 50, histograms_every: int = 10):
        self.every_n_steps, self.histograms_every = every_n_steps, histograms_every
        self.last, self.measured = -1, 0  # the step of the last measurement, and how many there were
        self.small: dict[str, int] = {}  # measurements in a row in which a layer's gradient was small
        self.named: set[str] = set()
        self.layers: dict[str, tuple[list[nn.Parameter], Tensor, list[Tensor]]] = {}  # weights before the step, numbers

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        step = trainer.global_step + 1
        if self.last >= 0 and step // self.every_n_steps == self.last // self.every_n_steps:
            return
        scaler, scale = getattr(trainer.precision_plugin, "scaler", None), 1.0
        if scaler and getattr(optimizer, "_step_supports_amp_scaling", False):
            scale = scaler.get_scale()  # a fused optimizer divides by it itself, later
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for name, module in task.named_modules():
            parameters = [p for p in module.parameters(recurse=False) if p in held and p.grad is not None]
            if parameters:
                grad = flat([p.grad for p in parameters]) / scale
                numbers = [grad.norm(), grad.mean(), grad.std(correction=0), (grad == 0).float().mean()]
                self.layers[name or "task"] = parameters, flat(parameters), numbers
                if self.histograms_every and self.measured % self.histograms_every == 0 and grad.isfinite().all():
                    for logger in trainer.loggers:
                        if isinstance(logger, TensorBoardLogger):
                            logger.experiment.add_histogram(f"gradients/{name}", grad.cpu(), step)

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        if not self.layers:
            return
        rows = {}
        for name, (parameters, before, numbers) in self.layers.items():
            ratio = (flat(parameters) - before).norm() / before.norm().clamp(min=1e-30)
            rows[name] = dict(zip(NUMBERS, torch.stack([*numbers, ratio]).tolist(), strict=True))
        self.layers, self.last, self.measured = {}, trainer.global_step, self.measured + 1
        values = {f"gradients/{key}/{name}": value for name, row in rows.items() for key, value in row.items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, self.last)
        self.judge({name: row["norm"] for name, row in rows.items()}, [row["update_ratio"] for row in rows.values()])

    def judge(self, norms: dict[str, float], ratios: list[float]) -> None:
        """Log one line, and name, once, the layers whose gradients are out of line with the others."""
        ranked = sorted(norms.items(), key=lambda item: item[1])
        (_, least), (_, most) = ranked[0], ranked[-1]
        log.info(
            "gradients at step %d: norm %.3g, largest %s %.3g, smallest %s %.3g, median update/weight %.2g",
            self.last, hypot(*norms.values()), *ranked[-1], *ranked[0], median(ratios),
        )  # fmt: skip
        small = [name for name, norm in norms.items() if norm < SMALL and norm < SMALL * most]
        self.small = {name: self.small.get(name, 0) + 1 for name in small}
        sure = {name for name in small if self.small[name] >= AGAIN or (self.measured == 1 and norms[name] > 0)}
        large = {name for name, norm in norms.items() if not norm <= LARGE and not norm <= LARGE * least}
        for what, found, remedy in (
            ("vanish", sure, "another initialisation, normalisation layers or residual connections"),
            ("explode", large, "trainer.gradient_clip_val=1, a smaller optimizer.lr or another initialisation"),
        ):
            if new := [f"{name} ({norms[name]:.1e})" for name in norms if name in found - self.named]:
                log.warning("Gradients %s in %s at step %d; try %s.", what, ", ".join(new), self.last, remedy)
                self.named |= found

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "measured": self.measured, "small": self.small, "named": sorted(self.named)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"named": set(state["named"])})


def flat(tensors: list[Any]) -> Tensor:
    """A copy of all values, one after the other."""
    return torch.cat([whole(tensor.detach()).to_dense().float().flatten() for tensor in tensors])
