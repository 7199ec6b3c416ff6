"""The LightningDataModule: splits, loaders and facts of whatever `read` returns."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from lightning import LightningDataModule
from lightning.fabric.utilities.seed import pl_worker_init_function
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from leyden import UserError, require, said
from leyden.data.augment import Transform, augment, whole, within
from leyden.data.samples import Samples, moments, to_float
from leyden.resume import exact

SPLITS = ("train", "val", "test")


@dataclass(eq=False)
class DataModule(LightningDataModule):
    """A data set is a subclass with `read`; conf/data/_loader.yaml explains the arguments.

    A batch is (x, y). x: float of B x shape, pictures in 0..1; of sequences (B x T x F padded by zeros, lengths).
    y: int64 classes, or float targets.
    """

    batch_size: int = 64
    num_workers: int | str = "auto"
    pin_memory: bool | str = "auto"
    drop_last: bool | str = "auto"
    val_fraction: float = 0.15
    test_fraction: float = 0.15
    fold: int | None = None
    folds: int = 5
    split_seed: int = 0
    seed: int = 0
    balanced: bool = False
    augment: list[Transform] | None = None
    train_transforms: list[v2.Transform] | None = None
    eval_transforms: list[v2.Transform] | None = None

    allow_zero_length_dataloader_with_multiple_devices = True
    classes = cast(list[str] | None, None)  # their names, where the data has some
    tested = "test"  # by Trainer.test

    def __post_init__(self) -> None:
        super().__init__()
        self.title, self.notes = type(self).__name__, dict[str, Any]()  # for run.json
        self.transforms = dict.fromkeys(SPLITS, self.eval_transforms or []) | {"train": self.train_transforms or []}

        for name, low in ("batch_size", 1), ("folds", 2), ("split_seed", 0), ("seed", 0):
            whole(f"data.{name}", getattr(self, name), low)
        for name in "val_fraction", "test_fraction":
            within(f"data.{name}", getattr(self, name), 0, 1)
        if self.num_workers != "auto":
            whole("data.num_workers", self.num_workers, 0)
        require(self.fold in (None, *range(self.folds)), "data.fold", "null or a number below data.folds", self.fold)
        for transform in self.augment or ():
            require(isinstance(transform, Transform), "data.augment", "Transforms of leyden.data.augment", transform)

    def read(self, split: str) -> tuple[Any, Tensor] | None:
        """x, a tensor or a list of sequences, and y of a split; None: val or test is cut from train."""
        raise NotImplementedError

    @cached_property
    def splits(self) -> dict[str, Samples]:
        """The data of train, val and test; UserError where none is left to train on."""
        splits: dict[str, Any] = {}
        for split in SPLITS:
            with exact.isolated(self.seed):  # alike for each split and command
                pair = self.read(split)
            if pair and len(pair[0]) != len(pair[1]):
                raise UserError(f"{self.title} has {len(pair[0])} samples but {len(pair[1])} targets for {split}.")
            splits[split] = pair and Samples(*pair)

        train = splits["train"]
        cut = self.cut(train.y, splits["val"] is None, splits["test"] is None) if train else {}
        if not train or not len(cut["train"]):
            raise UserError(f"{self.title} has no training samples; see its files, val_fraction and test_fraction.")

        for split, index in cut.items():
            if len(index) or not splits[split]:
                splits[split] = train.subset(index)
            splits[split].transforms, splits[split].seed = self.transforms[split], self.seed
        made = [split for split, index in cut.items() if len(index)]
        self.notes["cut_splits"] = made if len(made) > 1 else []
        self.notes["split_sizes"] = {split: len(samples) for split, samples in splits.items()}
        return splits

    def cut(self, y: Tensor, val: bool, test: bool) -> dict[str, Tensor]:
        """The indices of train, and of val and test where they are cut from it."""
        order = stratified_order(y, self.split_seed)
        tests = round(len(y) * self.test_fraction * test)
        start, stop, rest = 0, round(len(y) * self.val_fraction * val), order[tests:]
        if self.fold is not None:
            start, stop = (len(rest) * edge // self.folds for edge in (self.fold, self.fold + 1))
        parts = torch.cat([rest[:start], rest[stop:]]), rest[start:stop], order[:tests]
        return {split: part.sort().values for split, part in zip(SPLITS, parts, strict=True)}

    @cached_property
    def facts(self) -> dict:
        """What models and tasks need to know, in plain values; UserError where labels do not fit."""
        train = self.splits["train"]
        if train.y.is_floating_point():
            mean, std = moments([train.y.reshape(len(train), -1)])
            return self.facts_of_x(train) | {"outputs": len(mean), "target_mean": mean, "target_std": std}

        low, high = map(int, torch.cat([samples.y for samples in self.splits.values()]).aminmax())
        classes = self.classes or [str(label) for label in range(high + 1)]
        if low < 0 or high >= len(classes):
            raise UserError(f"{self.title} has labels from {low} to {high}, but {len(classes)} classes, from 0.")
        if low == high:
            raise UserError(f"{self.title} has samples of one class only, {classes[low]}; it needs two or more.")

        counts = train.y.bincount(minlength=len(classes)).tolist()
        return self.facts_of_x(train) | {"outputs": len(classes), "classes": classes, "counts": counts}

    def facts_of_x(self, train: Samples) -> dict:
        """Of samples as the model gets them: kind, shape, mean and std by channel."""
        x, transforms = train.x, self.transforms["val"] or self.transforms["train"]
        if transforms and train.lengths is None:
            some = stratified_order(train.y, 0)[:1000]
            try:
                x, _, _ = Samples(x[some], train.y[some], transforms).__getitems__(list(range(len(some))))
            except (RuntimeError, TypeError) as error:
                raise UserError(f"The transforms of data give samples that make no batch: {said(error)}.") from error

        mean, std = self.moments(train) if x is train.x else moments([x])
        if train.lengths is not None:
            return {"kind": "sequence", "shape": [None, len(mean)], "mean": mean, "std": std}
        kind = {"kind": "image", "dtype": str(train.x.dtype)[6:]} if len(x.shape) == 4 else {"kind": "table"}
        return kind | {"shape": list(x.shape[1:]), "mean": mean, "std": std}

    def moments(self, train: Samples) -> tuple[list[float], list[float]]:
        return moments([torch.cat(train.x) if isinstance(train.x, list) else train.x])

    @cached_property
    def fingerprint(self) -> str:
        """Tells whether two runs saw the same data."""
        digest = hashlib.sha256()
        for samples in self.splits.values():
            for part in self.contents(samples):
                digest.update(part)
        return digest.hexdigest()

    def contents(self, samples: Samples) -> Iterator:
        """Bytes that differ where samples do."""
        for part in (*(samples.x if isinstance(samples.x, list) else [samples.x]), samples.y):
            yield part.contiguous().numpy()

    def loader(self, split: str, shuffle: bool = False) -> Any:
        """The batches of one rank; if shuffled, each epoch has an order of its own."""
        samples, trainer = self.splits[split], self.trainer
        if not samples:
            return []

        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        draw = partial(exact.shuffled, len(samples), self.seed)
        if self.balanced:
            draw = partial(exact.balanced, samples.y, self.seed)
        elif samples.lengths is not None:
            draw = partial(exact.bucketed, samples.lengths, self.batch_size * world, self.seed)
        order = exact.Order(len(samples), rank, world, draw if shuffle else None)

        drop_last = len(order) > self.batch_size if self.drop_last == "auto" else self.drop_last
        slow = samples.transforms or getattr(samples.x, "slow", False)  # in memory workers only cost
        workers = (cores() if slow else 0) if self.num_workers == "auto" else int(self.num_workers)
        cuda = trainer and trainer.strategy.root_device.type == "cuda"

        return DataLoader(
            samples,
            batch_size=self.batch_size,
            sampler=order,
            collate_fn=tuple,  # samples make their batches themselves
            drop_last=bool(drop_last and shuffle),
            num_workers=workers,
            worker_init_fn=partial(exact.ignore_signals_in_worker, then=partial(pl_worker_init_function, rank=rank)),
            generator=exact.generator(self.seed),  # of the workers' seeds, else drawn from the model's
            persistent_workers=workers > 0,
            pin_memory=bool(cuda if self.pin_memory == "auto" else self.pin_memory),
        )

    def train_dataloader(self) -> Any:
        return self.loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        return self.loader("val")

    def test_dataloader(self) -> Any:
        return self.loader(self.tested)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y, keys = batch
        if isinstance(x, Tensor):
            x = self.trainer.precision_plugin.convert_input(to_float(x)) if self.trainer else to_float(x)
            if self.augment and self.trainer.training:
                x = augment(self.augment, x, keys % len(self.splits["train"]), self.seed, self.trainer.current_epoch)
        return x, y


def cores() -> int:
    """The cores of this process, divided among its ranks and the jobs beside it."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, free // int(os.environ.get("LEYDEN_PARALLEL", 1)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def stratified_order(y: Tensor, seed: int) -> Tensor:
    """A random order in which each slice has the classes in their shares.

    Each of the n samples of a class gets a place (i + 1/2) / n of its own, and all are sorted by place.
    """
    order = exact.shuffled(len(y), seed)
    if y.is_floating_point():
        return order

    place = torch.empty(len(y), dtype=torch.float64)
    members, counts = y[order].argsort(stable=True), y.unique(return_counts=True)[1].tolist()
    place[members] = torch.cat([(torch.arange(count).double() + 0.5) / count for count in counts])
    return order[place.argsort(stable=True)]
