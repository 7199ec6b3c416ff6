"""Watches the gradients of each layer, and names those that vanish or explode."""

import logging
from statistics import median
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.optim import Optimizer

from leyden.replay import whole

log = logging.getLogger(__name__)
SMALL = 1e-4  # a gradient vanishes below this share of the largest one, and below this norm
LARGE = 100.0  # it explodes above this norm, and above so many times the smallest one
ODD = 1e-4, 1e3  # times the usual size of the weights: a layer that was initialised wrongly
AGAIN = 3  # measurements in a row for what may pass: zeros of a layer that starts at zero
Stats = dict[str, dict[str, float]]  # of each layer


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
        self.low: dict[str, int] = {}  # measurements in a row in which a layer's gradient was small
        self.said: set[str] = set()  # layers that were named
        self.found: Stats = {}  # of the running step
        self.before: dict[str, list[Tensor]] = {}  # weights of each layer before the step

    def due(self, step: int) -> bool:
        return self.last < 0 or step // self.every_n_steps > self.last // self.every_n_steps

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        step = trainer.global_step + 1
        if not self.due(step):
            return
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        layers: dict[str, list[Tensor]] = {}
        for name, parameter in task.named_parameters():
            if parameter in held and parameter.grad is not None:
                layers.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        if layers:
            self.found |= stats(layers, scale(trainer, optimizer))
            self.before |= {name: [whole(p.detach()).clone() for p in part] for name, part in layers.items()}
            self.parameters = layers
            if self.histograms_every and self.measured % self.histograms_every == 0:
                self.draw(trainer, layers, step)

    def draw(self, trainer: Trainer, layers: dict[str, list[Tensor]], step: int) -> None:
        for name, part in layers.items():
            values = torch.cat([whole(p.grad.detach()).to_dense().float().flatten() for p in part])
            for logger in trainer.loggers if values.isfinite().all() else []:
                if isinstance(logger, TensorBoardLogger):
                    logger.experiment.add_histogram(f"gradients/{name}", values.cpu(), step)

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        if not self.found:
            return
        moved = [size([whole(n) - o for n, o in zip(self.parameters[name], self.before[name], strict=True)])
                 / size(self.before[name]).clamp(min=1e-30) for name in self.parameters]  # fmt: skip
        for name, ratio in zip(self.parameters, torch.stack(moved).tolist(), strict=True):
            self.found[name]["update_ratio"] = ratio
        step, found = trainer.global_step, self.found
        self.last, self.measured, self.found, self.before = step, self.measured + 1, {}, {}
        shown = {f"gradients/{key}/{name}": row[key] for name, row in found.items() for key in row if key[0] != "_"}
        for logger in trainer.loggers:
            logger.log_metrics(shown, step)
        total = sum(row["norm"] ** 2 for row in found.values()) ** 0.5
        ranked = sorted(found, key=lambda name: found[name]["norm"])
        ratios = [row["update_ratio"] for row in found.values() if "update_ratio" in row]
        if not trainer.is_global_zero:
            return
        log.info(
            "gradients at step %d: norm %.3g, largest %s %.3g, smallest %s %.3g, median update/weight %.2g",
            step, total, ranked[-1], found[ranked[-1]]["norm"], ranked[0], found[ranked[0]]["norm"], median(ratios),
        )  # fmt: skip
        self.judge(found, step)

    def judge(self, found: Stats, step: int) -> None:
        """Name, once, the layers whose gradients are out of line with the others."""
        norms = {name: row["_weights"] for name, row in found.items()}
        largest, smallest = max(norms.values()), min(norms.values())
        if largest == 0 and "all" not in self.said:
            self.said.add("all")
            log.warning("The gradient of each layer's weights is zero at step %d: %s", step, NOTHING)
        small = [name for name, norm in norms.items() if norm < SMALL * largest and norm < SMALL]
        self.low = {name: self.low.get(name, 0) + 1 for name in small}
        sure = [name for name in small if self.low[name] >= AGAIN or (self.measured == 1 and norms[name] > 0)]
        large = [name for name, norm in norms.items() if not norm <= LARGE and not norm <= LARGE * smallest]
        for layers, what, remedy in ((sure, "vanish", VANISH), (large, "explode", EXPLODE)):
            new = [name for name in layers if name not in self.said]
            if new:
                self.said |= set(new)
                other = max(norms, key=norms.__getitem__) if what == "vanish" else min(norms, key=norms.__getitem__)
                named = ", ".join(f"{name} ({norms[name]:.1e})" for name in new[:5]) + ", ..." * bool(new[5:])
                log.warning(
                    "Gradients %s in %s at step %d, while that of %s is %.1e. %s",
                    what, named, step, other, norms[other], misfits(found) or remedy,
                )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "measured": self.measured, "low": self.low, "said": sorted(self.said)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"said": set(state["said"])})


NOTHING = (
    "the loss does not depend on them. Usual causes: ReLUs that give nothing but zeros (a large negative bias, a step "
    "that was too large), a detach or an argmax on the way to the loss, or a loss that is constant."
)
VANISH = (
    "Usual remedies: another initialisation (nn.init.kaiming_normal_), ReLU or GELU in place of sigmoid or tanh, "
    "normalisation between the layers, residual connections round them."
)
EXPLODE = (
    "Usual remedies: trainer.gradient_clip_val=1, a smaller optimizer.lr, another initialisation "
    "(nn.init.kaiming_normal_), normalisation between the layers."
)


def misfits(found: Stats) -> str:
    """A sentence on layers whose weights have another size than those of the others; empty where there is none."""
    sizes = {name: row["_size"] for name, row in found.items() if row["_size"] >= 0}
    usual = median(sizes.values()) if sizes else 0.0
    odd = [name for name, value in sizes.items() if not ODD[0] * usual <= value <= ODD[1] * usual]
    if not odd or not usual:
        return ""
    named = ", ".join(f"those of {name} are {sizes[name]:.1e}" for name in odd[:5])
    return (
        f"The cause is the size of the weights: {named}, usual is {usual:.1e}; initialise them as the others are, with "
        "nn.init.kaiming_normal_."
    )


def scale(trainer: Trainer, optimizer: Optimizer) -> float:
    """What the gradients are still multiplied by: a fused optimizer divides them by the loss scale itself."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler and getattr(optimizer, "_step_supports_amp_scaling", False) else 1.0


def size(tensors: list[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(tensor.detach().float()) for tensor in tensors]).norm()


def stats(layers: dict[str, list[Tensor]], scale: float) -> Stats:
    """Numbers of the gradients of each layer, read from the device at once.

    `_weights` is the norm for the matrices and kernels alone, whose bias may have a gradient where they have none;
    `_size` the root of the mean square of their values, -1 where there are none.
    """
    rows, counts = [], []
    for part in layers.values():
        grads = [whole(p.grad.detach()).to_dense() for p in part]
        flat = torch.cat([grad.float().flatten() for grad in grads]) / scale
        inner = [i for i, p in enumerate(part) if p.ndim >= 2]
        weights = size([grads[i] for i in inner or range(len(grads))]) / scale
        count = sum(part[i].numel() for i in inner)
        magnitude = size([whole(part[i].detach()) for i in inner]) / count**0.5 if inner else flat.new_tensor(-1.0)
        rows.append(torch.stack([flat.norm(), flat.mean(), flat.std(correction=0), (flat == 0).float().mean(),
                                 weights, magnitude]))  # fmt: skip
        counts.append(count)
    names = ("norm", "mean", "std", "zeros", "_weights", "_size")
    table = torch.stack(rows).tolist()
    return {layer: dict(zip(names, row, strict=True)) for layer, row in zip(layers, table, strict=True)}
