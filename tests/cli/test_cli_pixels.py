"""Pictures of every kind that Pillow reads are seen as a viewer shows them, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leanconv.cli.images import Fitting, read_image
from leanconv.cli.preprocessing import Normalisation, Preprocessing
from leanconv.errors import InputError

RAW = Preprocessing(normalisation=Normalisation())
LEVELS = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5  # 0 … 235, 6 high and 8 wide


def read(file: Path, channels: int = 1, background: int | None = None) -> np.ndarray:
    """The pixels of a file as a network of open size gets them, (channels, height, width)."""
    shape = ("N", channels, "H", "W")
    return read_image(file, shape, RAW, Fitting(background=background)).x[0]


def notes(file: Path) -> tuple[str, ...]:
    return read_image(file, ("N", 1, "H", "W"), RAW).notes


def colours(alpha: np.ndarray | None = None) -> Image.Image:
    planes = [LEVELS, 255 - LEVELS, LEVELS[::-1]] + ([] if alpha is None else [alpha])
    return Image.merge("RGB" if alpha is None else "RGBA", [Image.fromarray(p) for p in planes])


# By the EXIF standard (CIPA DC-008, tag 274): what shows a stored picture upright.
UPRIGHT: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda stored: stored,
    np.fliplr,
    lambda stored: np.rot90(stored, 2),
    np.flipud,
    np.transpose,
    lambda stored: np.rot90(stored, -1),
    lambda stored: np.rot90(stored, 2).T,
    np.rot90,
)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
def test_exif_orientation_is_followed(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file, plain = tmp_path / f"p.{suffix}", tmp_path / f"plain.{suffix}"
    picture = Image.fromarray(np.kron(LEVELS, np.ones((8, 8), np.uint8)))
    picture.save(file, exif=exif)
    picture.save(plain)
    upright = UPRIGHT[orientation - 1](read(plain)[0])
    found = read_image(file, ("N", 1, "H", "W"), RAW)
    np.testing.assert_array_equal(found.x[0, 0], upright)
    assert found.size == upright.shape
    assert len(found.notes) == (orientation != 1), found.notes


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm", "jp2"])
def test_sixteen_bits_are_scaled_not_cut_off(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"p.{suffix}"
    Image.fromarray(np.tile(LEVELS, (8, 8)).astype(np.uint16) * 257).save(file)
    np.testing.assert_array_equal(read(file)[0], np.tile(LEVELS, (8, 8)))
    assert "16 bits" in notes(file)[0]
    np.testing.assert_array_equal(read(file, 3)[1], np.tile(LEVELS, (8, 8)))


def test_sixteen_bits_and_one_level_that_is_transparent(tmp_path: Path) -> None:
    file = tmp_path / "p.png"
    Image.fromarray(LEVELS.astype(np.uint16) * 257).save(file, transparency=0)
    expected = np.where(LEVELS == 0, 255, LEVELS)
    np.testing.assert_array_equal(read(file)[0], expected)


def test_white_may_be_zero(tmp_path: Path) -> None:
    file = tmp_path / "p.tif"
    picture = Image.fromarray(LEVELS.astype(np.uint16) * 257)
    picture.save(file, tiffinfo={262: 0})
    with Image.open(file) as stored:
        white_is_zero = stored.tag_v2[262] == 0
    expected = 255 - LEVELS if white_is_zero else LEVELS
    np.testing.assert_array_equal(read(file)[0], expected)


def test_floats_of_0_to_1_are_scaled(tmp_path: Path) -> None:
    file = tmp_path / "p.tif"
    Image.fromarray(LEVELS.astype(np.float32) / 255).save(file)
    np.testing.assert_array_equal(read(file)[0], LEVELS)
    assert "floats" in notes(file)[0]


@pytest.mark.parametrize(
    "levels",
    [
        LEVELS.astype(np.float32),
        LEVELS.astype(np.float32) / 255 - 0.5,
        np.full((4, 4), np.nan, np.float32),
        LEVELS.astype(np.int32) * 100_000,
        LEVELS.astype(np.int32) - 100,
    ],
    ids=["floats to 235", "negative floats", "NaN", "32 bits", "negative integers"],
)
def test_numbers_without_a_known_white_are_refused(tmp_path: Path, levels: np.ndarray) -> None:
    file = tmp_path / "p.tif"
    Image.fromarray(levels).save(file)
    with pytest.raises(InputError, match=r"none\s+is known to be white; expected 0 to"):
        read(file)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "PA", "P", "La", "RGBa"])
@pytest.mark.parametrize("ink", [0, 255])
def test_ink_on_nothing_is_seen(tmp_path: Path, ink: int, mode: str) -> None:
    """Black ink on white, white ink on black, however the transparency is kept."""
    file = tmp_path / ("p.tif" if mode in ("La", "RGBa", "PA") else "p.png")
    alpha = np.where(LEVELS > 100, 255, 0).astype(np.uint8)
    picture = Image.merge("LA", [Image.fromarray(np.full_like(alpha, ink)), Image.fromarray(alpha)])
    if mode == "P":
        levels = Image.fromarray(alpha // 255).convert("P")
        levels.putpalette([255 - ink] * 3 + [ink] * 3)
        levels.save(file, transparency=0)
    else:
        try:
            picture.convert("RGBA").convert(mode).save(file)
        except (OSError, ValueError):
            picture.convert("RGBA").save(file)
    expected = np.where(LEVELS > 100, ink, 255 - ink)
    np.testing.assert_array_equal(read(file)[0], expected)
    np.testing.assert_array_equal(read(file, 3)[2], expected)
    assert "transparent parts on" in notes(file)[0]
    grey = read(file, background=90)[0]
    np.testing.assert_array_equal(grey, np.where(LEVELS > 100, ink, 90))


def test_transparency_that_hides_nothing_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "p.png"
    colours(np.full_like(LEVELS, 255)).save(file)
    np.testing.assert_array_equal(read(file, 3)[0], LEVELS)
    assert notes(file) == ()


def test_half_transparent_colours_are_mixed(tmp_path: Path) -> None:
    file = tmp_path / "p.png"
    colours(np.full_like(LEVELS, 128)).save(file)
    expected = LEVELS * (128 / 255) + 255 * (127 / 255)
    np.testing.assert_allclose(read(file, 3)[0], expected, atol=1)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV"])
def test_other_modes_are_converted(tmp_path: Path, mode: str) -> None:
    """Kept as TIFF, which has all of them but HSV, or as a palette's PNG."""
    file = tmp_path / ("p.png" if mode in ("P", "HSV") else "p.tif")
    picture = colours().convert(mode)
    (picture.convert("RGB") if mode == "HSV" else picture).save(file)
    with Image.open(file) as stored:
        expected = np.asarray(stored.convert("RGB"), np.float32).transpose(2, 0, 1)
    np.testing.assert_array_equal(read(file, 3), expected)
    said = ("CMYK, made RGB without its colour profile",) if mode == "CMYK" else ()
    assert notes(file) == said


@pytest.mark.parametrize("kind", ["gif", "png", "tif", "webp"])
def test_the_first_of_several_pictures_is_noted(tmp_path: Path, kind: str) -> None:
    file, first = tmp_path / f"p.{kind}", Image.fromarray(LEVELS)
    first.save(file)
    assert notes(file) == ()
    first.save(file, save_all=True, append_images=[first.transpose(Image.Transpose.ROTATE_180)])
    assert notes(file) == ("the first of several pictures in the file",)


def test_a_mode_without_a_right_conversion_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "p.tif"
    Image.new("LAB", (8, 8), (50, 10, 10)).save(file)
    with pytest.raises(
        InputError, match=r"image .*p\.tif: .*mode LAB.*expected gray, RGB, a palette"
    ):
        read(file, 3)


def test_blue_comes_first_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "p.png"
    colours().save(file)
    rules = Preprocessing(order="BGR", normalisation=Normalisation())
    x = read_image(file, ("N", 3, "H", "W"), rules).x[0]
    np.testing.assert_array_equal(x, read(file, 3)[::-1])


def test_integers_take_pixels_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "p.png"
    colours().save(file)
    last = Preprocessing(layout="NHWC")
    x = read_image(file, ("N", "H", "W", 3), last, dtype="uint8").x
    assert x.dtype == np.uint8
    np.testing.assert_array_equal(x[0, :, :, 0], LEVELS)
    halves = Preprocessing(layout="NHWC", normalisation=Normalisation(0.5, source="--scale"))
    with pytest.raises(InputError, match=r"takes uint8, and pixel / 2 \(--scale\)"):
        read_image(file, ("N", "H", "W", 3), halves, dtype="uint8")
