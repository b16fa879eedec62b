"""Images become inputs as the model's metadata says."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanconv.cli.images import Preprocessing, read_image
from leanconv.errors import InputError, MissingExtraError, ModelError

Picture = Callable[..., str]
GRAY = ("N", 1, 8, 8)
COLOUR = ("N", 3, 8, 8)


def test_defaults_for_gray(picture: Picture) -> None:
    x = read_image(picture(51), GRAY, Preprocessing())
    assert x.dtype == np.float32
    assert x.shape == (1, 1, 8, 8)
    np.testing.assert_allclose(x, 0.2, rtol=1e-6)


def test_defaults_for_colour_are_imagenets(picture: Picture) -> None:
    x = read_image(picture((255, 0, 51), mode="RGB"), COLOUR, Preprocessing())
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
    x = read_image(picture((10, 20, 30), mode="RGB"), (1, 8, 8, 3), rules)
    assert x.shape == (1, 8, 8, 3)
    np.testing.assert_allclose(x[0, 0, 0], [2.0, 4.0, 6.0])
    assert [rules.label(i) for i in range(3)] == ["cat", "dog", "2"]


def test_resize_and_conversion(picture: Picture) -> None:
    x = read_image(picture((255, 255, 255), size=(20, 10), mode="RGB"), GRAY, Preprocessing())
    assert x.shape == (1, 1, 8, 8)
    np.testing.assert_allclose(x, 1.0)


def test_open_extents_keep_the_images_size(picture: Picture) -> None:
    x = read_image(picture(7, size=(20, 10)), ("N", 1, "H", "W"), Preprocessing())
    assert x.shape == (1, 1, 10, 20)


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
        read_image(picture(1), COLOUR, Preprocessing(mean=(1.0, 2.0)))


@pytest.mark.parametrize("shape", [(1, 10), ("N", 4, 8, 8), ("N", "C", 8, 8)])
def test_networks_that_take_no_images(picture: Picture, shape: tuple[int | str, ...]) -> None:
    with pytest.raises(InputError, match="expected|not an image"):
        read_image(picture(1), shape, Preprocessing())


def test_files_that_are_no_images(tmp_path: Path, picture: Picture) -> None:
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    with pytest.raises(InputError, match=r"text\.png"):
        read_image(text, GRAY, Preprocessing())
    whole = Path(picture(9, size=(64, 64))).read_bytes()
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole[: len(whole) - 30])
    with pytest.raises(InputError, match=r"cut\.png"):
        read_image(cut, GRAY, Preprocessing())
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "absent.png", GRAY, Preprocessing())


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    file = tmp_path / "bomb.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with pytest.raises(InputError, match="large|pixels"):
        read_image(file, GRAY, Preprocessing())


def test_without_pillow_the_error_names_the_extra(
    picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = picture(1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"leanconv\[image\]"):
        read_image(file, GRAY, Preprocessing())
