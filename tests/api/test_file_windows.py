"""Windows of mapped files, read and written by calls: what the mapping itself gives."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leanconv.api.file_windows import FileWindows, through_calls
from leanconv.errors import InputError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc where a file is mapped")
SHAPE = (2, 3, 50, 200)


def mapped(path: Path, kind: Any = np.float32, mode: str = "w+") -> np.memmap:
    array = np.lib.format.open_memmap(path, mode, np.dtype(kind), SHAPE)
    if mode == "w+":
        array[:] = np.random.default_rng(0).integers(0, 200, SHAPE)
    return array


VIEWS = {
    "whole": lambda x: x,
    "a part": lambda x: x[1:, :, 3:40, 20:],
    "channels last": lambda x: x.reshape(2, 50, 3, 200).transpose(0, 2, 1, 3),
    "every second row": lambda x: x[:, :, ::2],
    "one axis": lambda x: x.reshape(-1),
    "two": lambda x: x.reshape(50, -1),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kind", [np.uint8, np.float32, ">i2"])
def test_windows_are_read_and_written(tmp_path: Path, name: str, kind: Any) -> None:
    array = VIEWS[name](mapped(tmp_path / "x.npy", kind))
    random = np.random.default_rng(1)
    with ExitStack() as stack:
        through = through_calls(array, stack, writing=True)
        assert isinstance(through, FileWindows)
        for number in range(6):
            ends = [sorted(random.choice(n + 1, 2, replace=False)) for n in array.shape]
            index = tuple(slice(int(a), int(b)) for a, b in ends)
            if not number:
                index = tuple(slice(0, n) for n in array.shape)
            for dtype in (array.dtype, np.dtype(np.float64)):
                into = np.full(array[index].shape, 201, dtype)
                through.read(index, into)
                np.testing.assert_array_equal(into, array[index])
            expected = np.array(array)
            part = random.integers(0, 200, (9, *into.shape)).astype(array.dtype)
            through[index] = part[3]
            expected[index] = part[3]
            np.testing.assert_array_equal(array, expected)
        through.flush()


def test_a_part_of_a_larger_result_is_written(tmp_path: Path) -> None:
    array = mapped(tmp_path / "x.npy")
    part = np.random.default_rng(1).standard_normal((1, 3, 30, 30)).astype(np.float32)
    index = (slice(1, 2), slice(0, 3), slice(7, 17), slice(5, 14))
    with ExitStack() as stack:
        through = through_calls(array, stack, writing=True)
        through[index] = part[:, :, 4:14, 9:18]
    np.testing.assert_array_equal(array[index], part[:, :, 4:14, 9:18])


def test_what_is_not_a_shared_file_is_left_as_it_is(tmp_path: Path) -> None:
    x = mapped(tmp_path / "x.npy")
    x.flush()
    others = {
        "memory": np.zeros(SHAPE),
        "copy on write": np.load(tmp_path / "x.npy", mmap_mode="c"),
        "read only": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "backwards": x[..., ::-1],
        "columns": x.T,
        "empty": x[:0],
        "no array": "x",
    }
    with ExitStack() as stack:
        for array in others.values():
            assert through_calls(array, stack, writing=True) is array
        assert isinstance(through_calls(others["read only"], stack), FileWindows)
        os.rename(tmp_path / "x.npy", tmp_path / "y.npy")
        assert isinstance(through_calls(x, stack), FileWindows)
        mapped(tmp_path / "x.npy")
        os.remove(tmp_path / "y.npy")
        assert through_calls(x, stack) is x  # another file has its name


def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    x = mapped(tmp_path / "x.npy")
    whole = tuple(slice(0, n) for n in SHAPE)
    with ExitStack() as stack:
        through = through_calls(x, stack)
        os.truncate(tmp_path / "x.npy", 5000)
        with pytest.raises(InputError, match="ends at byte 5000"):
            through.read(whole, np.empty(SHAPE, np.float32))
        with pytest.raises(InputError, match="cannot be written"):  # it is open to be read
            through[whole] = np.zeros(SHAPE, np.float32)
