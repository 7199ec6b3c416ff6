"""Pictures with words in them, as arrays of H x W x 3 in uint8."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf", "Arial.ttf")
INK, PAPER, PALE, DARK = (20, 20, 20), (255, 255, 255), (225, 235, 250), (8, 60, 130)
TILE, LINE = 160, 16  # pixels of a picture's side and of a line of text
COLUMNS = 4


@lru_cache
def font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """One of the machine with many scripts, or else Pillow's own."""
    for name in FONTS:
        try:
            return ImageFont.truetype(name, LINE - 4)
        except OSError:
            continue
    return ImageFont.load_default(LINE - 4)


def readable(text: str, instead: str, width: int = TILE) -> str:
    """The text where the font has all its letters, cut to the width; else something instead."""
    letters = font()
    missing = bytes(letters.getmask("\uffff"))
    if any(bytes(letters.getmask(letter)) == missing for letter in set(text) if not letter.isspace()):
        text = instead
    while letters.getlength(text) > width:
        text = text[:-2] + "…"
    return text


def tiles(pictures: Sequence[np.ndarray], captions: Sequence[Sequence[str]]) -> np.ndarray:
    """Pictures of H x W x 3 in rows, each with its lines of text below."""
    height = TILE + LINE * max(map(len, captions))
    columns = min(COLUMNS, len(pictures))
    sheet = Image.new("RGB", (columns * (TILE + 8), -(-len(pictures) // columns) * (height + 8)), PAPER)
    draw, letters = ImageDraw.Draw(sheet), font()
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = number % columns * (TILE + 8) + 4, number // columns * (height + 8) + 4
        scale = TILE / max(picture.shape[:2])
        size = max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale))
        how = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
        sheet.paste(Image.fromarray(picture).resize(size, how), (left, top))
        for line, text in enumerate(caption):
            draw.text((left, top + TILE + line * LINE), text, INK, letters)
    return np.asarray(sheet)


def matrix(counts: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Counts of true classes (rows) and predicted ones (columns), darker by their share of the row."""
    side = max(3, min(40, 800 // len(names)))
    letters, texts = font(), [readable(name, f"#{index}") for index, name in enumerate(names)]
    corner = "true \\ predicted"
    margin = round(max(map(letters.getlength, [corner, *texts]))) + 8 if side >= LINE else 0
    shares = (counts / counts.sum(1, keepdims=True).clip(1))[:, :, None]
    cells = np.where(shares > 0, PALE + (np.array(DARK) - PALE) * shares, PAPER).round().astype(np.uint8)
    sheet = Image.new("RGB", (margin + side * len(names),) * 2, PAPER)
    sheet.paste(Image.fromarray(cells).resize((side * len(names),) * 2, Image.Resampling.NEAREST), (margin, margin))
    draw = ImageDraw.Draw(sheet)
    for row, column in np.argwhere(counts) if margin else []:
        place = margin + (column + 0.5) * side, margin + (row + 0.5) * side
        colour = PAPER if shares[row, column, 0] > 0.5 else INK
        draw.text(place, str(counts[row, column]), colour, letters, anchor="mm")
    for index, text in enumerate(texts if margin else []):
        middle = margin + index * side + side // 2
        draw.text((margin - 4, middle), text, INK, letters, anchor="rm")
        label = Image.new("RGB", (margin - 4, LINE), PAPER)
        ImageDraw.Draw(label).text((0, 0), text, INK, letters)
        sheet.paste(label.rotate(90, expand=True), (middle - LINE // 2, 0))
    if margin:
        draw.text((4, 4), corner, INK, letters)
    return np.asarray(sheet)


def curve(xs: Sequence[float], ys: Sequence[float], mark: float | None, title: str) -> np.ndarray:
    """A line over x on a logarithmic axis, with a vertical line at `mark`; the ends of the axes are written."""
    width, height, margin = 640, 400, 40
    sheet = Image.new("RGB", (width, height), PAPER)
    draw, letters, u = ImageDraw.Draw(sheet), font(), np.log10(xs)
    low, high = min(ys), float(np.quantile(ys, 0.9)) + 0.1 * (max(ys) - min(ys))  # what diverges leaves the picture
    scale = (width - 2 * margin) / max(u[-1] - u[0], 1e-9), (height - 2 * margin) / max(high - low, 1e-9)
    down = [margin + (high - max(low, min(high, y))) * scale[1] for y in ys]
    right = [margin + (place - u[0]) * scale[0] for place in u]
    if mark:
        at = margin + (np.log10(mark) - u[0]) * scale[0]
        draw.line([at, margin, at, height - margin], (200, 60, 40), 2)
        draw.text((at + 4, margin), f"{mark:.2e}", (200, 60, 40), letters)
    draw.line(list(zip(right, down, strict=True)), DARK, 2)
    draw.rectangle([margin, margin, width - margin, height - margin], outline=INK)
    draw.text((margin, LINE), title, INK, letters)
    draw.text((margin, height - margin + 4), f"{xs[0]:.1e}", INK, letters)
    draw.text((width - margin, height - margin + 4), f"{xs[-1]:.1e}", INK, letters, anchor="ra")
    draw.text((margin + 4, margin + 4), f"{high:.3g}", INK, letters)
    draw.text((margin + 4, height - margin - LINE), f"{low:.3g}", INK, letters)
    return np.asarray(sheet)
