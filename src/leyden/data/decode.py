"""From a picture's file to its pixels: the one way for training and for predictions."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageColor, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.io import ImageReadMode, decode_jpeg

from leyden import UserError, said

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # others of Pillow's start programs
MODES, READ = {1: "L", 3: "RGB"}, {1: ImageReadMode.GRAY, 3: ImageReadMode.RGB}


def decode(path: str | Path, size: Sequence[int] | None = None, channels: int = 3, background: str = "white") -> Tensor:
    """The picture, or its first frame, as uint8 of channels x H x W, upright, resized to size, (H, W).

    Transparent pixels show the background, a colour's name or #rrggbb.

    Raises:
        UserError: the file cannot be read or decoded; it is named, with the reason.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            x = None
            if image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB"):  # 1.6 times as fast as by Pillow
                raw = torch.from_numpy(np.fromfile(path, np.uint8))
                with suppress(RuntimeError):  # Pillow has the last word
                    x = decode_jpeg(raw, READ[channels], apply_exif_orientation=True)
            if x is None:
                flat = np.array(flatten(image, background).convert(MODES[channels]))
                x = torch.from_numpy(np.atleast_3d(flat)).permute(2, 0, 1)
        return resized(x[None], size)[0].contiguous()
    except Exception as error:  # of many kinds
        why = getattr(error, "strerror", None) or said(error)
        raise UserError(f"{path} cannot be decoded: {why}.") from error


def resized(x: Tensor, size: Sequence[int] | None) -> Tensor:
    """Pictures of B x C x H x W, antialiased; None leaves them as they are."""
    if size is None or list(x.shape[2:]) == list(size):
        return x
    return interpolate(x, tuple(size), mode="bilinear", antialias=True)


def flatten(image: Image.Image, background: str) -> Image.Image:
    """In 8 bits, upright, without transparency; ValueError where the white is unknown."""
    image.load()
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):  # of which Pillow 10 makes I from 16 bits
        raise ValueError("nobody knows the white of its grey values; save it with 8 or 16 bits")
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        return Image.fromarray(((np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8))
    if image.has_transparency_data:
        below = Image.new("RGBA", image.size, (*ImageColor.getrgb(background)[:3], 255))
        return Image.alpha_composite(below, image.convert("RGBA"))
    return image
