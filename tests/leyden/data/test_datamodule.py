import math

import pytest
import torch
from torchvision.transforms import v2

from lab.data.digits import Digits
from lab.data.fake import Fake
from leyden import UserError
from leyden.data.augment import HorizontalFlip
from leyden.data.datamodule import DataModule, stratified_order


class Given(DataModule):
    """A data set of what a test gives it."""

    def __init__(self, given, **loader):
        super().__init__(**loader)
        self.given = given

    def read(self, split):
        return self.given.get(split)


def numbered(count=100, classes=4):
    x = torch.arange(count, dtype=torch.float32)[:, None]
    return x, torch.arange(count) % classes


def values(samples):
    return set(samples.x[:, 0].int().tolist())


def test_digits_are_the_real_ones():
    digits = Digits()
    sizes = {split: len(samples) for split, samples in digits.splits.items()}
    assert sizes == {"train": 1257, "val": 270, "test": 270}
    assert digits.splits["train"].x.dtype == torch.uint8
    assert digits.splits["train"].x.max() == 255
    facts = digits.facts
    assert facts["shape"] == [1, 8, 8] and facts["outputs"] == 10 and facts["classes"][3] == "3"
    for samples in digits.splits.values():
        share = samples.y.bincount(minlength=10) / len(samples)
        assert (share - 0.1).abs().max() < 0.02


def test_splits_are_disjoint_complete_and_stratified():
    data = Given({"train": numbered(200)})
    train, val, test = (values(data.splits[split]) for split in ("train", "val", "test"))
    assert train | val | test == set(range(200))
    assert len(train) + len(val) + len(test) == 200
    assert sorted(data.splits["val"].y.bincount().tolist()) == [7, 7, 8, 8]
    again = Given({"train": numbered(200)}, seed=99)
    assert values(again.splits["val"]) == val
    assert values(Given({"train": numbered(200)}, split_seed=1).splits["val"]) != val


def test_a_split_of_its_own_is_kept():
    data = Given({"train": numbered(100), "test": numbered(10)})
    assert len(data.splits["test"]) == 10
    assert len(data.splits["train"]) + len(data.splits["val"]) == 100


def test_folds_are_disjoint_complete_and_stratified():
    folds = [Given({"train": numbered(100), "test": numbered(4)}, fold=k, folds=5) for k in range(5)]
    parts = [values(data.splits["val"]) for data in folds]
    assert set.union(*parts) == set(range(100)) and sum(map(len, parts)) == 100
    for data, part in zip(folds, parts, strict=True):
        assert values(data.splits["train"]) == set(range(100)) - part
        assert data.splits["val"].y.bincount().tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"batch_size": 0}, "`data.batch_size` must be a whole number from 1 up; got `0`."),
        ({"folds": 1}, "`data.folds` must be a whole number from 2 up; got `1`."),
        ({"split_seed": -1}, "`data.split_seed` must be a whole number from 0 up; got `-1`."),
        ({"val_fraction": 1.5}, "`data.val_fraction` must be a number from 0 to 1; got `1.5`."),
        ({"test_fraction": math.nan}, "`data.test_fraction` must be a number from 0 to 1; got `nan`."),
        ({"num_workers": -1}, "`data.num_workers` must be a whole number from 0 up; got `-1`."),
        ({"num_workers": "all"}, "`data.num_workers` must be a whole number from 0 up; got `all`."),
        ({"fold": 5, "folds": 5}, "`data.fold` must be null or a number below data.folds; got `5`."),
        ({"augment": ["flip"]}, "`data.augment` must be Transforms of leyden.data.augment; got `flip`."),
        ({"num_classes": 0}, "`data.num_classes` must be a whole number from 1 up; got `0`."),
        ({"num_samples": 0}, "`data.num_samples` must be a whole number from 1 up; got `0`."),
        ({"num_classes": 2.5}, "`data.num_classes` must be a whole number from 1 up; got `2.5`."),
        ({"shape": [1, 0]}, "`data.shape` must be whole numbers from 1 up; got `[1, 0]`."),
    ],
)
def test_a_value_out_of_range_is_named(keywords, sentence):
    with pytest.raises(UserError) as caught:
        Fake(**{"shape": [1, 2, 2]} | keywords)
    assert str(caught.value) == sentence


def test_one_class_is_too_few():
    with pytest.raises(UserError, match="Fake has samples of one class only, 0"):
        Fake(shape=[1, 2, 2], num_classes=1).facts  # noqa: B018
    with pytest.raises(UserError, match="Given has samples of one class only, 3"):
        Given({"train": (torch.zeros(9, 2), torch.full((9,), 3))}).facts  # noqa: B018


def test_there_is_a_target_for_each_sample():
    with pytest.raises(UserError, match="Given has 100 samples but 7 targets for test"):
        Given({"train": numbered(), "test": (numbered()[0], torch.zeros(7))}).splits  # noqa: B018


def test_stratified_order_keeps_rare_classes_in_train():
    y = torch.tensor([0] * 50 + [1])
    assert 50 not in stratified_order(y, 0)[:10].tolist()


def test_labels_must_fit_the_classes():
    data = Given({"train": numbered()})
    data.classes = ["a", "b"]
    with pytest.raises(UserError, match=r"labels from 0 to 3.*2 classes"):
        data.facts  # noqa: B018


@pytest.mark.parametrize("given", [{}, {"train": numbered(0)}])
def test_no_training_samples_are_an_error(given):
    with pytest.raises(UserError, match="no training samples"):
        Given(given).splits  # noqa: B018


def test_fractions_that_leave_nothing_are_an_error():
    with pytest.raises(UserError, match="val_fraction"):
        Given({"train": numbered(10)}, val_fraction=0.5, test_fraction=0.5).splits  # noqa: B018


def test_a_batch_is_a_slice_of_the_data():
    data = Fake(shape=[1, 4, 4], num_samples=100, batch_size=16)
    batches = list(data.train_dataloader())
    assert [len(y) for _, y, _ in batches] == [16] * 4  # 70 samples; the short batch is left out
    x, y, key = batches[1]
    assert torch.equal(x, data.splits["train"].x[key]) and torch.equal(y, data.splits["train"].y[key])


def test_a_set_smaller_than_a_batch_trains():
    data = Fake(shape=[1, 4, 4], num_samples=10, batch_size=16)
    assert [len(y) for _, y, _ in data.train_dataloader()] == [6]


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_draw_for_each_sample_from_its_key(workers):
    given = {"train": (torch.arange(64, dtype=torch.uint8).repeat(40, 1).view(40, 1, 8, 8), torch.arange(40) % 2)}

    def batches(**options):
        data = Given(given, train_transforms=[v2.RandomHorizontalFlip(), v2.RandomRotation(30)], **options)
        loader = data.train_dataloader()
        loader.sampler.set_epoch(2)
        return {int(key): x for xs, _, keys in loader for x, key in zip(xs, keys, strict=True)}

    one = batches(batch_size=4, num_workers=0, drop_last=False)
    other = batches(batch_size=9, num_workers=workers, drop_last=False)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert len({tuple(x.flatten().tolist()) for x in one.values()}) > 20


def test_transforms_change_the_facts():
    given = {"train": (torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8), torch.arange(40) % 2)}
    resize = v2.Resize((4, 6))
    facts = Given(given, train_transforms=[resize, v2.Grayscale()], eval_transforms=[resize, v2.Grayscale()]).facts
    assert facts["shape"] == [1, 4, 6] and len(facts["mean"]) == 1


def test_augmentation_is_for_training_only(train, monkeypatch):
    seen = []
    monkeypatch.setattr(HorizontalFlip, "__call__", lambda self, x, u: seen.append(len(x)) or x)
    train("data.augment=[{_target_:leyden.data.augment.HorizontalFlip}]", "trainer.max_epochs=1")
    assert seen == [16] * 5  # 84 training samples
