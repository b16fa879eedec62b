"""Images whose axes are not in the network's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.api import file_windows
from leanconv.api.tile_layouts import Arranged, LaidOutImage, chunk_sizes, laid_out_shape, placed
from leanconv.errors import InputError
from support.onnx_models import model

X = np.random.default_rng(0).integers(0, 256, (1, 3, 37, 50), np.uint8)


def w(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def convolution(rank: int, channels: int = 3, outputs: int = 4) -> lc.Tiled:
    pads = [1] * 2 * rank
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=pads)]
    shape = ["N", channels, *"DHW"[3 - rank :]]
    proto = model(nodes, {"x": shape}, ["y"], {"w": w(outputs, channels, *[3] * rank)})
    return lc.tiled(lc.load(proto, threads=1), tile=16)


@pytest.fixture(scope="module")
def tiled() -> Any:
    return convolution(2)


@pytest.mark.parametrize("layout", ["NCHW", "HWC", "yxs", "NHWC", "CYX", "TZCYX", "XYC"])
def test_layouts(tiled: Any, layout: str) -> None:
    """Read, written into an array that is given, made anew, and of the whole."""
    whole = tiled.whole(X)
    letters = layout.upper().translate(str.maketrans("TZYXS", "ABHWC"))
    order = ["NCHW".find(letter) for letter in letters]

    def laid(array: np.ndarray) -> np.ndarray:
        kept = [axis for axis in order if axis >= 0]
        found = array.transpose([*kept, *({*range(4)} - {*kept})])
        return found.reshape([1 if axis < 0 else array.shape[axis] for axis in order])

    x = np.ascontiguousarray(laid(X))
    expected, out = laid(whole), np.full(laid(whole).shape, np.nan, np.float32)
    assert tiled(x, out=out, layout=layout) is out
    for found in (out, tiled(x, layout=layout), tiled.whole(x, layout=layout)):
        np.testing.assert_array_equal(found, expected)
    known = LaidOutImage(x, layout)
    np.testing.assert_array_equal(tiled(known), whole)
    np.testing.assert_array_equal(tiled.run({"x": known}, out_layout={"y": layout})["y"], expected)


def test_what_a_layout_has_no_place_for_is_refused(tiled: Any) -> None:
    hwc = np.ascontiguousarray(X[0].transpose(1, 2, 0))
    for given, layout, message in [
        (hwc, "HW", "letter for each axis of 3 axes"),
        (hwc, "H3C", "letter for each axis"),
        (hwc, 3, "letter for each axis"),
        (hwc, "HCC", "two axes for the network's C"),
        (hwc, "YCS", "two axes for the network's C"),
        (hwc, "NCH", "no axis W"),
        (X[:, :, None].repeat(2, 2), "TCZYX", None),
        (X[:, :, None].repeat(2, 2).repeat(2, 0), "TCZYX", "two axes for the network's N"),
        (hwc[..., 0], "YX", r"uint8\[1x1x37x50\]"),
        (3, "YX", "expected an array"),
    ]:
        if message is None:
            assert tiled(given, layout=layout, out_layout="ZCYX").shape == (2, 4, 37, 50)
            continue
        with pytest.raises(InputError, match=message):
            tiled(given, layout=layout)
    with pytest.raises(InputError, match="no place for the axis C"):
        tiled(hwc, layout="HWC", out_layout="HW")
    with pytest.raises(InputError, match="out for 'y'"):
        tiled(hwc, layout="HWC", out=np.empty(hwc.shape, np.float32))
    both = np.zeros((1, 4, 37, 50), np.float32)
    with pytest.raises(InputError, match="memory of input 'x'"):
        tiled(both[:, :3], layout="NCHW", out=both)


def test_volumes_and_signals() -> None:
    volume = np.random.default_rng(2).standard_normal((20, 24, 28)).astype(np.float32)
    tiled = convolution(3, 1, 1)
    found = tiled(volume, layout="ZYX")
    np.testing.assert_array_equal(found, tiled.whole(volume[None, None])[0, 0])
    signal = volume[0, :, :2]
    tiled = convolution(1, 2, 2)
    found = tiled(signal, layout="XC")
    np.testing.assert_array_equal(found, tiled.whole(signal.T[None])[0].T)


def test_places() -> None:
    assert placed("TCZYX", (1, 3, 1, 8, 9), "NCHW", "x") == (0, 1, 3, 4)
    assert placed("TCZYX", (1, 3, 7, 8, 9), "NCHW", "x") == (2, 1, 3, 4)
    assert placed("TCZYX", (5, 3, 7, 8, 9), "NCDHW", "x") == (0, 1, 2, 3, 4)
    assert placed("YX", (8, 9), "NCHW", "x") == (None, None, 0, 1)
    assert laid_out_shape((1, 4, 8, 9), "NCHW", "TCZYX", "y") == (1, 4, 1, 8, 9)
    assert laid_out_shape((2, 8, 9), "NHW", "ZYX", "y") == (2, 8, 9)


def test_mapped_files_of_any_layout_are_read_and_written_by_calls(
    tiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a window are contiguous in (H, W, C), too; a chunk is one of the network's axes."""
    seen: list[Any] = []
    usual = file_windows.FileWindows.read

    def read(windows: Any, index: Any, into: np.ndarray) -> None:
        seen.append(windows.shape)
        usual(windows, index, into)

    monkeypatch.setattr(file_windows.FileWindows, "read", read)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (1, 37, 50, 3))
    x[...] = X.transpose(0, 2, 3, 1)
    y = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, (37, 50, 4))
    tiled(x, out=y, layout="NHWC", out_layout="YXC", journal=tmp_path / "tiles")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), tiled.whole(X)[0].transpose(1, 2, 0))
    if Path("/proc/self/maps").exists():
        assert seen
        assert set(seen) == {x.shape}


def test_chunks_are_in_the_networks_order() -> None:
    class Chunked:
        shape, dtype, chunks = (40, 48, 4), np.dtype(np.float32), (16, 24, 4)

    assert chunk_sizes(Arranged(Chunked(), "HWC", "NCHW", "y")) == (1, 4, 16, 24)
