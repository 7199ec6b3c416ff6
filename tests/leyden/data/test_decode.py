from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from leyden import UserError
from leyden.data import decode as module
from leyden.data.decode import decode

PHOTOS = [Image.fromarray(picture) for picture in load_sample_images().images]
SMALL = PHOTOS[0].resize((40, 30))
NAMES = ["photo", "собака", "犬と猫", "كلب", "σκύλος 'and \"quotes\"' $HOME %s #1", "n" * 200]


def put(path, picture, **keywords):
    picture.save(path, **keywords)
    return path


def reference(picture, size):
    """As Pillow resizes, with antialiasing: 3 x H x W in 0..1."""
    resized = picture.convert("RGB").resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1) / 255


def close(x, y, atol=0.01):
    return torch.allclose(x / 255 if x.dtype == torch.uint8 else x, y, atol=atol, rtol=0)


@pytest.mark.parametrize("keywords", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
@pytest.mark.parametrize("size", [(224, 224), (64, 200), (500, 700)])
def test_it_is_within_a_hundredth_of_an_antialiased_resize(size, keywords, tmp_path):
    for number, photo in enumerate([*PHOTOS, PHOTOS[1].resize((1801, 1203)), PHOTOS[0].convert("L")]):
        path = put(tmp_path / f"{number}.jpg", photo, **keywords)
        x = decode(path, size)
        assert x.dtype == torch.uint8 and x.shape == (3, *size) and x.is_contiguous()
        assert close(x, reference(Image.open(path), size))


def test_sharp_colours_of_a_large_picture_are_averaged_too(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    path = put(tmp_path / "noise.jpg", Image.fromarray(noise))
    assert close(decode(path, (64, 64)), reference(Image.open(path), (64, 64)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ending", [".jpg", ".JFIF", ".png", ".WEBP", ".bmp", ".gif", ".TIFF"])
def test_a_file_of_each_kind_is_the_same_picture(ending, name, tmp_path):
    path = tmp_path / (name + ending)
    put(path, SMALL, format=module.Image.registered_extensions()[ending.lower()])
    assert decode(path).shape == (3, 30, 40)
    assert close(decode(path), reference(SMALL, (30, 40)), atol=0.01 if path.suffix in (".png", ".bmp") else 0.4)
    assert decode(str(path), (8, 8), channels=1).shape == (1, 8, 8)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_modes_of_png_come_out_in_colour_or_grey(mode, tmp_path):
    path = put(tmp_path / "a.png", SMALL.convert(mode))
    assert close(decode(path), reference(SMALL.convert(mode), (30, 40)))
    grey = SMALL.convert(mode).convert("RGB").convert("L")
    assert close(decode(path, channels=1)[0].float() / 255, torch.from_numpy(np.array(grey)) / 255)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_their_depth(kind, tmp_path):
    values = np.linspace(0, 65535, 400).reshape(20, 20).astype(np.uint16)
    path = put(tmp_path / "a", Image.fromarray(values), format=kind)
    assert close(decode(path).float() / 255, torch.from_numpy(values / 65535).float().expand(3, 20, 20), atol=0.002)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_thirty_two_bits_have_no_white(kind, tmp_path):
    path = put(tmp_path / "a.tiff", Image.fromarray(np.ones((4, 4), kind)))
    with pytest.raises(UserError, match=r"a.tiff cannot be decoded: nobody knows the white of its grey values"):
        decode(path)


def transparent(mode):
    """Left half of red that shows, right half of green that is hidden."""
    picture = Image.new("RGBA", (20, 10), (255, 0, 0, 255))
    picture.paste((0, 255, 0, 0), (10, 0, 20, 10))
    if mode == "P":
        picture = Image.new("P", (20, 10), 0)
        picture.putpalette([255, 0, 0, 0, 255, 0])
        picture.paste(1, (10, 0, 20, 10))
        picture.info["transparency"] = 1
    return picture.convert("LA") if mode == "LA" else picture


@pytest.mark.parametrize(
    ("mode", "kind"), [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("P", "GIF"), ("RGBA", "WEBP"), ("RGBA", "TIFF")]
)
@pytest.mark.parametrize(("background", "colour"), [("white", (255, 255, 255)), ("#102030", (16, 32, 48))])
def test_what_is_transparent_shows_the_background(mode, kind, background, colour, tmp_path):
    keywords = {"lossless": True} if kind == "WEBP" else {}
    x = decode(put(tmp_path / "a", transparent(mode), format=kind, **keywords), background=background)
    assert x[:, :, 10:].flatten(1).unique(dim=1).squeeze(1).tolist() == list(colour)
    red = [76, 76, 76] if mode == "LA" else [255, 0, 0]
    assert x[:, :, :10].flatten(1).unique(dim=1).squeeze(1).tolist() == red


def test_a_half_transparent_pixel_is_mixed(tmp_path):
    path = put(tmp_path / "a.png", Image.new("RGBA", (4, 4), (0, 0, 0, 128)))
    assert decode(path).unique().tolist() == [127]
    assert decode(path, background="black").unique().tolist() == [0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_orientation_of_exif_is_applied(kind, orientation, tmp_path):
    exif = Image.Exif()
    exif[274] = orientation
    path = put(tmp_path / "a", SMALL, format=kind, exif=exif)
    upright = module.ImageOps.exif_transpose(Image.open(path))
    assert upright.size == ((40, 30) if orientation < 5 else (30, 40))
    assert close(decode(path), reference(upright, upright.size[::-1]))
    assert close(decode(path, (16, 24)), reference(upright, (16, 24)))


def test_cmyk_is_right_with_adobes_marker(tmp_path):
    path = put(tmp_path / "a.jpg", Image.new("RGB", (16, 16), (200, 30, 60)).convert("CMYK"))
    assert Image.open(path).info["adobe"] == 100
    colour = torch.tensor([200, 30, 60])[:, None, None].expand(3, 16, 16) / 255
    assert close(decode(path), colour, atol=0.02)


def test_an_animation_is_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for ending in (".gif", ".webp", ".png", ".tif"):
        path = put(tmp_path / f"a{ending}", frames[0], save_all=True, append_images=frames[1:])
        assert decode(path)[:, 0, 0].tolist() == pytest.approx([255, 0, 0], abs=2), ending


def test_a_few_bytes_after_the_end_do_no_harm(tmp_path):
    path = put(tmp_path / "a.jpg", SMALL)
    path.write_bytes(path.read_bytes() + b"appended by a phone")
    assert close(decode(path), reference(SMALL, (30, 40)), atol=0.4)


def cut(kind, share):
    stream = BytesIO()
    PHOTOS[0].save(stream, kind)
    return stream.getvalue()[: int(len(stream.getvalue()) * share)]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cannot identify image file"),
        (b"this is a text\n", "cannot identify image file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify image file"),  # Pillow would start gs
        *[(cut(kind, share), "") for kind in module.FORMATS for share in (0.01, 0.5, 0.99)],
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_named(content, why, tmp_path):
    path = tmp_path / "my cat.jpg"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"my cat.jpg cannot be decoded: .*{why}") as caught:
        decode(path)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    (tmp_path / "link.jpg").symlink_to(tmp_path / "nowhere.jpg")
    for name in ("none.jpg", "link.jpg", "."):
        with pytest.raises(UserError, match=r"cannot be decoded: (No such file|Is a dir)"):
            decode(tmp_path / name)
