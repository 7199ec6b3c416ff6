"""The private state of Lightning that we use: what a task logs, and what each rank reads."""

import copy
import time
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.trainer.connectors.data_connector import _DataConnector
from lightning.pytorch.trainer.connectors.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from lightning.pytorch.tuner.batch_size_scaling import _reset_dataloaders
from lightning.pytorch.utilities.exceptions import _TunerExitException
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from leyden import UserError, require

EndFit = _TunerExitException  # raised in a hook, it ends a fit as its end does
reload = _reset_dataloaders  # of a fit
fetcher = attrgetter("fit_loop._data_fetcher")  # of a Trainer: takes batches out of the loaders
AT_VALIDATIONS = 2**63 - 1  # frequency of a schedule that the keeper steps, and Lightning never
STEP_HOOKS = [name for name in dir(Callback) if "_batch_" in name or "_before_" in name or "backward" in name]


def gather(trainer: Trainer, mine: Any) -> list[Any]:
    """The objects of all ranks, in their order."""
    ranks = [mine] * trainer.world_size
    if trainer.world_size > 1:
        torch.distributed.all_gather_object(ranks, mine)
    return ranks


def logged(trainer: Trainer) -> dict[str, float]:
    """The last values of all names, as rank 0 has them: all ranks decide alike."""
    return gather(trainer, {name: float(value) for name, value in trainer.callback_metrics.items()})[0]


def describe(item: _ResultMetric) -> dict:
    """How a value was logged, as plain data."""
    sync = item.meta.sync.should, item.meta.sync.rank_zero_only
    return vars(item.meta) | {"reduce_fx": item.meta.reduce_fx.__name__, "_sync": sync}


def rebuild(trainer: Trainer, described: dict, is_tensor: bool = True) -> _ResultMetric:
    """A value that is logged as `describe` says, before the first time."""
    should, first = described["_sync"]
    sync = _Sync(trainer.strategy.reduce, should, first, described["reduce_fx"])
    return _ResultMetric(_Metadata(**described | {"_sync": sync}), is_tensor).to(trainer.strategy.root_device)


def step_values(trainer: Trainer) -> dict[str, float]:
    """What the task has logged at this step."""
    values = trainer.fit_loop.epoch_loop._results.metrics(on_step=True)["log"]
    return {name: float(value) for name, value in values.items()}


def epoch_values(trainer: Trainer) -> dict[str, float]:
    """What the task has logged for the epoch, or the validation, that ends here."""
    results: Any = trainer._results
    items = [item for item in results.values() if item.meta.on_epoch and not item.has_reset]
    names = {results._forked_name(item, on_step=False)[0] for item in items}
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name in names}


def running_values(trainer: Trainer) -> dict[str, tuple[dict, dict | None]]:
    """What this rank has logged in this epoch: how, and its state; None of a torchmetrics object."""
    results = trainer.fit_loop.epoch_loop._results.items()
    items = {key: item for key, item in results if not item.has_reset and item.meta.sync.group is None}
    return {key: (describe(item), dict(item.metric_state) if item.is_tensor else None) for key, item in items.items()}


def restore_running_values(trainer: Trainer, task: LightningModule, values: dict) -> None:
    """Go on with what `running_values` gave; its tensors must be on the task's device."""
    trainer._logger_connector._first_loop_iter = True  # else the first batch forgets what was logged
    for key, (described, state) in values.items():
        item = rebuild(trainer, described, state is not None)
        vars(item).update(state or {"value": task.get_submodule(described["metric_attribute"])})
        item._update_count = 1
        item._forward_cache = item.value if item.is_tensor and not item.meta.on_epoch else None
        trainer.fit_loop.epoch_loop._results[key] = item


def share_of(item: _ResultMetric, samples: int) -> tuple[float, float, str]:
    """A value of this rank (a mean times its weight), its weight, and how it is joined with others."""
    value, reduction = float(item.value), item.meta.reduce_fx.__name__
    if not item.meta.on_epoch:  # of the last step; `sync_dist` has joined it already
        return value, float(item._forward_cache is not None), "mean" if item.meta.sync.should else reduction
    weight = float(item.cumulated_batch_size) if reduction == "mean" else 0.0
    if weight == 1 and item.meta.fx.endswith("_epoch_end"):  # a mean over all of this rank
        return value * samples, float(samples), reduction
    return value, weight, reduction


def joint(shares: Any) -> float:
    """The value that one process would have logged."""
    values, weights, (reduction, *_) = zip(*shares, strict=True)
    if reduction == "mean":
        return sum(values) / (sum(weights) or float("nan"))
    return float(getattr(torch, reduction)(torch.tensor(values, dtype=torch.float64)))


def evaluated(loop: Any) -> int:
    """Samples of this rank, to weigh what is logged at the end; 1 where no loader says."""
    pairs = zip(loop._combined_loader.flattened, loop.max_batches, strict=True)
    dealt = [(x, n) for x, n in pairs if isinstance(getattr(x, "sampler", None), DistributedSampler) and x.batch_size]
    return sum(min(len(loader.sampler), batches * loader.batch_size) for loader, batches in dealt) or 1


class StepLogger(_LoggerConnector):
    """Asks once in a batch what has been logged."""

    def on_batch_end(self) -> None:
        results: Any = self.trainer._results
        self.seen = results.metrics(on_step=True)
        self._progress_bar_metrics.update(self.seen["pbar"])
        self._callback_metrics.update(self.seen["callback"])
        self._logged_metrics.update(self.seen["log"])
        results.batch = results.batch_size = None

    def update_eval_step_metrics(self, step: int) -> None:
        self.log_metrics(self.seen["log"], step=step)


class RankLogger(StepLogger):
    """Joins what the ranks log before it is read: Lightning has rank 0's values, or means of rounded weights."""

    def epoch_end_reached(self) -> None:
        super().epoch_end_reached()
        self.join()

    def on_epoch_end(self) -> None:
        self.join()
        super().on_epoch_end()

    def join(self) -> None:
        """Raises UserError where ranks have come to different loaders, and would wait for each other."""
        loop: Any = self.trainer._active_loop
        results = loop._results
        samples = 1 if results.training else evaluated(loop)
        mine = {
            key: (describe(item), share_of(item, samples))
            for key, item in results.items()
            if item.is_tensor and not (item.has_reset or item.meta.sync.rank_zero_only or item.meta.sync.group)
        }

        places, ranks = zip(*gather(self.trainer, (results.dataloader_idx, mine)), strict=True)
        if len({*places}) > 1:
            raise UserError("A rank has no batch of one of several loaders; give each rank samples of each loader.")

        for key in dict.fromkeys(key for rank in ranks for key in rank):
            described, shares = zip(*(rank[key] for rank in ranks if key in rank), strict=True)
            item = results.setdefault(key, rebuild(self.trainer, described[0]))  # others may have it alone
            item.has_reset, item._update_count = False, max(1, item._update_count)
            item._computed = item.value.new_tensor(joint(shares))
            if results.training and not item.meta.on_epoch:  # for what watches it
                self._callback_metrics[item.meta.name] = item._computed


class RankLoader(_DataConnector):
    """Deals a user's samples to the ranks, or the batches of a user's own batch sampler."""

    share: Any  # of a sampler's order: (sampler, rank, world, equal)

    def _prepare_dataloader(self, loader: Any, shuffle: bool, mode: Any) -> Any:
        # where it predicts, Lightning repeats nothing
        if mode == "predict" or not (isinstance(loader, DataLoader) and self._requires_distributed_sampler(loader)):
            return super()._prepare_dataloader(loader, shuffle, mode)

        batches, world = loader.batch_sampler, self.trainer.world_size
        plain = type(batches) is BatchSampler
        order: Any = batches.sampler if plain else batches or loader.sampler
        require(hasattr(order, "__len__"), "sampler", "of a known length where several processes share it", order)
        equal = mode == "train" or len(order) < world  # else a rank would have none
        share = self.share(order, self.trainer.global_rank, world, equal)

        mine = copy.copy(loader)
        vars(mine).update(sampler=share, batch_sampler=batches and share, _iterator=None)  # DataLoader refuses setattr
        if plain:
            size = share.even(batches.batch_size)
            vars(mine).update(batch_size=size, batch_sampler=BatchSampler(share, size, batches.drop_last))
        return mine


def time_fetches(trainer: Trainer, add: Any) -> None:
    """Add up the seconds in which batches are taken out of their loader."""
    loop: Any = trainer.fit_loop.epoch_loop
    before, after = loop._on_before_fetch, loop._on_after_fetch  # for the profiler
    loop._on_before_fetch = lambda: (before(), add(-time.perf_counter()))
    loop._on_after_fetch = lambda: (add(time.perf_counter()), after())


def join_ranks(trainer: Trainer, share: Any) -> None:
    """Let several ranks log and read together; `share` deals a sampler's order."""
    trainer._logger_connector = RankLogger(trainer) if trainer.world_size > 1 else StepLogger(trainer)
    if trainer.world_size > 1:
        trainer._data_connector = loader = RankLoader(trainer)
        loader.share = share
        # else a rank waits in its handler for others
        vars(trainer._signal_connector)["_sigterm_notifier_fn"] = lambda *_: None


def shorten_steps(trainer: Any, task: LightningModule) -> None:
    """Let Lightning pass over hooks that nobody has overridden, and look once at what does not change."""
    if trainer.world_size > 1:  # early stopping reads what is logged at the end of an epoch
        end: Any = task.on_train_epoch_end
        vars(task)["on_train_epoch_end"] = lambda: (end(), trainer._logger_connector.join())

    for each in (*trainer.callbacks, task):
        base: Any = LightningModule if each is task else Callback
        for name in STEP_HOOKS:
            unused = name not in vars(each) and getattr(type(each), name) is getattr(base, name)
            if unused and (each is not task or "train" in name or "_batch_" not in name):  # the rest is looked at
                vars(each)[name] = None

    if type(trainer.profiler) is PassThroughProfiler:  # else a generator, thirty times in a step
        vars(trainer.profiler)["profile"] = nullcontext

    training = trainer.fit_loop.epoch_loop
    if is_param_in_hook_signature(task.training_step, "batch_idx", min_args=2):
        training._build_kwargs = lambda _, batch, batch_idx: {"batch": batch, "batch_idx": batch_idx}
    if is_param_in_hook_signature(task.validation_step, "batch_idx", min_args=2):
        training.val_loop._build_step_args_from_hook_kwargs = lambda keywords, _: tuple(keywords.values())
