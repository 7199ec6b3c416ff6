"""What classification and regression share."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.backends import cudnn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchmetrics import MetricCollection

from leyden import UserError, require
from leyden.tasks.optimizers import configure_optimizers, decayed

AT_ONCE = 2**14  # outputs for the metrics


class Supervised(LightningModule):
    """Learns y from x, with the metrics of a child; arguments are in conf/task/_supervised.yaml."""

    counted: tuple[str, ...] = ()  # in training, by `count`
    meaning = "outputs"  # of `readout`: probs, values or outputs

    def __init__(
        self,
        model: nn.Module,
        preprocess: nn.Module,
        loss: nn.Module,
        optimizer: partial,
        scheduler: partial,
        metrics: MetricCollection,
        monitor: str = "val/loss",
        l1: float = 0.0,
        gradient_penalty: float = 0.0,
        compile: bool = False,
    ):
        super().__init__()
        for name, part in ("model", model), ("preprocess", preprocess), ("loss", loss):
            require(isinstance(part, nn.Module), f"task.{name}", "a module with a `_target_`", part)

        self.model, self.preprocess, self.loss = model, preprocess, loss
        self.optimizer, self.scheduler, self.monitor = optimizer, scheduler, monitor
        self.l1, self.gradient_penalty = float(l1), float(gradient_penalty)
        self.val_metrics, self.test_metrics = metrics.clone(prefix="val/"), metrics.clone(prefix="test/")
        self.sums: dict[str, list[Any]] = {}  # by split: loss, counts, samples of the epoch
        self.kept: list[tuple[Tensor, Tensor]] = []  # for the metrics
        self.samples, self.compiles = 0, compile  # samples: of the last evaluation
        if compile and gradient_penalty:
            raise UserError("A compiled model has no second gradients; type task.compile=false.")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":  # which Lightning writes at each hook
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def forward(self, x: Any) -> Tensor:
        x = self.preprocess(x)
        if self.compiles and self.model._compiled_call_impl is None:
            self.model.compile(dynamic=not isinstance(x, Tensor))  # sequences have many lengths
        if not (self.gradient_penalty and self.training):
            return self.model(x)
        self.seen = (x if isinstance(x, Tensor) else x[0]).requires_grad_()
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.model.modules())
        # neither fused attention nor cuDNN's recurrent networks have second gradients
        with sdpa_kernel(SDPBackend.MATH), cudnn.flags(enabled=False) if recurrent else nullcontext():
            return self.model(x)

    def readout(self) -> nn.Module:
        """From the model's outputs to what they mean."""
        return nn.Identity()

    def step(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The mean loss, the model's outputs and y."""
        x, y = batch
        outputs = self(x)
        return self.loss(outputs, y), outputs, y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, outputs, y = self.step(batch)
        self.add("train", loss, len(y), *self.count(outputs.detach(), y))
        if (self.trainer.global_step + 1) % self.trainer.log_every_n_steps == 0:
            self.log("train/loss_step", loss.detach())
            self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"])
        return self.penalised(loss, len(y))

    def penalised(self, loss: Tensor, samples: int) -> Tensor:
        """The mean loss with its penalties (doi:10.1109/72.165600)."""
        if self.gradient_penalty:
            (gradient,) = torch.autograd.grad(loss * samples, self.seen, create_graph=True)
            loss = loss + self.gradient_penalty * gradient.square().sum() / samples
        if self.l1:
            loss = loss + self.l1 * sum(p.abs().sum() for p in decayed(self))
        return loss

    def add(self, split: str, loss: Tensor, samples: int, *counts: Tensor) -> None:
        """Sum up on the device, without waiting for it."""
        parts = [loss.detach().float() * samples, *counts, samples]
        self.sums[split] = [old + new for old, new in zip(self.sums.get(split, [0] * len(parts)), parts, strict=True)]

    def count(self, outputs: Tensor, y: Tensor) -> list[Tensor]:
        """The sum over the batch of each of `counted`."""
        return []

    def evaluate(self, batch: Any, split: str) -> Tensor:
        loss, outputs, y = self.step(batch)
        self.add(split, loss, len(y))
        self.kept.append((outputs, y))
        if outputs.numel() * len(self.kept) > AT_ONCE:
            self.update_metrics(split)
        return outputs

    def update_metrics(self, split: str) -> None:
        """Of several batches at once, which take as long as one."""
        outputs, y = zip(*self.kept, strict=True)
        getattr(self, f"{split}_metrics").update(torch.cat(outputs), torch.cat(y))
        self.kept = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.evaluate(batch, "test")

    def totals(self, split: str) -> tuple[dict[str, Tensor], int]:
        """The epoch's mean loss and counts over all ranks, and its samples."""
        names = ["loss", *(self.counted if split == "train" else ())]
        sums = self.sums.pop(split, [0] * (len(names) + 1))
        joint = torch.stack([torch.as_tensor(part, dtype=torch.float32, device=self.device) for part in sums])
        *means, samples = self.trainer.strategy.reduce(joint, reduce_op="sum")
        return {f"{split}/{name}": mean / samples for name, mean in zip(names, means, strict=True)}, int(samples)

    def end_evaluation(self, split: str) -> None:
        if self.kept:
            self.update_metrics(split)
        metrics = getattr(self, f"{split}_metrics")
        means, self.samples = self.totals(split)
        self.log_dict(means | metrics.compute())
        metrics.reset()

    def on_train_epoch_end(self) -> None:
        self.log_dict(self.totals("train")[0])
        if self.trainer.global_step % self.trainer.log_every_n_steps:  # else the last step said it
            self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_epoch_end(self) -> None:
        self.end_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self.end_evaluation("test")

    def configure_model(self) -> None:
        """Divide the model among devices that share it."""
        if self.device_mesh is not None and not isinstance(self.model, FSDPModule):
            for p in self.model.parameters():
                p.data = p.data.contiguous()  # channels_last cannot be divided
            for part in (*self.model.children(), self.model):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> dict[str, Any]:
        return configure_optimizers(self, self.optimizer, self.scheduler, self.monitor)
