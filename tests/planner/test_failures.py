"""Allocations that fail, each in turn: a clean error, nothing kept, and the next call works."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import leanconv as lc
from examples.networks import SMALL_NETWORKS
from leanconv.runtime import memory

pytestmark = pytest.mark.once  # any plan will do

MODEL = SMALL_NETWORKS["squeezenet_like"]().SerializeToString()
X = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)


class Failing:
    """Counts the calls of a function and lets one of them fail."""

    def __init__(self, function: object, number: int | None, error: Exception) -> None:
        self.function, self.number, self.error = function, number, error
        self.calls = 0

    def __call__(self, *arguments: object, **options: object) -> object:
        self.calls += 1
        if self.calls - 1 == self.number:
            raise self.error
        return self.function(*arguments, **options)  # type: ignore[operator]


@pytest.fixture(autouse=True)
def only_what_this_module_makes() -> Iterator[None]:
    """Keep what lives already, a session's worth, out of what is looked through again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_blocks() -> int:
    gc.collect()
    return sum(isinstance(each, memory.Block) for each in gc.get_objects())


@contextmanager
def failing(target: object, name: str, number: int | None, error: Exception) -> Iterator[Failing]:
    with pytest.MonkeyPatch.context() as patch:
        failing_ = Failing(getattr(target, name), number, error)
        patch.setattr(target, name, failing_)
        yield failing_


def run() -> np.ndarray:
    return lc.load(MODEL, threads=2)(X)


@pytest.mark.parametrize(
    ("target", "name", "error"),
    [
        (memory, "_private", OSError(12, "Cannot allocate memory")),
        (np, "full", MemoryError("Unable to allocate")),  # tables of what is packed
    ],
)
def test_every_allocation_of_a_network(target: object, name: str, error: Exception) -> None:
    expected = run()
    with failing(target, name, None, error) as counted:
        run()
    assert counted.calls > 0
    before = live_blocks()
    for number in range(min(counted.calls, 40)):
        with failing(target, name, number, error), pytest.raises(lc.LeanConvError) as caught:
            run()
        assert "memory" in str(caught.value)
        del caught
        error.__traceback__ = None  # it holds the frames that failed
        assert live_blocks() == before
        np.testing.assert_array_equal(run(), expected)


def test_outputs_that_cannot_be_had() -> None:
    net = lc.load(MODEL, threads=2)
    y = net(X)
    with failing(np, "empty", 0, MemoryError("no")):
        with pytest.raises(lc.LeanConvError, match="outputs"):
            net(X)
    np.testing.assert_array_equal(net(X), y)


def test_every_allocation_of_one_convolution() -> None:
    w = np.random.default_rng(1).standard_normal((32, 3, 3, 3)).astype(np.float32)
    expected = lc.conv2d(X, w, padding=1)
    with failing(memory, "_private", None, OSError()) as counted:
        lc.plan_conv2d(X.shape, w, padding=1)(X)
    before = live_blocks()
    for number in range(counted.calls):
        with failing(memory, "_private", number, OSError(12, "no")):
            with pytest.raises(lc.LeanConvError, match="memory"):
                lc.plan_conv2d(X.shape, w, padding=1)
        assert live_blocks() == before
        np.testing.assert_array_equal(lc.plan_conv2d(X.shape, w, padding=1)(X), expected)


def test_a_network_whose_second_shape_fails_keeps_its_first() -> None:
    net = lc.load(MODEL, threads=2, reproducible=True)
    y = net(X)
    with failing(memory, "_private", 0, OSError(12, "no")), pytest.raises(lc.LeanConvError):
        net(np.concatenate([X, X]))
    np.testing.assert_array_equal(net(X), y)
    np.testing.assert_array_equal(net(np.concatenate([X, X]))[:1], y)
