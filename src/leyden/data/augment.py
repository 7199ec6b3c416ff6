"""Augmentation of batches on their device, a function of (seed, epoch, index) of each sample."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leyden import require

# Steps of a counter: odd 64-bit numbers, as int64 holds them.
INDEX_STEP, LANE_STEP = 0x9E3779B97F4A7C15 - 2**64, 0xD1B54A32D192ED03 - 2**64


def draws(seed: int, epoch: int, index: Tensor, stream: int, k: int) -> Tensor:
    """Uniform float32 (B, k) in [0, 1) of samples index (B,): hashed counters (SplitMix64: Steele et al. 2014)."""
    key = int.from_bytes(blake2b(f"{seed} {epoch} {stream}".encode(), digest_size=8).digest(), "big", signed=True)
    z = index.long()[:, None] * INDEX_STEP + (torch.arange(k, device=index.device) * LANE_STEP + key)
    for shift, factor in (30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64):
        z = (z ^ (z >> shift & 2 ** (64 - shift) - 1)) * factor  # masked, as >> carries the sign down
    return (z >> 40 & 0xFFFFFF).float() * 2.0**-24  # 24 bits are what a float32 holds


def between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def within(key: str, value: Any, low: float, high: float, count: int = 1) -> Any:
    """A number, or a list of `count`, from low to high; UserError for any other value."""
    numbers = value if count > 1 and isinstance(value, Sequence) else [value]
    good = len(numbers) == count and all(type(n) in (int, float) and low <= n <= high for n in numbers)
    require(good, key, f"{'a number' if count == 1 else f'a list of {count} numbers'} from {low:g} to {high:g}", value)
    return value


def whole(key: str, value: Any, low: int) -> Any:
    """A whole number from low up; UserError for any other value."""
    require(type(value) is int and value >= low, key, f"a whole number from {low} up", value)
    return value


def rectangle(u: Tensor, scale: Sequence, ratio: Sequence, shape: torch.Size) -> tuple[Tensor, ...]:
    """Top, left, height, width of a random part from u (B, 4): scale of the area, ratio of the sides."""
    area, aspect, top, left = u[:, :4].unbind(1)
    area = between(area, *scale) * (shape[2] * shape[3])
    aspect = between(aspect, *map(math.log, ratio)).exp()
    height = (area / aspect).sqrt().round().clamp(1, shape[2])
    width = (area * aspect).sqrt().round().clamp(1, shape[3])
    top, left = top * (shape[2] + 1 - height), left * (shape[3] + 1 - width)
    return top.long(), left.long(), height.long(), width.long()


class Transform:
    """One augmentation of a batch."""

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """The batch x (B, C, H, W) changed as u (B, 5) says; no value is read from the device."""
        raise NotImplementedError


def augment(transforms: Sequence[Transform], x: Tensor, index: Tensor, seed: int, epoch: int) -> Tensor:
    """The batch x (B, C, H, W) of samples index (B,) after the transforms."""
    for stream, transform in enumerate(transforms):
        x = transform(x, draws(seed, epoch, index, stream, 5))
    return x


class HorizontalFlip(Transform):
    """Mirror left to right with probability p."""

    def __init__(self, p: float = 0.5):
        self.p = within("HorizontalFlip.p", p, 0, 1)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.where((u[:, 0] < self.p)[:, None, None, None], x.flip(-1), x)


class ShiftCrop(Transform):
    """Pad by zeros, `pixels` on each side, and crop back to size at a random place."""

    def __init__(self, pixels: int = 4):
        self.pixels = whole("ShiftCrop.pixels", pixels, 0)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        top, left = (u[:, :2] * (2 * self.pixels + 1)).long().unbind(1)
        crops = F.pad(x, [self.pixels] * 4).unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        return crops[torch.arange(len(x), device=x.device), :, top, left]


class RandomResizedCrop(Transform):
    """Stretch a random part, `scale` of the area, over the picture, bilinear (Szegedy et al. 2014)."""

    ratio = 0.75, 1.3333

    def __init__(self, scale: Sequence = (0.25, 1.0)):
        self.scale = within("RandomResizedCrop.scale", scale, 0, 1, count=2)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        top, left, height, width = (p[:, None] for p in rectangle(u, self.scale, self.ratio, x.shape))
        column, row = stretched(left, width, x.shape[3]), stretched(top, height, x.shape[2])
        return sampled(x, column[:, None], row[:, :, None])


def stretched(start: Tensor, part: Tensor, side: int) -> Tensor:
    """Where the pixels of a side lie, from its middle, in a part (B, 1) that is stretched over it."""
    inside = (torch.arange(side, device=part.device) + 0.5) * (part / side) - 0.5
    return start + inside.clamp(min=0).minimum(part - 1) - (side - 1) / 2


def sampled(x: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """The batch read elsewhere, in pixels from the middle: bilinear, zeros from outside."""
    grid = torch.stack(torch.broadcast_tensors(column * (2 / x.shape[3]), row * (2 / x.shape[2])), -1)
    return F.grid_sample(x.float(), grid, align_corners=False).to(x.dtype)  # bf16 coordinates would move pixels


class Affine(Transform):
    """Turn (+-degrees), scale (from, to), shift (+-share of a side): bilinear, zeros from outside."""

    def __init__(self, degrees: float = 10.0, translate: float = 0.1, scale: Sequence = (0.9, 1.1)):
        self.degrees = within("Affine.degrees", degrees, 0, 180)
        self.translate = within("Affine.translate", translate, 0, 1)
        self.scale = within("Affine.scale", scale, 0.01, 100, count=2)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        # not by F.affine_grid, a matrix product, which a GPU may do in TF32, with 10 bits
        h, w = x.shape[2:]
        turn, right, down = between(u[:, :3, None, None], -1, 1).unbind(1)
        scale = between(u[:, 4, None, None], *self.scale)
        dx = torch.arange(w, device=x.device) - (w - 1) / 2 - right * self.translate * w
        dy = (torch.arange(h, device=x.device) - (h - 1) / 2)[:, None] - down * self.translate * h
        turn = (turn * self.degrees).deg2rad()
        cos, sin = turn.cos() / scale, turn.sin() / scale
        return sampled(x, cos * dx + sin * dy, cos * dy - sin * dx)


class Erasing(Transform):
    """Fill, with probability p, a random part, `scale` of the area, with zeros (Zhong et al. 2017)."""

    ratio = 0.3, 3.3

    def __init__(self, p: float = 0.5, scale: Sequence = (0.02, 0.33)):
        self.p, self.scale = within("Erasing.p", p, 0, 1), within("Erasing.scale", scale, 0, 1, count=2)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        top, left, height, width = rectangle(u[..., None, None, None], self.scale, self.ratio, x.shape)
        row = torch.arange(x.shape[2], device=x.device)[:, None] - top
        column = torch.arange(x.shape[3], device=x.device) - left
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return x.masked_fill(inside & (u[:, 4] < self.p)[:, None, None, None], 0)


class BrightnessContrast(Transform):
    """Multiply by 1 +- brightness, then stretch about the mean grey by 1 +- contrast, within 0..1."""

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2):
        self.brightness = within("BrightnessContrast.brightness", brightness, 0, 1)
        self.contrast = within("BrightnessContrast.contrast", contrast, 0, 1)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        brightness, contrast = between(u[:, :2, None, None, None], -1, 1).unbind(1)
        bright = (x * (1 + brightness * self.brightness)).clamp(0, 1)
        grey = bright.mean((2, 3), keepdim=True)  # of each channel
        if x.shape[1] == 3:  # the eye's weights (ITU-R BT.601)
            grey = 0.2989 * grey[:, 0:1] + 0.587 * grey[:, 1:2] + 0.114 * grey[:, 2:3]
        grey = grey.mean(1, keepdim=True)
        return grey.lerp(bright, 1 + contrast * self.contrast).clamp(0, 1).to(x.dtype)
