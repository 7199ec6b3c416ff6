"""Augmentation of whole batches on their device: what happens to a sample depends on (seed, epoch, index) only."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor

from leyden import UserError

Interval = Sequence[float]  # two numbers, lowest and highest

# Odd 64-bit numbers, written as int64 holds them: the steps of the counter, and SplitMix64's (shift, factor) rounds.
INDEX_STEP, LANE_STEP = 0x9E3779B97F4A7C15 - 2**64, 0xD1B54A32D192ED03 - 2**64
ROUNDS = (30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)


def draws(seed: int, epoch: int, index: Tensor, stream: int, k: int) -> Tensor:
    """Uniform float32 (B, k) in [0, 1) on the device of index (B,), the samples' numbers in their data set.

    A hashed counter (SplitMix64, Steele et al. 2014), so that order, batch size, rank and device change nothing.
    The stream is the transform's place in its list.
    """
    key = int.from_bytes(blake2b(f"{seed} {epoch} {stream}".encode(), digest_size=8).digest(), "big", signed=True)
    z = index.long()[:, None] * INDEX_STEP + (torch.arange(k, device=index.device) * LANE_STEP + key)
    for shift, factor in ROUNDS:
        z = (z ^ (z >> shift & 2 ** (64 - shift) - 1)) * factor  # the mask: >> of an int64 carries the sign down
    return (z >> 40 & 0xFFFFFF).float() * 2.0**-24  # 24 bits are what a float32 holds


def between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def number(name: str, value: float, low: float, high: float) -> float:
    """The value of a setting if it is a number from low to high, else a UserError."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise UserError(f"data.augment: {name} is {value!r}; type a number from {low:g} to {high:g}.")
    return value


def interval(name: str, value: Interval, low: float, high: float) -> Interval:
    """The value of a setting if it is two rising numbers from low to high, else a UserError."""
    pair = tuple(value) if isinstance(value, Sequence) else ()
    if [type(v) in (int, float) for v in pair] != [True, True] or not low <= pair[0] <= pair[1] <= high:
        raise UserError(f"data.augment: {name} is {value!r}; type [a, b], two rising numbers from {low:g} to {high:g}.")
    return pair


class Transform(ABC):
    """One augmentation in two steps that can be tried apart: draws -> parameters of each sample -> pixels.

    Not a Module, whose parameters and apply mean other things, nor a dataclass: in a list, OmegaConf makes it a config.
    """

    draws: int  # uniform numbers that each sample needs

    @abstractmethod
    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """What is to happen to each sample, as tensors (B,): from u (B, draws) and the shape of the batch."""

    @abstractmethod
    def apply(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """The batch (B, C, H, W) after it, same shape and dtype. Reads no value back from the device."""

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return self.apply(x, *self.parameters(u, x.shape))


class Augment:
    """The transforms in the order of their list, on x (B, C, H, W) with its samples' numbers index (B,)."""

    def __init__(self, transforms: Iterable[Transform], seed: int) -> None:
        self.transforms, self.seed = list(transforms), seed
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                kind = type(transform).__name__
                raise UserError(f"data.augment: {kind} is not a Transform of leyden.data.augment; type one that is.")

    def __call__(self, x: Tensor, index: Tensor, epoch: int) -> Tensor:
        for stream, transform in enumerate(self.transforms):
            x = transform(x, draws(self.seed, epoch, index, stream, transform.draws))
        return x


class HorizontalFlip(Transform):
    """Mirror left to right with probability p. Any dtype."""

    draws = 1

    def __init__(self, p: float = 0.5) -> None:
        self.p = number("p of HorizontalFlip", p, 0, 1)

    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        return (u[:, 0] < self.p,)

    def apply(self, x: Tensor, flip: Tensor) -> Tensor:
        columns = torch.arange(x.shape[-1], device=x.device)
        columns = torch.where(flip[:, None], columns.flip(0), columns)
        return x.gather(-1, columns[:, None, None].expand_as(x))


class ShiftCrop(Transform):
    """Pad by pixels of zeros on each side and crop back to size at a random place. Any dtype."""

    draws = 2

    def __init__(self, pixels: int = 4) -> None:
        if type(pixels) is not int or pixels < 0:
            raise UserError(f"data.augment: pixels of ShiftCrop is {pixels!r}; type a whole number from 0 up.")
        self.pixels = pixels

    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """Top and left corner of the crop in the padded image: 0 to 2 * pixels."""
        return (u * (2 * self.pixels + 1)).long().unbind(1)

    def apply(self, x: Tensor, top: Tensor, left: Tensor) -> Tensor:
        # a view (B, C, top, left, H, W) of every possible crop: faster than index arithmetic
        crops = F.pad(x, [self.pixels] * 4).unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)
        return crops[torch.arange(len(x), device=x.device), :, top, left]


class Rotation(Transform):
    """Turn about the centre by up to +-degrees: bilinear, zeros from outside."""

    draws = 1

    def __init__(self, degrees: float = 10.0) -> None:
        self.degrees = number("degrees of Rotation", degrees, 0, 180)

    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """The angle in degrees, counter-clockwise."""
        return ((2 * u[:, 0] - 1) * self.degrees,)

    def apply(self, x: Tensor, angle: Tensor) -> Tensor:
        cos, sin = angle.deg2rad().cos(), angle.deg2rad().sin()
        return warp(x, ((cos, -sin), (sin, cos)), (torch.zeros_like(cos), torch.zeros_like(cos)))


class Affine(Transform):
    """Turn (+-degrees), shear along x (+-degrees), scale (factors from, to) and shift (+- that fraction of each side),
    about the centre: bilinear, zeros from outside."""

    draws = 5

    def __init__(
        self, degrees: float = 10.0, translate: float = 0.1, scale: Interval = (0.9, 1.1), shear: float = 0.0
    ) -> None:
        self.degrees = number("degrees of Affine", degrees, 0, 180)
        self.translate = number("translate of Affine", translate, 0, 1)
        self.scale = interval("scale of Affine", scale, 0.01, 100)
        self.shear = number("shear of Affine", shear, 0, 89)

    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """The angle in degrees, clockwise; the shift in pixels, right and down; the scale; the shear in degrees."""
        angle, right, down, shear, _ = (2 * u - 1).unbind(1)
        right, down = right * self.translate * shape[3], down * self.translate * shape[2]
        return angle * self.degrees, right, down, between(u[:, 4], *self.scale), shear * self.shear

    def apply(self, x: Tensor, angle: Tensor, right: Tensor, down: Tensor, scale: Tensor, shear: Tensor) -> Tensor:
        cos, sin, tan = angle.deg2rad().cos() / scale, angle.deg2rad().sin() / scale, shear.deg2rad().tan()
        a, b, c, d = cos - sin * tan, sin + cos * tan, -sin, cos
        return warp(x, ((a, b), (c, d)), (-a * right - b * down, -c * right - d * down))


def warp(x: Tensor, matrix: tuple[tuple[Tensor, Tensor], ...], shift: tuple[Tensor, Tensor]) -> Tensor:
    """Fill the pixel at p with what stands in x at matrix p + shift (tensors (B,); pixels from the centre; x before y).

    Not by F.affine_grid: that is a matrix product, which a GPU may do in TF32, with 10 bits to a coordinate.
    Within 1e-5 of torchvision at 32 pixels, 6e-5 at 224: both round coordinates to float32.
    """
    h, w = x.shape[2:]
    across = torch.arange(w, device=x.device) - (w - 1) / 2
    down = (torch.arange(h, device=x.device) - (h - 1) / 2)[:, None]
    grid = [
        (of_x[:, None, None] * across + of_y[:, None, None] * down + offset[:, None, None]) * (2 / side)
        for (of_x, of_y), offset, side in zip(matrix, shift, (w, h), strict=True)
    ]
    # float32, because bf16 coordinates would move pixels
    return F.grid_sample(x.float(), torch.stack(grid, -1), align_corners=False).to(x.dtype)


class Erasing(Transform):
    """With probability p fill a rectangle with value: its share of the area from scale, its height over width from
    ratio, its sides 1 pixel to the image's own (Zhong et al. 2017)."""

    draws = 5

    def __init__(
        self, p: float = 0.5, scale: Interval = (0.02, 0.33), ratio: Interval = (0.3, 3.3), value: float = 0.0
    ) -> None:
        self.p = number("p of Erasing", p, 0, 1)
        self.scale = interval("scale of Erasing", scale, 0, 1)
        self.ratio = interval("ratio of Erasing", ratio, 0.01, 100)
        self.value = number("value of Erasing", value, 0, 1)

    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """Top, left, height and width in pixels; height 0 where nothing is erased."""
        hit, area, ratio, top, left = u.unbind(1)
        area = between(area, *self.scale) * (shape[2] * shape[3])
        ratio = between(ratio, *map(math.log, self.ratio)).exp()
        height = (area * ratio).sqrt().round().clamp(1, shape[2]) * (hit < self.p)
        width = (area / ratio).sqrt().round().clamp(1, shape[3])
        corner = (top * (shape[2] + 1 - height)).long(), (left * (shape[3] + 1 - width)).long()
        return *corner, height.long(), width.long()

    def apply(self, x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
        rows, columns = (torch.arange(side, device=x.device) for side in x.shape[2:])
        rows = (rows >= top[:, None]) & (rows < (top + height)[:, None])
        columns = (columns >= left[:, None]) & (columns < (left + width)[:, None])
        return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], self.value)


class BrightnessContrast(Transform):
    """Multiply by a factor of 1 +- brightness, then stretch about the mean grey by 1 +- contrast, within 0..1."""

    draws = 2

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2) -> None:
        self.brightness = number("brightness of BrightnessContrast", brightness, 0, 1)
        self.contrast = number("contrast of BrightnessContrast", contrast, 0, 1)

    def parameters(self, u: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """The two factors."""
        brightness, contrast = (2 * u - 1).unbind(1)
        return 1 + brightness * self.brightness, 1 + contrast * self.contrast

    def apply(self, x: Tensor, brightness: Tensor, contrast: Tensor) -> Tensor:
        bright = (x * brightness[:, None, None, None]).clamp(0, 1)
        means = bright.mean((2, 3))  # of each channel
        if x.shape[1] == 3:  # the eye's weights of red, green and blue (ITU-R BT.601)
            means = 0.2989 * means[:, 0:1] + 0.587 * means[:, 1:2] + 0.114 * means[:, 2:3]
        grey, contrast = means.mean(1)[:, None, None, None], contrast[:, None, None, None]
        return (bright * contrast + grey * (1 - contrast)).clamp(0, 1).to(x.dtype)
