"""From a picture's file to its pixels: the one way for training and for predictions."""

import os
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageChops, ImageColor, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.io import ImageReadMode, decode_jpeg

from leyden import UserError

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # in any case
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # Pillow knows some that start other programs
VERSION = 1  # of the pixels that come out; a cache keeps those of one version
MODES = {1: "L", 3: "RGB"}
READ = {1: ImageReadMode.GRAY, 3: ImageReadMode.RGB}


def decode(
    path: str | Path, size: tuple[int, int] | None = None, channels: int = 3, background: str = "white"
) -> Tensor:
    """The picture as uint8 of channels x H x W, turned as its EXIF says, and resized (antialiased) to size, (H, W).

    Transparent pixels show the background, a colour's name or #rrggbb. Of an animation it is the first frame.

    Raises:
        UserError: the file cannot be read or decoded; it is named, with the reason.
    """
    try:
        return pixels(Path(path).read_bytes(), size, channels, background)
    except Exception as error:  # damaged files have errors of many kinds
        raise UserError(f"{shown(path)} cannot be decoded: {reason(error)}.") from error


def shown(path: str | Path) -> str:
    """A path that can be written anywhere, also where its bytes are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def reason(error: Exception) -> str:
    """Why a file was not decoded, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no picture of a kind that is known here"
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split()).rstrip(".")


def pixels(raw: bytes, size: tuple[int, int] | None, channels: int, background: str) -> Tensor:
    """The content of a file as `decode` gives it; raises whatever its decoder raises."""
    if not raw:
        raise ValueError("it is empty")
    image, x = Image.open(BytesIO(raw), formats=FORMATS), None
    if image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB"):  # by torchvision, 1.6 times as fast as by Pillow
        data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)  # a copy: torch takes only what it may write
        with suppress(RuntimeError):  # where it fails Pillow has the last word
            x = decode_jpeg(data, READ[channels], apply_exif_orientation=True)
    if x is None:
        flat = flatten(image, channels, background)
        x = torch.from_numpy(np.array(flat)).view(flat.height, flat.width, channels).permute(2, 0, 1)
    if size and x.shape[1:] != tuple(size):
        x = interpolate(x[None], tuple(size), mode="bilinear", antialias=True)[0]
    return x.contiguous()


def flatten(image: Image.Image, channels: int, background: str) -> Image.Image:
    """In 8 bits, grey or colour, upright, without transparency."""
    if image.mode.startswith(("I", "F")):
        return eight_bits(image).convert(MODES[channels])
    image.load()
    foreign = image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info
    image = ImageOps.exif_transpose(image)
    if foreign:  # Pillow takes all for Adobe's, which are stored inverted
        image = ImageChops.invert(image)
    if image.has_transparency_data:
        below = Image.new("RGBA", image.size, (*ImageColor.getrgb(background)[:3], 255))
        image = Image.alpha_composite(below, image.convert("RGBA"))
    return image.convert(MODES[channels])


def eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, or of the depth that a TIFF states. Raises ValueError for 32 bits."""
    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")):
        raise ValueError("it has 32 bits for a grey value, of which nobody knows the white; save it with 8 or 16")
    white = 2 ** (image.tag_v2.get(258, (16,))[0] if image.format == "TIFF" else 16) - 1
    values = np.asarray(ImageOps.exif_transpose(image)).astype(np.uint32)
    return Image.fromarray(((values * 255 + white // 2) // white).clip(max=255).astype(np.uint8))
