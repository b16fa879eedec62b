"""Weights in memory that a caller has mapped are left as they are."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.files import mapped_file

RNG = np.random.default_rng(0)
Map = Callable[[np.ndarray, Path], np.ndarray]


def anonymous(w: np.ndarray, folder: Path) -> np.ndarray:
    del folder
    made = mmap.mmap(-1, w.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    found: np.ndarray = np.frombuffer(made, w.dtype).reshape(w.shape)
    found[...] = w
    return found


def copy_on_write(w: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "w.npy", np.zeros_like(w))
    found: np.ndarray = np.load(folder / "w.npy", mmap_mode="c")
    found[...] = w
    return found


def read_only(w: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "w.npy", w)
    found: np.ndarray = np.load(folder / "w.npy", mmap_mode="r")
    return found


@pytest.mark.parametrize("place", [anonymous, copy_on_write, read_only])
def test_planning_leaves_mapped_weights_as_they_are(place: Map, tmp_path: Path) -> None:
    codes = RNG.integers(-127, 128, (64, 64, 3, 3), np.int8)
    reals = RNG.standard_normal((64, 64, 3, 3), np.float32)
    x = RNG.integers(0, 256, (1, 64, 8, 8), np.uint8)
    for w, given, call in (
        (codes, x, lc.conv2d),
        (reals, x.astype(np.float32), lc.conv2d),
        (reals, x.astype(np.float32), lc.conv_transpose2d),
    ):
        mapped = place(w, tmp_path)
        y = call(given, mapped)
        assert np.array_equal(mapped, w)
        assert np.array_equal(y, call(given, w))


def test_only_files_that_are_mapped_for_reading_are_let_go(tmp_path: Path) -> None:
    w = RNG.standard_normal((4, 1024), np.float32)
    assert mapped_file(read_only(w, tmp_path)[1:]) is not None
    assert mapped_file(copy_on_write(w, tmp_path)) is None
    assert mapped_file(anonymous(w, tmp_path)) is None
    assert mapped_file(w) is None
