"""Values that are bytes of others: nothing is copied that need not be, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.codegen.host import host
from leanconv.planner.storage import Views
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.errors import relative_error
from support.network_models import by_numpy, small, weights
from support.storage_check import check, lowered_network

node = helper.make_node
SIZES = {"a": 4, "b": 4, "ab": 8, "c": 2, "whole": 10, "other": 10, "outer": 30}


def placed(views: Views[str], parts: list[tuple[str | None, int]], whole: str) -> list[bool]:
    return views.place(parts, whole, SIZES.__getitem__, lambda root: root == "fixed")


def test_parts_of_one_buffer_take_it_with_them() -> None:
    views: Views[str] = Views()
    views.add("a", "ab", 0)
    views.add("b", "ab", 4)
    assert placed(views, [("a", 0), ("b", 4), ("c", 8)], "whole") == [True] * 3
    assert views.find("ab") == ("whole", 0)
    assert views.find("b") == ("whole", 4)
    assert placed(views, [("whole", 20)], "outer") == [True]
    assert views.find("c") == ("outer", 28)


def test_what_a_buffer_covers_must_be_its_own() -> None:
    views: Views[str] = Views()
    views.add("a", "ab", 0)
    views.add("b", "ab", 4)
    assert placed(views, [("b", 0), ("a", 4), ("c", 8)], "whole") == [False, False, True]
    assert views.find("a") == ("ab", 0)


def test_a_value_has_one_place() -> None:
    views: Views[str] = Views()
    assert placed(views, [("a", 0), ("a", 4), ("c", 8)], "whole") == [True, False, True]
    assert placed(views, [("a", 0), ("b", 4), (None, 8)], "other") == [False, True, False]


def test_long_chains_of_views_are_walked_once() -> None:
    views: Views[int] = Views()
    for number in range(100_000):
        views.add(number, number + 1, 1)
    assert views.find(0) == (100_000, 100_000)
    assert views.find(1) == (100_000, 99_999)


def split(block: int = 16) -> bytes:
    """Halves, one of them convolved, put together again; a skip connection around it all."""
    return small(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("Split", ["b"], ["l", "r"], axis=1),
            node("Conv", ["r", "v"], ["s"], pads=[1] * 4),
            node("Sigmoid", ["s"], ["t"]),
            node("Concat", ["l", "r", "t"], ["c"], axis=1),
            node("MaxPool", ["c"], ["m"], kernel_shape=[3, 3], pads=[1] * 4),
            node("Concat", ["m", "c", "b"], ["d"], axis=1),
            node("Conv", ["d", "u"], ["y"]),
        ],
        {"x": ("N", 3, 9, 10)},
        {"y": ("N", 8, 9, 10)},
        {
            "w": weights(2 * block, 3, 1, 1),
            "v": weights(block, block, 3, 3, seed=4),
            "u": weights(8, 8 * block, 1, 1, seed=5),
        },
    )


@pytest.mark.presets
@pytest.mark.parametrize("target", ["haswell", "skylake-avx512", "neoverse-n1"])
@pytest.mark.parametrize(("block", "batch"), [(16, 1), (16, 3), (10, 1)])
def test_no_part_is_lost(block: int, batch: int, target: str) -> None:
    lowered = lowered_network(split(block), preset(target), batch)
    check(lowered)
    if batch == 1 and block == 16:
        copies = [step for step in lowered.steps if step.op in ("Concat", "Split")]
        (copy,) = copies  # "b" lies in "c" already, and is there twice
        assert len(copy.calls) == 1


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(("block", "batch"), [(16, 1), (16, 3), (10, 1)])
def test_answers_are_those_of_the_definition(block: int, batch: int, dtype: str) -> None:
    built = split(block)
    x = weights(batch, 3, 9, 10, seed=7).astype(dtype)
    exact = by_numpy(built, {"x": x})["y"]
    net = lc.load(built, dtype=dtype)
    assert relative_error(net(x), exact) < (1e-5 if dtype == FLOAT32 else 1e-12)
    lean = lc.load(built, dtype=dtype, memory_limit=net.plan.memory_bytes)
    assert relative_error(lean(x), exact) < (1e-5 if dtype == FLOAT32 else 1e-12)


def ends() -> bytes:
    """Parts, wholes and slices that are outputs; parts that are the user's or constant."""
    return small(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Concat", ["a", "x", "k", "a"], ["b"], axis=1),
            node("Slice", ["b", "starts", "stops", "axes"], ["c"]),
            node("Concat", ["b", "c"], ["d"], axis=1),
            node("Slice", ["x", "starts", "stops", "axes"], ["e"]),
        ],
        {"x": (1, 16, 5, 7)},
        {
            "a": (1, 16, 5, 7),
            "c": (1, 8, 5, 7),
            "d": (1, 72, 5, 7),
            "e": (1, 8, 5, 7),
            "b": (1, 64, 5, 7),
        },
        {
            "w": weights(16, 16, 1, 1),
            "k": weights(1, 16, 5, 7, seed=8),
            "starts": np.array([4], np.int64),
            "stops": np.array([12], np.int64),
            "axes": np.array([1], np.int64),
        },
    )


def test_parts_that_are_outputs() -> None:
    built = ends()
    for target in ("haswell", "skylake-avx512"):
        check(lowered_network(built, preset(target)))
    x = weights(1, 16, 5, 7, seed=9)
    net = lc.load(built)
    exact = by_numpy(built, {"x": x})
    for name, array in net.run({"x": x}).items():
        assert relative_error(array, exact[name]) < 1e-5, name


def test_a_dense_block_grows_in_one_buffer() -> None:
    """Its Concats hold one another: bytes of the largest, not of all."""
    nodes, held, channels = [], "x", 16
    constants = {}
    for number in range(6):
        nodes.append(node("Conv", [held, f"w{number}"], [f"g{number}"], pads=[1] * 4))
        nodes.append(node("Concat", [held, f"g{number}"], [f"h{number}"], axis=1))
        constants[f"w{number}"] = weights(16, channels, 3, 3, seed=number)
        held, channels = f"h{number}", channels + 16
    nodes.append(node("Conv", [held, "u"], ["y"]))
    constants["u"] = weights(8, channels, 1, 1)
    built = small(nodes, {"x": (1, 16, 24, 24)}, {"y": (1, 8, 24, 24)}, constants)
    lowered = lowered_network(built, host())
    size = channels * 24 * 24 * 4
    assert check(lowered) <= size + 2 * 16 * 24 * 24 * 4
    x = weights(1, 16, 24, 24, seed=9)
    assert relative_error(lc.load(built)(x), by_numpy(built, {"x": x})["y"]) < 1e-5


def test_a_part_takes_over_no_memory_that_lies_otherwise() -> None:
    """Two thirds of a dying buffer, written to the other two thirds of one of its size."""
    built = small(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Slice", ["a", "starts", "stops", "axes"], ["r"]),
            node("Sigmoid", ["r"], ["t"]),
            node("Conv", ["t", "v"], ["u"]),
            node("Concat", ["t", "u"], ["c"], axis=1),
            node("Conv", ["c", "z"], ["y"]),
        ],
        {"x": (1, 3, 20, 20)},
        {"y": (1, 8, 20, 20)},
        {
            "w": weights(48, 3, 1, 1),
            "v": weights(16, 32, 1, 1),
            "z": weights(8, 48, 1, 1),
            "starts": np.array([16], np.int64),
            "stops": np.array([48], np.int64),
            "axes": np.array([1], np.int64),
        },
    )
    for target in ("haswell", "skylake-avx512"):
        check(lowered_network(built, preset(target)))
    x = weights(1, 3, 20, 20, seed=9)
    assert relative_error(lc.load(built)(x), by_numpy(built, {"x": x})["y"]) < 1e-5
