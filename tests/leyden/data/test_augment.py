"""Augmentation: draws that depend on (seed, epoch, index, stream) only, pixels that are torchvision's."""

import math

import pytest
import torch
import torchvision.transforms.v2.functional as V
from omegaconf import ListConfig
from torch import Tensor
from torchvision.transforms import InterpolationMode

from leyden import UserError
from leyden.data.augment import (
    Affine,
    BrightnessContrast,
    Erasing,
    HorizontalFlip,
    RandomResizedCrop,
    ShiftCrop,
    augment,
    draws,
    rectangle,
)

BILINEAR = InterpolationMode.BILINEAR
ALL = [HorizontalFlip(), ShiftCrop(3), Erasing(), BrightnessContrast(0.5, 0.5), RandomResizedCrop()]
ALL += [Affine(20, 0.2, ListConfig([0.7, 1.3]))]  # as a list of a config file comes
each_transform = pytest.mark.parametrize("transform", ALL, ids=lambda transform: type(transform).__name__)


def batch(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def chi_square(u: Tensor, bins: int) -> float:
    """Of the counts in equal bins, in standard deviations from what uniform numbers give."""
    counts, expected = torch.histc(u.double(), bins, 0, 1), u.numel() / bins
    return float(((counts - expected).square().sum() / expected - (bins - 1)) / math.sqrt(2 * (bins - 1)))


@pytest.mark.parametrize("seed, first, step", [(0, 0, 1), (2**80, 0, 1024), (-1, 2**40, 1)])
def test_draws_are_uniform(seed, first, step):
    u = draws(seed, 0, first + torch.arange(100_000) * step, 0, 3)
    assert u.dtype == torch.float32 and u.min() >= 0 and u.max() < 1
    assert all(abs(chi_square(column, 256)) < 4 for column in u.unbind(1))
    assert abs(chi_square((u * 2**24).long() % 256 / 256, 256)) < 4  # the last bits, too


def test_neighbouring_draws_are_independent():
    index = torch.arange(100_000)
    first, lane = draws(0, 0, index, 0, 2).unbind(1)
    others = [draws(*at)[:, 0] for at in ((1, 0, index, 0, 1), (0, 1, index, 0, 1), (0, 0, index, 1, 1))]
    for other in (lane, *others, *(first.roll(step) for step in (1, 2, 10, 64, 1024))):
        cells = (first * 16).floor() * 16 + (other * 16).floor()  # any dependence, not the linear one alone
        assert abs(chi_square((cells + 0.5) / 256, 256)) < 4


def test_draws_are_these_numbers_on_every_machine():
    expected = [[8418642, 2071290], [15526466, 14937712], [1430388, 4935962]]  # the formula in Python's own integers
    assert (draws(0, 1, torch.tensor([0, 1, 59_999]), 2, 2) * 2**24).tolist() == expected


def test_samples_seeds_and_epochs_differ_and_repeat():
    x, index = batch(1, 3, 24, 24).expand(8, -1, -1, -1), torch.arange(8)
    runs = [augment(ALL, x, index, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert len(torch.cat(runs[:3]).flatten(1).unique(dim=0)) == 24
    assert torch.equal(runs[0], runs[3]) and torch.equal(x[:1], batch(1, 3, 24, 24))  # x itself is left alone


def test_equal_transforms_of_one_list_draw_apart():
    x, index = batch(64, 1, 9, 9), torch.arange(64)
    y = augment([HorizontalFlip(), HorizontalFlip()], x, index, 0, 0)  # with one draw for both: x again
    assert 16 < (y != x).flatten(1).any(1).sum() < 48


@each_transform
def test_order_and_size_of_the_batch_change_no_bit(transform):
    x, index, order = batch(67, 3, 21, 30), torch.arange(67) + 1000, torch.arange(67) * 13 % 67
    whole = augment([transform], x, index, 0, 2)
    assert torch.equal(augment([transform], x[order], index[order], 0, 2), whole[order])
    for size in (1, 3, 16):
        parts = zip(x.split(size), index.split(size), strict=True)
        assert torch.equal(torch.cat([augment([transform], *part, 0, 2) for part in parts]), whole)


@each_transform
def test_no_value_is_read_back_from_the_device(transform):
    x, index = torch.empty(8, 3, 16, 12, device="meta"), torch.arange(8, device="meta")  # no values: reading raises
    assert augment([transform], x, index, 0, 0).shape == x.shape


@pytest.mark.gpu
def test_a_gpu_agrees_with_the_cpu():
    x, index = batch(8, 3, 16, 12), torch.arange(8)
    assert torch.equal(draws(0, 0, index.cuda(), 0, 5).cpu(), draws(0, 0, index, 0, 5))
    y = augment(ALL, x.cuda(), index.cuda(), 0, 0)
    torch.testing.assert_close(y.cpu(), augment(ALL, x, index, 0, 0), rtol=0, atol=1e-4)


@each_transform
def test_bf16_gives_nearly_what_float32_gives(transform):
    x, index = batch(8, 3, 28, 28).bfloat16(), torch.arange(8)
    expected = augment([transform], x.float(), index, 0, 0).bfloat16()  # the dtype is compared, too
    torch.testing.assert_close(augment([transform], x, index, 0, 0), expected, rtol=0, atol=2**-8)


SINGLE = {  # what torchvision does to one image
    "HorizontalFlip": lambda x, flip: V.horizontal_flip(x) if flip else x,
    "ShiftCrop": lambda x, top, left: V.crop(V.pad(x, [3] * 4), top, left, *x.shape[1:]),
    "Affine": lambda x, angle, right, down, *more: V.affine(x, angle, [right, down], *more, [0.0, 0.0], BILINEAR),
    "Erasing": lambda x, *rectangle: V.erase(x, *rectangle, torch.zeros(1)),
    "RandomResizedCrop": lambda x, *part: V.resized_crop(x, *part, x.shape[1:], BILINEAR),
    "BrightnessContrast": lambda x, by, stretch: V.adjust_contrast(V.adjust_brightness(x, by), stretch),
}


def parameters(transform, u: Tensor, shape: torch.Size) -> list[Tensor]:
    """What the numbers u (B, 5) stand for in each sample."""
    t, both = transform, 2 * u - 1
    return list(
        {
            "HorizontalFlip": lambda: [u[:, 0] < t.p],
            "ShiftCrop": lambda: (u[:, :2] * (2 * t.pixels + 1)).long().unbind(1),
            "Affine": lambda: [
                both[:, 0] * t.degrees,
                both[:, 1] * t.translate * shape[3],
                both[:, 2] * t.translate * shape[2],
                t.scale[0] + u[:, 4] * (t.scale[1] - t.scale[0]),
            ],
            "Erasing": lambda: erased(t, u, shape),
            "RandomResizedCrop": lambda: rectangle(u, t.scale, t.ratio, shape),
            "BrightnessContrast": lambda: [1 + both[:, 0] * t.brightness, 1 + both[:, 1] * t.contrast],
        }[type(t).__name__]()
    )


def erased(transform, u: Tensor, shape: torch.Size) -> list[Tensor]:
    top, left, height, width = rectangle(u, transform.scale, transform.ratio, shape)
    return [top, left, height * (u[:, 4] < transform.p), width]


@pytest.mark.parametrize("shape", [(16, 1, 28, 28), (16, 3, 20, 31), (1, 3, 33, 12), (0, 3, 16, 12)])
@each_transform
def test_each_sample_is_what_torchvision_makes_of_it(transform, shape):
    x, u = batch(*shape), draws(0, 0, torch.arange(shape[0]), 0, 5)
    y, chosen = transform(x, u), parameters(transform, u, x.shape)
    assert y.shape == x.shape
    for i, image in enumerate(y):
        expected = SINGLE[type(transform).__name__](x[i], *(p[i].item() for p in chosen))
        torch.testing.assert_close(image, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [HorizontalFlip, Erasing])
def test_p_is_the_share_of_samples_that_change(kind):
    x, index = batch(10_000, 1, 6, 6) + 0.1, torch.arange(10_000)
    for p, slack in ((0, 0), (0.3, 0.02), (1, 0)):
        changed = augment([kind(p)], x, index, 0, 0) != x
        assert abs(changed.flatten(1).any(1).float().mean() - p) <= slack


def test_random_parts_lie_inside_and_have_their_area():
    u = draws(0, 0, torch.arange(20_000), 0, 5)
    top, left, height, width = rectangle(u, (0.1, 0.2), (0.5, 2.0), torch.Size((20_000, 3, 100, 120)))
    assert (top.min(), left.min(), (top + height).max(), (left + width).max()) == (0, 0, 100, 120)
    share, ratio = height * width / 12_000, width / height
    assert 0.095 < share.min() < 0.105 and 0.195 < share.max() < 0.205
    assert 0.45 < ratio.min() < 0.55 and 1.9 < ratio.max() < 2.1


@pytest.mark.parametrize(
    "kind, settings, words",
    [
        (HorizontalFlip, {"p": 1.5}, r"`HorizontalFlip.p` must be a number from 0 to 1; got `1.5`\.$"),
        (HorizontalFlip, {"p": math.nan}, "got `nan`"),
        (ShiftCrop, {"pixels": 1.5}, "`ShiftCrop.pixels` must be a whole number from 0 up; got `1.5`"),
        (Affine, {"degrees": "ten"}, "`Affine.degrees` must be .* got `ten`"),
        (Affine, {"scale": 1.1}, r"`Affine.scale` must be a list of 2 numbers from 0.01 to 100; got `1.1`\.$"),
        (RandomResizedCrop, {"scale": [0.5, 2]}, r"`RandomResizedCrop.scale` must be .* from 0 to 1; got `\[0.5, 2\]`"),
    ],
)
def test_a_wrong_setting_is_answered_with_a_right_one(kind, settings, words):
    with pytest.raises(UserError, match=words):
        kind(**settings)
