"""TIFF files, read window by window: every way in which pixels lie in them, and damaged ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from leanconv.errors import InputError
from leanconv.images import create_image, open_image, reopen_image, tiff
from leanconv.images.tiff import fits
from support.hostile import bounded

tifffile = pytest.importorskip("tifffile", reason="leanconv[images] is not installed")


def pixels(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(0, 200, shape).astype(dtype)


WAYS: dict[str, dict[str, Any]] = {
    "in one piece": {},
    "in one piece, BigTIFF": {"bigtiff": True},
    "in one piece, the other byte order": {"byteorder": ">"},
    "tiles": {"tile": (16, 32)},
    "deflated tiles": {"tile": (32, 16), "compression": "zlib"},
    "deflated strips": {"rowsperstrip": 5, "compression": "zlib"},
    "deflated strips, the other byte order": {
        "rowsperstrip": 7,
        "compression": "zlib",
        "byteorder": ">",
    },
}
SHAPES = [
    ("YX", (45, 70), {}),
    ("YXS", (45, 70, 3), {"photometric": "rgb"}),
    ("SYX", (3, 45, 70), {"photometric": "rgb", "planarconfig": "separate"}),
    ("QYX", (2, 45, 70), {"photometric": "minisblack"}),
    ("QQYXS", (2, 2, 33, 40, 3), {"photometric": "rgb"}),
    ("YX", (1, 70), {}),
    ("YX", (45, 1), {}),
]


def windows(shape: tuple[int, ...], count: int) -> list[tuple[slice, ...]]:
    random = Random(len(shape))
    ends = [[sorted(random.sample(range(n + 1), 2)) for n in shape] for _ in range(count)]
    return [tuple(slice(a, b) for a, b in each) for each in ends]


@pytest.mark.parametrize("way", WAYS)
def test_windows(tmp_path: Path, way: str) -> None:
    for number, (axes, shape, more) in enumerate(SHAPES):
        dtype = ["uint8", "uint16", "float32"][number % 3]
        expected = pixels(shape, dtype)
        path = tmp_path / f"{number}.tif"
        tifffile.imwrite(path, expected, metadata=None, **more, **WAYS[way])
        found = open_image(path)
        assert np.prod(found.shape) == np.prod(shape)
        assert found.dtype.newbyteorder("=") == dtype
        if 1 not in shape:
            assert (found.layout, found.shape) == (axes, shape) or "Q" in axes
        expected = expected.reshape(found.shape)
        for window in [tuple(slice(None) for _ in found.shape), *windows(found.shape, 4)]:
            part = found[window]
            assert part.dtype == found.dtype
            np.testing.assert_array_equal(part, expected[window])
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[..., -1], expected[..., -1])


def test_what_files_say_of_their_axes(tmp_path: Path) -> None:
    path, x = tmp_path / "x.ome.tif", pixels((3, 40, 50), "uint16")
    tifffile.imwrite(path, x, metadata={"axes": "CYX"}, tile=(16, 16), compression="zlib")
    found = open_image(path)
    assert found.layout == "CYX"
    np.testing.assert_array_equal(found[:, 3:30, 20:], x[:, 3:30, 20:])
    assert open_image(path, "ZYX").layout == "ZYX"
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again[:, 3:30, 20:], x[:, 3:30, 20:])
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, x[:, None], imagej=True, metadata={"axes": "ZCYX"})
    assert open_image(path).layout == "ZYX"
    np.testing.assert_array_equal(open_image(path)[1:], x[1:])


def test_resolutions(tmp_path: Path) -> None:
    path, x = tmp_path / "x.tif", pixels((64, 96, 3), "uint8")
    with tifffile.TiffWriter(path) as file:
        options = {"photometric": "rgb", "tile": (16, 16), "metadata": None}
        file.write(x, subifds=1, **options)
        file.write(x[::2, ::2], subfiletype=1, **options)
    assert open_image(path).shape == (64, 96, 3)
    np.testing.assert_array_equal(open_image(path, level=1)[:], x[::2, ::2])
    with pytest.raises(InputError, match="no level 2; expected 0 to 1"):
        open_image(path, level=2)


def test_tiles_that_are_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = tmp_path / "x.tif", pixels((128, 128), "uint8")
    tifffile.imwrite(path, x, tile=(16, 16), compression="zlib")
    monkeypatch.setattr(tiff, "KEPT_BYTES", 1024)
    found = open_image(path).array
    np.testing.assert_array_equal(found[:], x)
    assert len(found._kept) == 4
    assert found._kept_bytes == 1024


def test_a_file_is_made_and_written_in_parts(tmp_path: Path) -> None:
    path, x = tmp_path / "y.tif", pixels((4, 30, 40), "float32")
    out = create_image(path, x.shape, x.dtype, "CYX")
    for window in (np.s_[:, :20], np.s_[:, 20:]):
        out[window] = x[window]
    out.array.flush()
    np.testing.assert_array_equal(tifffile.imread(path), x)
    found = open_image(path)
    assert found.layout == "CYX"
    np.testing.assert_array_equal(found[:], x)
    with pytest.raises(InputError, match="is there already"):
        create_image(path, x.shape, x.dtype)
    with pytest.raises(InputError, match="no folder"):
        create_image(tmp_path / "a" / "y.tif", x.shape, x.dtype)
    with pytest.raises(InputError, match="ends in one of"):
        create_image(tmp_path / "y.png", x.shape, x.dtype)


@pytest.mark.parametrize("end", [".tif", ".npy"])
def test_a_result_that_was_cut_short_is_not_lengthened(tmp_path: Path, end: str) -> None:
    path, x = tmp_path / f"y{end}", pixels((4, 30, 40), "float32")
    out = create_image(path, x.shape, x.dtype, "CYX")
    out[:] = x
    out.array.flush()
    reopen_image(path, x.shape, x.dtype)[:, :3] = 0
    size = path.stat().st_size
    os.truncate(path, size - 1000)
    with pytest.raises(InputError, match="expected a whole file"):
        reopen_image(path, x.shape, x.dtype)
    assert path.stat().st_size == size - 1000


# -- files that somebody made to mislead -----------------------------------------------------------
def test_damaged_files(tmp_path: Path) -> None:
    """Bytes changed, taken out, put in: an image of some pixels, or an InputError."""
    path, random = tmp_path / "x.tif", Random(0)
    x = pixels((45, 70, 3), "uint8")
    for way in ("deflated tiles", "tiles", "in one piece", "deflated strips"):
        tifffile.imwrite(path, x, photometric="rgb", metadata=None, **WAYS[way])
        whole, ends = path.read_bytes(), []
        for _ in range(60):
            text = bytearray(whole)
            for _ in range(random.choice([1, 1, 4])):
                place = random.choice([random.randrange(len(text)), random.randrange(250)])
                text[place] = random.choice([0, 1, 255, text[place] ^ 1 << random.randrange(8)])
            path.write_bytes(text[: random.choice([len(text), len(text), random.randrange(400)])])
            with bounded():
                try:
                    found = open_image(path)
                    corner = tuple(slice(0, min(n, 64)) for n in found.shape)
                    found[corner]
                    ends.append("read")
                except InputError as error:
                    ends.append("refused" if "expected" in str(error) else str(error))
        assert set(ends) == {"read", "refused"}


def test_a_tile_that_grows_when_it_is_decoded_is_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "x.tif", np.zeros((4096, 4096), np.uint8)
    tifffile.imwrite(path, x, tile=(4096, 4096), compression="zlib", metadata=None)
    text = path.read_bytes()
    small = [(4096).to_bytes(2, "little"), (16).to_bytes(2, "little")]
    path.write_bytes(text[:400].replace(*small) + text[400:])
    found = open_image(path)
    assert found.shape == (16, 16)
    with bounded(), pytest.raises(InputError, match="longer than its pixels|bytes, and|decoded"):
        found[:]


def test_tiles_without_a_bound_are_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "x.tif", pixels((64, 64), "uint8")
    tifffile.imwrite(path, x, tile=(32, 32), compression="zlib", metadata=None)
    with tifffile.TiffFile(path, mode="r+") as file:
        for name in ("TileWidth", "TileLength", "ImageWidth", "ImageLength"):
            file.pages[0].tags[name].overwrite(1 << 30, dtype="I")
    with bounded(), pytest.raises(InputError, match="tile or strip takes|cannot be read"):
        open_image(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.tif")
    (tmp_path / "folder.tif").mkdir()
    (tmp_path / "zeros.tif").touch()
    os.truncate(tmp_path / "zeros.tif", 1 << 40)
    (tmp_path / "empty.tif").touch()
    for name in ("fifo", "folder", "zeros", "empty", "none"):
        with bounded(), pytest.raises(InputError, match="expected"):
            open_image(tmp_path / f"{name}.tif")


def test_a_jpeg_says_its_size_before_it_is_decoded() -> None:
    """Also behind a marker that has no length."""
    frame = b"\xff\xc0\x00\x11\x08\x00\x10\x00\x20" + bytes(20)
    for stream in (b"\xff\xd8" + frame, b"\xff\xd8\xff\x01" + frame, b"\xff\xd8\xff\xff" + frame):
        assert fits(stream, 7, 16 * 32, 0)
        assert not fits(stream, 7, 16 * 32 - 1, 0)
    assert not fits(b"\xff\xd8" + bytes(40), 7, 1 << 20, 0)
