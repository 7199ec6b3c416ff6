"""Whether a model learns: the gradients of each layer, and whether one batch can be learnt by heart."""

import logging
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.optim import Optimizer

from leyden.debug.layers import flat

log = logging.getLogger(__name__)
SMALL = 1e-4  # a gradient vanishes below this norm and this share of the largest one
LARGE = 100.0  # it explodes above this norm, and above so many times the smallest one


class Gradients(Callback):
    """Logs norm, mean, std, share of zeros and the step's size over the weights' size, of each layer's gradients.

    They are taken after unscaling, after all batches of an accumulation and all ranks are in, and before clipping.

    Args:
        every_n_steps: optimizer steps between measurements, besides that of the first step
        histograms_every: measurements between histograms; 0: none
    """

    def __init__(self, every_n_steps: int = 50, histograms_every: int = 10):
        self.every_n_steps, self.histograms_every = every_n_steps, histograms_every
        self.layers: dict[str, tuple[list[nn.Parameter], Tensor, list[Tensor]]] = {}  # weights before the step, numbers
        self.small: set[str] = set()  # layers whose gradient was small in the last measurement
        self.named: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        measured, left = divmod(trainer.global_step + 1, self.every_n_steps)
        if left and trainer.global_step > 0:
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
                if self.histograms_every and measured % self.histograms_every == 0 and grad.isfinite().all():
                    for logger in trainer.loggers:
                        if isinstance(logger, TensorBoardLogger):
                            logger.experiment.add_histogram(f"gradients/{name}", grad.cpu(), trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        if not self.layers:
            return
        values, norms = {}, {}
        for name, (parameters, before, numbers) in self.layers.items():
            ratio = (flat(parameters) - before).norm() / before.norm().clamp(min=1e-30)
            row = zip(("norm", "mean", "std", "zeros", "update_ratio"), [*numbers, ratio], strict=True)
            values |= {f"gradients/{key}/{name}": float(value) for key, value in row}
            norms[name] = values[f"gradients/norm/{name}"]
        self.layers = {}
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step)
        self.judge(norms, trainer.global_step)

    def judge(self, norms: dict[str, float], step: int) -> None:
        """Log the extremes, and name, once, each layer whose gradient is out of line with the others'.

        A small one must be so twice in a row, as the first ones are behind a layer that starts at zero.
        """
        most, least = max(norms.values()), min(norms.values())
        log.info("gradients at step %d: the norms of the layers are from %.3g to %.3g", step, least, most)
        small = {name for name, norm in norms.items() if norm < SMALL and norm < SMALL * most}
        large = {name for name, norm in norms.items() if not norm <= LARGE and not norm <= LARGE * least}
        for what, found in ("vanish", small & self.small), ("explode", large):
            if new := [f"{name} ({norms[name]:.1e})" for name in norms if name in found - self.named]:
                log.warning("Gradients %s in %s at step %d.", what, ", ".join(new), step)
            self.named |= found
        self.small = small


class Overfit(Callback):
    """Compares the first and the last loss of one batch; `share` of the first one is close enough to zero."""

    def __init__(self, share: float = 0.05):
        self.share = share
        self.losses: list[Tensor] = []  # the first and the last
        self.idle: list[str] = []  # parameters without a gradient in the last step

    def on_before_backward(self, trainer: Trainer, task: LightningModule, loss: Tensor) -> None:
        self.losses = [*self.losses[:1], loss.detach()]

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        self.idle = [name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()]

    def on_train_end(self, trainer: Trainer, task: LightningModule) -> None:
        if not self.losses or not trainer.is_global_zero:
            return
        first, last = float(self.losses[0]), float(self.losses[-1])
        fell = f"the loss of one batch went from {first:.4g} to {last:.4g} in {trainer.global_step} steps"
        if last <= self.share * first:
            log.info("overfit: passed, %s.", fell)
            return
        cause = "a wrong optimizer.lr, too few steps, dropout or augmentation, or targets that do not belong to the inputs"
        if self.idle:
            cause = f"{self.idle[0]} (of {len(self.idle)} parameters) has no gradient: frozen, detached or unused"
        log.warning("overfit: NOT passed, %s. The likeliest causes: %s.", fell, cause)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]
