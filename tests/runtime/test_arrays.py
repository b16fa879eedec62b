"""Looking at arrays natively: the address NumPy gives, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.runtime import arrays
from leanconv.runtime.arrays import Lookup
from leanconv.types import FLOAT32, FLOAT64

SHAPE = (2, 3, 5)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, "int64"])
@pytest.mark.parametrize("shape", [SHAPE, (7,), (), (1, 1, 1, 1), (4, 2)])
def test_finds_the_address(shape: tuple[int, ...], dtype: str) -> None:
    lookup = Lookup(shape, dtype)
    for array in (np.zeros(shape, dtype), np.zeros((3, *shape), dtype)[1, ...]):
        assert lookup(array) == array.ctypes.data
        array.setflags(write=False)
        assert lookup(array) == array.ctypes.data


def unaligned() -> np.ndarray:
    raw = np.zeros(4 * 30 + 1, np.uint8)
    return raw[1:].view(np.float32).reshape(SHAPE)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 3, 4), np.float32),
        np.zeros((2, 15), np.float32),
        np.zeros((2, 3, 5, 1), np.float32),
        np.zeros(SHAPE, np.float64),
        np.zeros(SHAPE, np.int32),
        np.zeros(SHAPE, np.dtype(np.float32).newbyteorder()),
        np.zeros((5, 3, 2), np.float32).T,
        np.zeros((2, 3, 10), np.float32)[:, :, ::2],
        unaligned(),
        np.ma.masked_array(np.zeros(SHAPE, np.float32)),
        [[1.0]],
        None,
        0,
        "array",
    ],
)
def test_finds_nothing_else(other: object) -> None:
    assert Lookup(SHAPE, FLOAT32)(other) == 0


def test_what_is_to_be_written_must_be_writeable() -> None:
    array = np.zeros(SHAPE, np.float32)
    lookup = Lookup(SHAPE, FLOAT32, writeable=True)
    assert lookup(array) == array.ctypes.data
    array.setflags(write=False)
    assert lookup(array) == 0


def test_an_array_that_grew_in_place_is_looked_at_anew() -> None:
    array = np.zeros(6, np.float32)
    lookup = Lookup((6,), FLOAT32)
    assert lookup(array)
    array.resize(1 << 20, refcheck=False)
    assert lookup(array) == 0
    assert Lookup((1 << 20,), FLOAT32)(array) == array.ctypes.data


def test_another_numpy_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays._native.cache_clear()
    monkeypatch.setattr(np, "__version__", "3.0.0")
    assert Lookup(SHAPE, "float32")(np.zeros(SHAPE, np.float32)) == 0
    monkeypatch.undo()
    arrays._native.cache_clear()
    array = np.zeros(SHAPE, np.float32)
    assert Lookup(SHAPE, FLOAT32)(array) == array.ctypes.data
