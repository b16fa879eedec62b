"""Images become inputs as the model's metadata says."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanconv.cli.images import Fitting, read_image
from leanconv.cli.preprocessing import PRESETS, Normalisation, Preprocessing
from leanconv.errors import InputError, MissingExtraError, ModelError

Picture = Callable[..., str]
GRAY = ("N", 1, 8, 8)
COLOUR = ("N", 3, 8, 8)
UNIT = Preprocessing(normalisation=PRESETS["unit"].normalisation)


def test_gray(picture: Picture) -> None:
    x = read_image(picture(51), GRAY, UNIT).x
    assert x.dtype == np.float32
    assert x.shape == (1, 1, 8, 8)
    np.testing.assert_allclose(x, 0.2, rtol=1e-6)


def test_imagenets_numbers_in_colour(picture: Picture) -> None:
    rules = Preprocessing(normalisation=PRESETS["imagenet"].normalisation)
    x = read_image(picture((255, 0, 51), mode="RGB"), COLOUR, rules).x
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    np.testing.assert_allclose(x[0, :, 3, 4], expected, rtol=1e-5)


def test_metadata_rules(picture: Picture) -> None:
    rules = Preprocessing.from_metadata(
        {
            "input_layout": "NHWC",
            "input_scale": "0.5",
            "input_mean": "[1, 2, 3]",
            "input_std": "[2]",
            "labels": '["cat", "dog"]',
        }
    )
    x = read_image(picture((10, 20, 30), mode="RGB"), (1, 8, 8, 3), rules).x
    assert x.shape == (1, 8, 8, 3)
    np.testing.assert_allclose(x[0, 0, 0], [2.0, 4.0, 6.0])
    assert rules.labels == ("cat", "dog")


def test_resize_and_conversion(picture: Picture) -> None:
    x = read_image(picture((255, 255, 255), size=(20, 10), mode="RGB"), GRAY, UNIT).x
    assert x.shape == (1, 1, 8, 8)
    np.testing.assert_allclose(x, 1.0)


def test_open_extents_keep_the_images_size(picture: Picture) -> None:
    x = read_image(picture(7, size=(20, 10)), ("N", 1, "H", "W"), UNIT).x
    assert x.shape == (1, 1, 10, 20)


@pytest.fixture
def stripes(tmp_path: Path) -> str:
    """A gray image, 4 high and 8 wide; column by column 0, 30, 60 … 210."""
    from PIL import Image

    file = tmp_path / "stripes.png"
    Image.fromarray(np.tile(np.arange(0, 240, 30, np.uint8), (4, 1))).save(file)
    return str(file)


RAW = Preprocessing(normalisation=Normalisation())


def test_a_letterbox_keeps_proportions_and_frames(stripes: str) -> None:
    shape = ("N", 1, 16, 16)
    found = read_image(stripes, shape, RAW, Fitting("letterbox"))
    assert found.x.shape == (1, 1, 16, 16)
    assert (found.size, found.scale, found.offset) == ((4, 8), (2.0, 2.0), (4, 0))
    assert np.all(found.x[0, 0, :4] == 114)
    assert np.all(found.x[0, 0, 12:] == 114)
    inside = found.x[0, 0, 4:12]
    assert inside[0, 0] == 0
    assert inside[-1, -1] == 210
    assert np.all(read_image(stripes, shape, RAW, Fitting("letterbox", fill=7)).x[0, 0, 0] == 7)


def test_a_crop_keeps_proportions_and_cuts(stripes: str) -> None:
    found = read_image(stripes, ("N", 1, 4, 4), RAW, Fitting("crop"))
    assert found.x[0, 0, 0].tolist() == [60, 90, 120, 150]
    assert (found.scale, found.offset) == ((1.0, 1.0), (0, -2))
    twice = read_image(stripes, ("N", 1, 8, 8), RAW, Fitting("crop"))
    assert (twice.scale, twice.offset) == ((2.0, 2.0), (0, -4))
    assert 45 < twice.x.min() < twice.x.max() < 165


def test_stretching_is_the_default_and_keeps_no_proportions(stripes: str) -> None:
    found = read_image(stripes, ("N", 1, 8, 8), RAW)
    assert (found.scale, found.offset) == ((2.0, 1.0), (0, 0))
    assert found.x[0, 0, 0].tolist() == list(range(0, 240, 30))


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_open_sizes_become_multiples(stripes: str, fit: str) -> None:
    found = read_image(stripes, ("N", 1, None, "W"), RAW, Fitting(fit, multiple=32))
    assert found.x.shape == (1, 1, 32, 32)
    assert read_image(stripes, ("N", 1, "H", "W"), RAW, Fitting(fit)).x.shape == (1, 1, 4, 8)


def test_points_of_the_input_are_found_again_in_the_image(tmp_path: Path) -> None:
    """`(point in the input - offset) / scale`, whatever the fit."""
    from PIL import Image

    pixels = np.zeros((30, 50), np.uint8)
    pixels[18:24, 20:28] = 255
    Image.fromarray(pixels).save(tmp_path / "p.png")
    for fit in ("stretch", "letterbox", "crop"):
        found = read_image(tmp_path / "p.png", (1, 1, 64, 80), RAW, Fitting(fit, fill=0))
        rows, columns = np.nonzero(found.x[0, 0] > 127)
        middle = (rows.mean() + 0.5 - found.offset[0]) / found.scale[0]
        across = (columns.mean() + 0.5 - found.offset[1]) / found.scale[1]
        assert (middle, across) == pytest.approx((21.0, 24.0), abs=0.3)


@pytest.mark.parametrize(
    "metadata",
    [
        {"input_layout": "CHWN"},
        {"input_scale": "fast"},
        {"input_scale": "[]"},
        {"input_scale": "1" + "0" * 400},
        {"input_mean": "NaN"},
        {"input_std": "[1, 0, 1]"},
        {"input_std": '{"a": 1}'},
        {"labels": "cat, dog"},
        {"labels": "[1, 2]"},
        {"labels": "[" * 100_000},
    ],
)
def test_metadata_that_cannot_be_read(metadata: dict[str, str]) -> None:
    with pytest.raises(ModelError, match=next(iter(metadata))):
        Preprocessing.from_metadata(metadata)


def test_wrong_number_of_means(picture: Picture) -> None:
    with pytest.raises(InputError, match="2 numbers for 3 channels"):
        read_image(picture(1), COLOUR, Preprocessing(normalisation=Normalisation(mean=(1.0, 2.0))))


@pytest.mark.parametrize("shape", [(1, 10), ("N", 4, 8, 8), ("N", "C", 8, 8)])
def test_networks_that_take_no_images(picture: Picture, shape: tuple[int | str, ...]) -> None:
    with pytest.raises(InputError, match="expected|not an image"):
        read_image(picture(1), shape, UNIT)


def test_files_that_are_no_images(tmp_path: Path, picture: Picture) -> None:
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    with pytest.raises(InputError, match=r"text\.png"):
        read_image(text, GRAY, UNIT)
    whole = Path(picture(9, size=(64, 64))).read_bytes()
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole[: len(whole) - 30])
    with pytest.raises(InputError, match=r"cut\.png"):
        read_image(cut, GRAY, UNIT)
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "absent.png", GRAY, UNIT)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    file = tmp_path / "bomb.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with pytest.raises(InputError, match="large|pixels"):
        read_image(file, GRAY, UNIT)


def test_without_pillow_the_error_names_the_extra(
    picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = picture(1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="pip install pillow"):
        read_image(file, GRAY, UNIT)
