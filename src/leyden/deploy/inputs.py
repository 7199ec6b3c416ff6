"""What a user's path holds, one sample after the other: pictures, sequences, rows of tables, batches of them."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, get_worker_info
from torchvision.transforms import v2

from leyden import UserError
from leyden.data import decode
from leyden.data.image_folder import ImageFolder
from leyden.data.samples import to_float
from leyden.deploy.arrays import batch, is_one, sequence
from leyden.deploy.sample import Sample
from leyden.deploy.tables import table

BATCHES = (".npy", ".npz")
ENDINGS = {"image": (*decode.ENDINGS, *BATCHES), "sequence": (".csv", *BATCHES), "table": (".csv", ".tsv", *BATCHES)}
WORDS = {"image": "pictures", "sequence": "sequences", "table": "rows of a table"}


def files(path: str, kind: str) -> Iterator[tuple[str, str]]:
    """Name and path of each file: itself, those below a folder that fit, or what a glob matches.

    Raises:
        UserError: there is none, or a single one is of another kind.
    """
    place, endings = os.path.expanduser(path), ENDINGS[kind]
    if os.path.isdir(place):
        found = below(place, endings)
        wrong = f"input={path} is a folder without {WORDS[kind]} ({', '.join(endings)})."
    elif os.path.exists(place):
        if not place.lower().endswith(endings):
            raise UserError(f"input={path} is no file for this model; it takes {WORDS[kind]} ({', '.join(endings)}).")
        found, wrong = iter([(path, place)]), ""
    else:
        found = ((name, name) for name in sorted(glob.glob(place, recursive=True)) if os.path.isfile(name))
        wrong = f"input={path} is not there: no file, no folder, and no pattern that a file matches."
    first = next(found, None)
    if first is None:
        raise UserError(wrong)
    yield first
    yield from found


def below(root: str, endings: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The files of these endings below a folder, by their path in it; hidden files and folders are left out."""
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(endings) and not name.startswith("."):
                path = os.path.join(folder, name)
                yield Path(os.path.relpath(path, root)).as_posix(), path


def samples(path: str, card: dict[str, Any]) -> Iterator[Sample]:
    """All samples of a path, in the order of their names; a file that cannot be opened is one that cannot be read.

    Raises:
        UserError: as `files` does, or where the first of them does not fit the model, before any sample.
    """
    begun = False
    for name, file in files(path, card["kind"]):
        try:
            for sample in within(name, Path(file), card):
                yield sample
                begun = True
        except UserError as error:
            if not begun and file == os.path.expanduser(path):
                raise
            yield Sample(name, partial(fail, str(error)))
            begun = True


def within(name: str, file: Path, card: dict[str, Any]) -> Iterator[Sample]:
    kind = card["kind"]
    if file.suffix.lower() in BATCHES and not (kind == "sequence" and is_one(file)):
        yield from batch(name, file, card)
    elif kind == "table":
        yield from table(name, file, card)
    else:
        yield Sample(name, partial(sequence if kind == "sequence" else picture, file, card))


def fail(sentence: str) -> Tensor:
    raise UserError(sentence)


def picture(file: Path, card: dict[str, Any]) -> Tensor:
    """uint8 of C x H x W: resized as the run does or to the one size that it knows; as it is for own transforms."""
    channels, *size = card["inputs"]["image"][1:]
    size = card["size"] or (size if all(isinstance(side, int) for side in size) else None)
    return decode.decode(file, tuple(size) if size else None, channels, card["background"])


class Stream(IterableDataset):
    """Batches of what `source` gives: {"names", "errors", "x"}, of which each rank and each worker makes its own.

    x is a batch of the samples that could be read (None if there is none), a pair of values and lengths for sequences;
    `errors` has a sentence for each of the others, None for each of these.
    """

    def __init__(self, source: Callable[[], Iterator[Sample]], size: int, rank: int = 0, world: int = 1):
        self.source, self.size, self.rank, self.world = source, size, rank, world
        self.transforms: list[Callable[[Tensor], Tensor]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        mine, step = self.rank, self.world
        if worker:  # of this rank's batches every n-th, so that their order is that of the inputs
            mine, step = mine + self.world * worker.id, step * worker.num_workers
        stream = self.source()
        for number in itertools.count():
            part = list(itertools.islice(stream, self.size))
            if not part:
                return
            if number % step == mine:
                yield self.read(part)

    def read(self, part: list[Sample]) -> dict[str, Any]:
        found: list[Tensor] = []
        errors: list[str | None] = []
        for sample in part:
            try:
                x = sample.read()
                for transform in self.transforms:
                    x = transform(to_float(x) if isinstance(transform, v2.Normalize) else x)
                if found and x.dim() == 3 and x.shape != found[0].shape:
                    raise UserError(f"{sample.name} is {list(x.shape)} after the run's transforms, others are not.")
                found.append(x)
                errors.append(None)
            except UserError as error:
                errors.append(str(error))
        targets = [sample.target for sample in part]
        return {"names": [sample.name for sample in part], "errors": errors, "x": joined(found), "targets": targets}


def joined(found: list[Tensor]) -> tuple[Tensor, ...] | None:
    """Samples as what a model takes: a batch, or for sequences (values padded with zeros, lengths)."""
    if not found:
        return None
    if found[0].dim() == 2:
        return pad_sequence(found, batch_first=True), torch.tensor([len(values) for values in found])
    return (torch.stack(found),)


def own(split: str, data: Any) -> Iterator[Sample]:
    """The samples of a split of a run's own datamodule, with what they are."""
    found = data.splits[split]
    for place in range(len(found)):
        name = data.name(split, place) if isinstance(data, ImageFolder) else f"{split}[{place}]"
        yield Sample(name, partial(taken, found, place), found.y[place].tolist())


def taken(found: Any, place: int) -> Tensor:
    x, _, _ = found.__getitems__([place])
    return x[0][0] if isinstance(x, tuple) else x[0]
