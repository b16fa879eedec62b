"""Memory of large results is taken again, but never while anything refers to an array in it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import LeanConvError
from leanconv.runtime import memory as module
from leanconv.runtime.memory import Block, Outputs
from leanconv.types import BFLOAT16, FLOAT32, UINT8, DType
from support.network_models import images, model

SHAPE = 3, 5, 1000
SIZE = 4 * 3 * 5 * 1000
LIMIT = 10 * SIZE


@pytest.fixture(autouse=True)
def _small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 1000)


def taken(outputs: Outputs, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """A new array."""
    array, address = outputs.maker(shape, dtype)()
    assert at(array) == address
    return array


def at(array: np.ndarray) -> int:
    """Where it lies; what is asked keeps no array alive."""
    return int(array.__array_interface__["data"][0])


def test_memory_is_taken_again_once_it_is_free() -> None:
    outputs = Outputs(LIMIT)
    first = taken(outputs, SHAPE, FLOAT32)
    assert first.shape == SHAPE
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert first.flags.aligned
    place = at(first)
    second = taken(outputs, SHAPE, FLOAT32)
    assert at(second) != place
    assert outputs.free_bytes == 0
    del first
    assert outputs.free_bytes == SIZE
    assert at(taken(outputs, (SIZE - 100,), UINT8)) == place
    assert at(taken(outputs, (SIZE // 2,), BFLOAT16)) == place


@pytest.mark.parametrize(
    "held",
    [
        lambda y: y[1:, 2],
        lambda y: y.view(np.uint8).reshape(-1)[-1:],
        lambda y: y.T[7].real,
        memoryview,
        lambda y: np.frombuffer(memoryview(y[0]), np.int32),
        lambda y: y.reshape(-1).data[7:],
        lambda y: y.ctypes,
        lambda y: np.from_dlpack(y),
        lambda y: y.base,
        lambda y: iter(y),
        lambda y: np.lib.stride_tricks.as_strided(y, (2,), (8,)),
    ],
)
def test_whatever_refers_to_an_array_keeps_its_memory(
    held: Callable[[np.ndarray], object],
) -> None:
    outputs = Outputs(LIMIT)
    y = taken(outputs, SHAPE, FLOAT32)
    place, kept = at(y), held(y)
    del y
    assert outputs.free_bytes == 0
    assert at(taken(outputs, SHAPE, FLOAT32)) != place
    del kept
    assert outputs.free_bytes > 0
    places = [taken(outputs, SHAPE, FLOAT32) for _ in range(2)]
    assert place in map(at, places)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a user collects and lets go at once, at most the limit stays."""
    outputs, fill = Outputs(LIMIT), itertools.count()
    collected = [taken(outputs, SHAPE, FLOAT32) for _ in range(25)]
    for number, array in zip(fill, collected, strict=False):
        array[:] = number
    assert [float(array.min()) for array in collected] == list(range(25))
    assert [float(array.max()) for array in collected] == list(range(25))
    assert len({at(array) for array in collected}) == 25
    del collected, array
    assert outputs.free_bytes == LIMIT
    larger = taken(outputs, (LIMIT - SIZE,), UINT8)  # there is room for one of the others
    del larger
    assert outputs.free_bytes == LIMIT
    del outputs
    # Sizes that come no more do not stay for ever.
    outputs = Outputs(LIMIT)
    taken(outputs, (5 * SIZE,), UINT8)
    for _ in range(2 * module._MOST_UNUSED):
        taken(outputs, SHAPE, FLOAT32)
    assert outputs.free_bytes == SIZE


def test_none_is_kept_beyond_the_limit_or_without_one() -> None:
    for outputs in (Outputs(0), Outputs(SIZE - 1)):
        y = taken(outputs, SHAPE, FLOAT32)
        assert y.flags.owndata
        del y
        assert outputs.free_bytes == 0


def test_free_memory_goes_where_the_system_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Outputs(2**60)
    taken(outputs, SHAPE, FLOAT32)
    with pytest.raises(LeanConvError, match="smaller batch"):
        taken(outputs, (2**50,), UINT8)
    assert outputs.free_bytes == 0


def test_threads_never_share_an_array() -> None:
    outputs, wrong = Outputs(LIMIT), []

    def use(number: int) -> None:
        for turn in range(300):
            y = taken(outputs, (SIZE // 4 - turn % 7,), FLOAT32)
            y[:] = number
            z = taken(outputs, (SIZE // 4,), FLOAT32)
            z[:] = -number
            if not (y == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert outputs.free_bytes <= LIMIT


def test_calls_take_memory_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of networks, plans and `conv2d`: what a user holds stays, what nobody holds is used again."""
    made: list[int] = []
    make = Block.__init__

    def counted(self: Block, size: int) -> None:
        made.append(size)
        make(self, size)

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((1, 3, 40, 40), (4, 3, 3, 3)))
    built = model("squeezenet_like")
    net, image = lc.load(built), images(built, 1)
    net(image)
    plan = lc.plan_conv2d(x.shape, w)
    calls: dict[str, Callable[[], np.ndarray]] = {
        "plan": lambda: plan(x),
        "conv2d": lambda: lc.conv2d(x, w),
        "conv_transpose2d": lambda: lc.conv_transpose2d(x, w.transpose(1, 0, 2, 3)),
    }
    for name, call in calls.items():
        expected = call().copy()
        kept = call()
        monkeypatch.setattr(Block, "__init__", counted)
        places = {at(call()) for _ in range(6)}
        monkeypatch.undo()
        monkeypatch.setattr(module, "_LEAST_BYTES", 1000)
        assert len(places) == 1, name
        assert at(kept) not in places
        np.testing.assert_array_equal(kept, expected)
    assert len(made) <= len(calls)
    monkeypatch.setattr(module, "_LEAST_BYTES", 1)
    held = [net(image) for _ in range(3)]
    assert len({at(y) for y in held}) == 3
    np.testing.assert_array_equal(held[0], held[2])
