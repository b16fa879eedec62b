"""Arrays that are moved to a file without a name."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from leanconv.files import mapped_file
from leanconv.runtime import weight_file
from leanconv.runtime.weight_file import ConstantFile

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not hasattr(os, "pwrite"), reason="files are not written at places here"),
]
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    "array",
    [
        RANDOM.normal(size=(700, 33)),
        RANDOM.normal(size=(1300, 190)).T,
        RANDOM.normal(size=(1300, 190)).T.reshape(190, 13, 10, 10),
        RANDOM.normal(size=(90, 7, 40))[:, ::2],
        RANDOM.normal(size=(3, 3, 90, 70)).transpose(3, 2, 0, 1),
        RANDOM.normal(size=(50, 60, 40)).transpose(2, 1, 0),
        RANDOM.normal(size=40000)[::-2],
        RANDOM.integers(-9, 9, 70000).astype(np.int8),
    ],
    ids=["rows", "transposed", "split", "steps", "kernels", "planes", "back", "int8"],
)
def test_an_array_is_the_same_in_the_file(
    array: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "_PIECE_BYTES", 64 * 1024)
    file = ConstantFile(tmp_path / "own", 2**23)
    moved = [file.moved(array) for _ in range(2)]
    for each in moved:
        assert mapped_file(each) is not None
        assert each.flags.c_contiguous
        assert each.dtype == array.dtype
        np.testing.assert_array_equal(each, array)
    assert file.moved(moved[0]) is moved[0]
    assert not list((tmp_path / "own").iterdir())


def test_small_arrays_and_those_without_room_stay(tmp_path: Path) -> None:
    file = ConstantFile(tmp_path / "own", 2**17)
    small, large = np.ones(100), np.ones(2**15)
    assert file.moved(small) is small
    assert file.moved(large) is large
    fits = np.ones(2**13)
    assert file.moved(fits) is not fits


def test_what_is_transposed_is_not_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "_PIECE_BYTES", 64 * 1024)
    file = ConstantFile(tmp_path / "own", 2**23)
    array = RANDOM.normal(size=(3, 3, 300, 200)).transpose(3, 2, 0, 1)
    tracemalloc.start()
    try:
        moved = file.moved(array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert moved is not array
    assert peak < array.nbytes / 8
