"""Random networks of operations of all families: ONNX Runtime's answers, whatever the options."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.network import Network
from support.onnx_models import Array
from support.pruned_networks import PrunedNetwork
from support.random_networks import RandomNetwork, largest_difference
from support.sparse_models import sparsened

Feed = dict[str, Array]

SEEDS = range(20)
_ERROR = 2e-4  # of a float32 network of some ten operations


def check(case: RandomNetwork, found: dict[str, Array], expected: dict[str, Array]) -> None:
    """The same names, shapes, types and numbers: whole ones to the last bit."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        if name in case.smooth:
            assert largest_difference(found[name], array) <= _ERROR, name
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def check_bits(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """The same to the last bit."""
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def strided(array: Array) -> Array:
    """The same numbers, every other element of a larger array."""
    wide = np.repeat(array, 2, axis=-1)
    wide[..., 1::2] = np.nan
    return wide[..., ::2]


def run_every_way(
    seed: int, folder: Path, draw: Callable[[int], RandomNetwork] = RandomNetwork
) -> None:
    """Load a network, call it with all feeds, and once more with an option that the seed draws."""
    case = draw(seed)
    data, threads = case.proto.SerializeToString(), 1 + seed % 3
    net = lc.load(data, threads=threads)
    answers = []
    for feed, expected in zip(case.feeds, case.expected, strict=True):
        answers.append(net.run(feed))
        check(case, answers[-1], expected)
        assert net.plan.memory_bytes == net.used_bytes
    for other in (lc.load(data, threads=4 - threads), copy.deepcopy(net)):
        for feed, answer in zip(case.feeds, answers, strict=True):
            check_bits(other.run({"x": strided(feed["x"])}), answer)
    feed, expected = case.feeds[0], case.expected[0]
    OPTIONS[seed // 3 % len(OPTIONS)](case, net, feed, expected, folder)


def _within_the_least_limit(
    case: RandomNetwork, net: Network, feed: Feed, expected: Feed, folder: Path
) -> None:
    data, shape = case.proto.SerializeToString(), feed["x"].shape
    least = 1
    try:
        lc.load(data, memory_limit=least, shapes=shape).run(feed)
    except lc.BudgetError as error:
        least = error.smallest_bytes
    limited = lc.load(data, memory_limit=least, shapes=shape)
    check(case, limited.run(feed), expected)
    assert limited.used_bytes == limited.plan.memory_bytes <= least


def _reproducibly(
    case: RandomNetwork, net: Network, feed: Feed, expected: Feed, folder: Path
) -> None:
    data = case.proto.SerializeToString()
    one, two = (lc.load(data, reproducible=True, threads=n) for n in (1, 2))
    answer = one.run(feed)
    check(case, answer, expected)
    check_bits(two.run(feed), answer)


def _by_a_plan_file(
    case: RandomNetwork, net: Network, feed: Feed, expected: Feed, folder: Path
) -> None:
    answer = net.run(feed)
    net.plan.save(folder / "plan.json")
    data = case.proto.SerializeToString()
    check_bits(lc.load(data, plan=folder / "plan.json").run(feed), answer)


def _of_fixed_sizes(
    case: RandomNetwork, net: Network, feed: Feed, expected: Feed, folder: Path
) -> None:
    check(case, net.specialise(feed["x"].shape).run(feed), expected)


def _in_float64(
    case: RandomNetwork, net: Network, feed: Feed, expected: Feed, folder: Path
) -> None:
    exact = lc.load(case.proto.SerializeToString(), dtype="float64")
    found = exact.run({"x": feed["x"].astype("f8")})
    for name, array in expected.items():
        assert largest_difference(found[name], array) <= _ERROR, name


def _of_sparse_weights(
    case: RandomNetwork, net: Network, feed: Feed, expected: Feed, folder: Path
) -> None:
    check_bits(lc.load(sparsened(case.proto)).run(feed), net.run(feed))


OPTIONS = (
    _within_the_least_limit,
    _reproducibly,
    _by_a_plan_file,
    _of_fixed_sizes,
    _in_float64,
    _of_sparse_weights,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_they_are_right(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_every_way(seed, tmp_path)
    assert not caplog.records


@pytest.mark.parametrize("seed", range(10))
def test_pruned_ones_are_right(seed: int, tmp_path: Path) -> None:
    run_every_way(seed, tmp_path, PrunedNetwork)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("draw", [RandomNetwork, PrunedNetwork])
def test_thousands_are_right(
    draw: Callable[[int], RandomNetwork], block: int, tmp_path: Path
) -> None:
    for seed in range(1000 + 300 * block, 1300 + 300 * block):
        try:
            run_every_way(seed, tmp_path, draw)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
