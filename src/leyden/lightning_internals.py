"""The private state of Lightning that we use: the values that a task logs, and what each rank reads and decides."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities.data import _reinstantiate_wrapped_cls
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.trainer.connectors.data_connector import _DataConnector
from lightning.pytorch.trainer.connectors.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.data import _get_dataloader_init_args_and_kwargs
from lightning.pytorch.utilities.exceptions import MisconfigurationException, _TunerExitException
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from leyden import UserError
from leyden.resume import exact

EndFit = _TunerExitException  # raised in a hook, it ends a fit as its end does
LOGGED_AS = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
             "dataloader_idx", "metric_attribute")  # fmt: skip


def gather(trainer: Trainer, mine: Any) -> list[Any]:
    """The objects of all ranks, in their order."""
    found: list[Any] = [mine] * trainer.world_size
    if trainer.world_size > 1:
        torch.distributed.all_gather_object(found, mine)
    return found


def describe(item: _ResultMetric) -> dict[str, Any]:
    """How a value was logged, and its running state, which a torchmetrics object has itself, as plain data."""
    meta = {name: getattr(item.meta, name) for name in LOGGED_AS} | {"reduce_fx": item.meta.reduce_fx.__name__}
    sync = {"_should": item.meta.sync.should, "rank_zero_only": item.meta.sync.rank_zero_only}
    return {"meta": meta, "sync": sync, "state": dict(item.metric_state) if item.is_tensor else None}


def rebuild(trainer: Trainer, said: dict[str, Any]) -> _ResultMetric:
    """A value that is logged as `describe` says, in the state before the first time."""
    meta = _Metadata(**said["meta"])
    meta.sync = _Sync(**said["sync"], fn=trainer.strategy.reduce)
    return _ResultMetric(meta, said["state"] is not None)


def share(item: _ResultMetric, samples: int) -> tuple[float, float, str]:
    """Of this rank: a value (times its weight, where it is a mean), its weight, and how it is joined with others."""
    value, weight, reduction = float(item.value), 1.0, item.meta.reduce_fx.__name__
    if not item.meta.on_epoch:  # the value of the last step, which `sync_dist` has joined already
        return value, float(item._forward_cache is not None), "mean" if item.meta.sync.should else reduction
    if reduction == "mean":
        weight = float(item.cumulated_batch_size)
        if weight == 1 and item.meta.fx.endswith("_epoch_end"):  # a mean over all that this rank has evaluated
            value, weight = value * samples, float(samples)
    return value, weight, reduction


def joint(shares: list[tuple[float, float, str]]) -> float:
    """The value that one process would have logged, from the shares of the ranks that logged it."""
    values = torch.tensor([value for value, _, _ in shares], dtype=torch.float64)
    if (reduction := shares[0][2]) == "mean":
        return float(values.sum()) / (sum(weight for _, weight, _ in shares) or math.nan)
    return float(getattr(torch, reduction)(values))


class RankLogger(_LoggerConnector):
    """Joins what the ranks have logged before anybody reads it: at the end of a loader, and of an epoch's hooks.

    Lightning has the values of rank 0, unless `sync_dist=True`, and averages then with rounded numbers of samples.
    torchmetrics objects join their own state, and what is logged with rank_zero_only=True or a group stays as it is.
    """

    def epoch_end_reached(self) -> None:
        super().epoch_end_reached()
        self.join()
        if self.trainer.training:
            task = self.trainer.lightning_module
            own = {name: hook for name, hook in vars(task).items() if name == "on_train_epoch_end"}
            task.on_train_epoch_end = partial(self.join_after, task, task.on_train_epoch_end, own)

    def join_after(self, task: LightningModule, hook: Callable[[], None], own: dict[str, Any]) -> None:
        """Join what the end of a training epoch logs, before Lightning calls the callbacks that watch it."""
        del task.on_train_epoch_end
        vars(task).update(own)
        hook()
        self.join()

    def on_epoch_end(self) -> None:
        self.join()
        super().on_epoch_end()

    def join(self) -> None:
        """Raises UserError if the ranks have come to different loaders, so that they would wait for each other."""
        loop: Any = self.trainer._active_loop
        results, samples = loop._results, evaluated(loop)
        mine = {
            key: (describe(item) | {"state": {}}, share(item, samples))
            for key, item in results.items()
            if item.is_tensor and not (item.has_reset or item.meta.sync.rank_zero_only or item.meta.sync.group)
        }
        found = gather(self.trainer, (results.dataloader_idx, mine))
        if len({loader for loader, _ in found}) > 1:
            raise UserError("A rank has no batch of one of several loaders; give each rank samples of each loader.")
        for key in dict.fromkeys(key for _, theirs in found for key in theirs):
            parts = [theirs[key] for _, theirs in found if key in theirs]
            if key not in results:  # other ranks alone have logged it
                results[key] = rebuild(self.trainer, parts[0][0])
            item = results[key]
            item.has_reset, item._update_count = False, max(1, item._update_count)
            value = joint([part for _, part in parts])
            item._computed = torch.tensor(value, dtype=item.value.dtype, device=self.trainer.strategy.root_device)
            if results.training and not item.meta.on_epoch:  # what watches it at the epoch's end sees the same
                self._callback_metrics[item.meta.name] = item._computed


def evaluated(loop: Any) -> int:
    """Samples of this rank in an evaluation, the weight of what its end logs; 1 where the loaders do not say."""
    if not isinstance(loop, _EvaluationLoop) or loop._combined_loader is None:
        return 1
    loaders = zip(loop._combined_loader.flattened, loop.max_batches, strict=True)
    sizes = [
        min(len(loader.sampler), batches * loader.batch_size)
        for loader, batches in loaders
        if isinstance(getattr(loader, "sampler", None), DistributedSampler) and loader.batch_size
    ]
    return int(sum(sizes)) or 1


def logged(trainer: Trainer) -> dict[str, float]:
    """The last values of all names, the same on all ranks: a mean where they differ."""
    mine = {name: float(value) for name, value in trainer.callback_metrics.items()}
    if trainer.world_size == 1:
        return mine
    found: dict[str, list[float]] = {}
    for one in gather(trainer, mine):
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: values[0] if len(set(values)) == 1 else sum(values) / len(values) for name, values in found.items()}


# what each rank reads


class Share(DistributedSampler):
    """What one rank has of the order that a sampler of any kind gives; all ranks draw alike.

    With `equal` the order begins again where the ranks would have different numbers of samples, as in training, where
    they step together; without it each sample counts once.
    """

    def __init__(self, shared: Any, rank: int, world: int, equal: bool):
        self.shared, self.rank, self.world, self.equal, self.epoch = shared, rank, world, equal, 0
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.shared, "set_epoch"):
            self.shared.set_epoch(epoch)

    def __len__(self) -> int:
        length = len(self.shared)
        return -(-length // self.world) if self.equal else len(range(self.rank, length, self.world))

    def even(self, batch_size: int) -> int:
        """The largest size, up to this one, in which all ranks have as many batches, where there is one.

        What a user's step sends to the other ranks would wait for one that has no batch left.
        """
        most, least = -(-len(self.shared) // self.world), len(self.shared) // self.world
        sizes = (size for size in range(batch_size, 0, -1) if -(-most // size) == -(-least // size))
        return batch_size if self.equal else next(sizes, batch_size)

    def __iter__(self) -> Iterator[Any]:
        with isolate_rng():
            exact.reseed(self.seed, self.epoch)
            order = list(self.shared)
        if self.equal:
            order = [order[i % len(order)] for i in range(len(self) * self.world)]
        return iter(order[self.rank :: self.world])


class RankLoader(_DataConnector):
    """Deals the samples of a user's own loaders to the ranks, in the order and the batches that they ask for.

    Lightning evaluates some samples twice, shuffles what is to be read in order, takes batches of one where a
    `BatchSampler` of torch is given, and leaves out the sampler in it.
    """

    def _prepare_dataloader(self, dataloader: Any, shuffle: bool, mode: RunningStage) -> Any:
        predicts = mode == RunningStage.PREDICTING  # there Lightning repeats nothing
        if predicts or not isinstance(dataloader, DataLoader) or not self._requires_distributed_sampler(dataloader):
            return super()._prepare_dataloader(dataloader, shuffle, mode)
        batches, world = dataloader.batch_sampler, self.trainer.world_size
        shared: Any = getattr(batches, "sampler", dataloader.sampler)
        few = hasattr(shared, "__len__") and len(shared) < world  # else a rank would have none
        sampler = Share(shared, self.trainer.global_rank, world, equal=few or mode == RunningStage.TRAINING)
        try:
            arguments, keywords = _get_dataloader_init_args_and_kwargs(dataloader, sampler, mode)
        except (TypeError, MisconfigurationException) as error:
            raise UserError(f"The ranks cannot share a loader: {' '.join(str(error).split())}") from error
        names = getattr(dataloader, "__pl_saved_arg_names", ())
        if len(names) == len(arguments):  # else an argument may be given twice
            keywords, arguments = dict(zip(names, arguments, strict=True)) | keywords, tuple()  # type: ignore[assignment]
        if type(batches) is BatchSampler and dataloader.batch_size is None:
            keywords |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
        if type(batches) is BatchSampler and "batch_size" in keywords and hasattr(shared, "__len__"):
            keywords["batch_size"] = sampler.even(keywords["batch_size"])
        return _reinstantiate_wrapped_cls(dataloader, *arguments, **keywords)


def undivided(trainer: Trainer, loaders: list[Any]) -> bool:
    """Whether nobody here knows that the ranks read different samples: of an IterableDataset, or of no DataLoader."""
    dealt = [isinstance(getattr(loader, "sampler", None), DistributedSampler) for loader in loaders]
    return trainer.world_size > 1 and not all(dealt)


def same_batch(trainer: Trainer, batch: Any) -> bool:
    """Whether all ranks have the same tensors in it."""
    digest = hashlib.sha256()
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            digest.update(leaf.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return len(set(gather(trainer, digest.hexdigest()))) == 1


def join_ranks(trainer: Trainer) -> None:
    """Let the ranks log, decide and read together, where there are several."""
    if trainer.world_size == 1:
        return
    trainer._logger_connector, trainer._data_connector = RankLogger(trainer), RankLoader(trainer)
    loop: Any = trainer.fit_loop.epoch_loop
    is_due = loop._should_check_val_fx

    def agreed(fetcher: Any) -> bool:
        due = is_due(fetcher)  # by the clock of this rank, if val_check_interval is a time
        return trainer.strategy.broadcast(due) if trainer._val_check_time_interval is not None else due

    def monitored(name: str) -> torch.Tensor | None:
        value = logged(trainer).get(name)  # of a plateau schedule: other rates would make other weights
        return None if value is None else torch.tensor(value, device=trainer.strategy.root_device)

    loop._should_check_val_fx, loop._get_monitor_value = agreed, monitored
