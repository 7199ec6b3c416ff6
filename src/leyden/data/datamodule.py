"""The LightningDataModule: splits, folds, loaders and facts of whatever `read` returns."""

import hashlib
import math
import os
from functools import cached_property, partial
from typing import Any

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
FEW = 1000  # transformed samples that mean and std are measured on


class DataModule(LightningDataModule):
    """A data set is a subclass with `read`; conf/data/_loader.yaml explains the arguments.

    A batch is (x, y). x: float of B x shape, pictures in 0..1; for sequences a pair of values, B x T x F padded with
    zeros, and lengths, B. y: int64 classes of B, or float targets of B.
    """

    allow_zero_length_dataloader_with_multiple_devices = True
    classes: list[str] | None = None  # names, where the data has them
    tested = "test"  # the split that Trainer.test runs on

    def __init__(
        self,
        batch_size: int = 64,
        num_workers: int | str = "auto",
        pin_memory: bool | str = "auto",
        drop_last: bool | str = "auto",
        val_fraction: float = 0.15,
        test_fraction: float = 0.15,
        fold: int | None = None,
        folds: int = 5,
        split_seed: int = 0,
        seed: int = 0,
        balanced: bool = False,
        augment: list[Transform] | None = None,
        train_transforms: list[v2.Transform] | None = None,
        eval_transforms: list[v2.Transform] | None = None,
    ):
        super().__init__()
        self.batch_size, self.num_workers, self.pin_memory = batch_size, num_workers, pin_memory
        self.drop_last, self.balanced, self.seed = drop_last, balanced, seed
        self.val_fraction, self.test_fraction, self.split_seed = val_fraction, test_fraction, split_seed
        self.fold, self.folds, self.title = fold, folds, type(self).__name__
        self.notes: dict[str, Any] = {}  # what run.json is to hold of the data
        self.augment = list(augment or [])
        for part in (train_transforms or []) + (eval_transforms or []):
            require(callable(part), "data.train_transforms and data.eval_transforms", "of things that are called", part)
        self.transforms = {"train": train_transforms or [], "val": eval_transforms or [], "test": eval_transforms or []}
        for transform in self.augment:
            require(isinstance(transform, Transform), "data.augment", "Transforms of leyden.data.augment", transform)
        normalised = {any(isinstance(part, v2.Normalize) for part in self.transforms[split]) for split in SPLITS}
        require(len(normalised) == 1, "data.eval_transforms", "normalised as train_transforms are", eval_transforms)
        for name, low in ("batch_size", 1), ("folds", 2), ("split_seed", 0), ("seed", 0):
            whole(f"data.{name}", getattr(self, name), low)
        for name in "val_fraction", "test_fraction":
            within(f"data.{name}", getattr(self, name), 0, 1)
        enough = num_workers == "auto" or (type(num_workers) is int and num_workers >= 0)
        require(enough, "data.num_workers", "auto or a whole number from 0 up", num_workers)
        require(fold is None or 0 <= fold < folds, "data.fold", f"null or a whole number from 0 to {folds - 1}", fold)

    def read(self, split: str) -> tuple[Any, Tensor] | None:
        """x and y of train, val or test; None where the data has no such split and it is cut from train.

        x is a tensor, or a list of tensors of different length.
        """
        raise NotImplementedError

    # splits

    @cached_property
    def splits(self) -> dict[str, Samples]:
        """The data of train, val and test; UserError where nothing is left to train on."""
        found = {split: self.samples(split) for split in SPLITS}
        train = found["train"]
        cut = self.cut(train.y, found["val"] is None, found["test"] is None) if train else {}
        if not train or not len(cut["train"]):
            raise UserError(f"{self.title} has no training samples; see its files, val_fraction and test_fraction.")
        none = train.subset(torch.tensor([], dtype=torch.int64))
        splits = {split: train.subset(cut[split]) if split in cut else found[split] or none for split in SPLITS}
        for split, samples in splits.items():
            samples.transforms, samples.seed = self.transforms[split], self.seed
        self.notes["split_sizes"] = {split: len(samples) for split, samples in splits.items()}
        self.notes["cut_splits"] = list(cut) if len(cut) > 1 else []
        return splits

    def samples(self, split: str) -> Samples | None:
        with exact.isolated(self.seed):  # what it draws is the same for each split and in each command
            pair = self.read(split)
        if pair and len(pair[0]) != len(pair[1]):
            raise UserError(f"{self.title} has {len(pair[0])} samples but {len(pair[1])} targets for {split}.")
        return pair and Samples(*pair)

    def cut(self, y: Tensor, val: bool, test: bool) -> dict[str, Tensor]:
        """The indices of each split that comes out of the training data; all of them are disjoint."""
        order = stratified_order(y, self.split_seed)
        tests = round(len(y) * self.test_fraction) if test else 0
        start, stop, rest = 0, round(len(y) * self.val_fraction) if val else 0, order[tests:]
        if self.fold is not None:
            start, stop = (len(rest) * edge // self.folds for edge in (self.fold, self.fold + 1))
        parts = {"train": torch.cat([rest[:start], rest[stop:]]), "val": rest[start:stop], "test": order[:tests]}
        return {name: part.sort().values for name, part in parts.items() if len(part) or name == "train"}

    # facts

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What models and tasks need to know of the data, in plain values. Raises UserError where labels do not fit."""
        train = self.splits["train"]
        if train.y.is_floating_point():
            mean, std = moments([train.y.reshape(len(train), -1)])
            return self.facts_of_x(train) | {"outputs": len(mean), "target_mean": mean, "target_std": std}
        labels = torch.cat([samples.y for samples in self.splits.values() if len(samples)])
        low, high = int(labels.min()), int(labels.max())
        classes = self.classes or [str(label) for label in range(high + 1)]
        if low < 0 or high >= len(classes):
            raise UserError(f"{self.title} has labels from {low} to {high}; its {len(classes)} classes count from 0.")
        if low == high:
            raise UserError(f"{self.title} has samples of one class only, {classes[low]}; it needs two or more.")
        counts = train.y.bincount(minlength=len(classes)).tolist()
        return self.facts_of_x(train) | {"outputs": len(classes), "classes": classes, "counts": counts}

    def facts_of_x(self, train: Samples) -> dict[str, Any]:
        x = train.x
        if train.lengths is None and (shown := self.transforms["val"] or self.transforms["train"]):
            some = stratified_order(train.y, 0)[:FEW].tolist()
            try:
                x, _, _ = Samples(x[some], train.y[some], shown).__getitems__(list(range(len(some))))
            except RuntimeError as error:
                raise UserError(f"The transforms of data leave samples that make no batch: {said(error)}.") from error
        mean, std = self.moments(train) if x is train.x else moments([x])
        if train.lengths is not None:
            return {"kind": "sequence", "shape": [None, len(mean)], "mean": mean, "std": std}
        kind = {"kind": "image", "dtype": str(train.x.dtype)[6:]} if len(x.shape) == 4 else {"kind": "table"}
        return kind | {"shape": list(x.shape[1:]), "mean": mean, "std": std}

    def moments(self, train: Samples) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel."""
        return moments([torch.cat(train.x) if isinstance(train.x, list) else train.x])

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all samples, to tell whether two runs saw the same data."""
        digest = hashlib.sha256()
        for samples in self.splits.values():
            for part in (*([samples.x] if samples.lengths is None else samples.x), samples.y):
                digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()

    # loaders

    def loader(self, split: str, shuffle: bool = False) -> DataLoader:
        """The batches of one rank; shuffled ones come in an order of their own in each epoch."""
        samples, workers, trainer = self.splits[split], self.workers(self.splits[split]), self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        order = exact.Order(len(samples), rank, world, self.draw(samples, world) if shuffle else None)
        drop_last = len(order) > self.batch_size if self.drop_last == "auto" else self.drop_last
        cuda = trainer and trainer.strategy.root_device.type == "cuda"
        return DataLoader(
            samples,
            batch_size=self.batch_size,
            sampler=order,
            collate_fn=tuple,  # samples make their batches themselves
            drop_last=bool(drop_last and shuffle),
            num_workers=workers,
            worker_init_fn=partial(exact.ignore_signals_in_worker, then=partial(pl_worker_init_function, rank=rank)),
            generator=exact.generator(self.seed),  # of the workers' seeds, which else come out of the model's draws
            persistent_workers=workers > 0,
            pin_memory=bool(cuda if self.pin_memory == "auto" else self.pin_memory),
        )

    def draw(self, samples: Samples, world: int = 1) -> partial:
        """The order of an epoch, as a function of the epoch."""
        if self.balanced:
            return partial(exact.balanced, samples.y, self.seed)
        if samples.lengths is not None:
            return partial(exact.bucketed, samples.lengths, self.batch_size * world, self.seed)
        return partial(exact.shuffled, len(samples), self.seed)

    def workers(self, samples: Samples) -> int:
        """Loader processes: none for data in memory, where they only cost."""
        automatic = cores() if samples.transforms else 0
        return automatic if self.num_workers == "auto" else int(self.num_workers)

    def train_dataloader(self) -> DataLoader:
        return self.loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader | list:
        return self.loader("val") if len(self.splits["val"]) else []

    def test_dataloader(self) -> DataLoader | list:
        return self.loader(self.tested) if len(self.splits[self.tested]) else []

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y, keys = batch
        if isinstance(x, Tensor):
            x = self.trainer.precision_plugin.convert_input(to_float(x)) if self.trainer else to_float(x)
            if self.augment and self.trainer.training:
                index = keys % len(self.splits["train"])
                x = augment(self.augment, x, index, self.seed, self.trainer.current_epoch)
        return x, y


def cores() -> int:
    """The cores that this process may use: those of the machine divided among its ranks and the jobs beside it."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sharing = (int(os.environ.get(name, 1)) for name in ("LEYDEN_PARALLEL", "LOCAL_WORLD_SIZE"))
    return max(1, free // math.prod(sharing))


def stratified_order(y: Tensor, seed: int) -> Tensor:
    """An order in which each slice holds the classes in their shares: int64 of the length of y.

    Each sample of a class of n gets a random place (i + 1/2) / n of its own, and all samples are sorted by place.
    """
    order = exact.shuffled(len(y), seed)
    if y.is_floating_point():
        return order
    place = torch.empty(len(y), dtype=torch.float64)
    members, counts = y[order].argsort(stable=True), y.unique(return_counts=True)[1].tolist()  # class by class
    place[members] = torch.cat([(torch.arange(count).double() + 0.5) / count for count in counts])
    return order[place.argsort(stable=True)]
