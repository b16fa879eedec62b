"""`load(…, shapes=…)`: what is refused, and that no call within the range compiles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.api.inputs import InputSpec
from leanconv.api.stated_shapes import ShapeRanges
from leanconv.codegen import compile_threads, compiler
from leanconv.codegen.cache import DiskCache
from leanconv.errors import InputError, SpecError
from leanconv.types import FLOAT32
from support.onnx_models import model

RANGE = {"x": (1, 3, 16, (24, 96, 8))}


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attributes)


def network(shape: tuple[Any, ...] = (1, 3, "H", "W")) -> bytes:
    generator = np.random.default_rng(3)
    held = {
        "w0": generator.standard_normal((16, 3, 3, 3), np.float32),
        "w1": generator.standard_normal((16, 1, 3, 3), np.float32),
        "w2": generator.standard_normal((24, 16, 1, 1), np.float32),
        "columns": np.array([0, 24, -1]),
    }
    nodes = [
        node("Conv", ["x", "w0"], "a", pads=[1] * 4),
        node("Conv", ["a", "w1"], "b", pads=[1] * 4, strides=[2, 2], group=16),
        node("Conv", ["b", "w2"], "c"),
        node("HardSwish", ["c"], "h"),
        node("Reshape", ["h", "columns"], "d"),
        node("Softmax", ["d"], "y", axis=-1),
    ]
    built = model(nodes, {"x": shape}, ["y"], held, 17)
    return bytes(built.SerializeToString())


def images(width: int) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((1, 3, 16, width), np.float32)


def no_compiling(*_: object) -> None:
    raise AssertionError("a kernel is compiled")


def test_no_call_within_a_range_compiles(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = network()
    expected = {width: lc.load(built, threads=2)(images(width)) for width in range(24, 97, 8)}
    cache = DiskCache(tmp_path / "objects")  # there is nothing in it
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    monkeypatch.setattr(compiler, "loaded", lambda key: None)
    compiler._ranges.cache_clear()
    net = lc.load(built, shapes=RANGE, threads=2)
    monkeypatch.setattr(compile_threads, "compile_text", no_compiling)
    for width, answer in expected.items():
        assert np.array_equal(net(images(width)), answer), width
    compiler._ranges.cache_clear()


def test_a_second_load_fetches_what_the_first_one_compiled(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "objects")
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    compiler._ranges.cache_clear()
    first = lc.load(network(), shapes=RANGE)
    looked_at = []
    add = compiler.CodeAhead.add

    def counted(self: compiler.CodeAhead, kernels: Any) -> None:
        looked_at.append(kernels)
        add(self, kernels)

    monkeypatch.setattr(compiler.CodeAhead, "add", counted)
    second = lc.load(network(), shapes=RANGE)
    assert looked_at == []
    assert np.array_equal(first(images(40)), second(images(40)))
    wider = lc.load(network(), shapes={"x": (1, 3, 16, (24, 104, 8))})
    assert len(looked_at) == 11
    assert wider(images(104)).shape == (1, 24, 8 * 52)
    compiler._ranges.cache_clear()


def test_other_shapes_are_refused() -> None:
    net = lc.load(network(), shapes=RANGE)
    for width in (16, 25, 104):
        with pytest.raises(
            InputError, match=rf"1x3x16x{width}; expected .*\[24…96 in steps of 8\]"
        ):
            net(images(width))
    assert net.plan.inputs["x"].shape == (1, 3, 16, 24)  # the smallest end was planned last
    with pytest.raises(InputError, match="1x3x24x24"):
        net.bind((1, 3, 24, 24))


def test_a_network_of_a_range_can_be_sent() -> None:
    net = lc.load(network(), shapes={"x": (1, 3, 16, (24, 32, 8))})
    other = pickle.loads(pickle.dumps(net))
    assert np.array_equal(net(images(32)), other(images(32)))
    with pytest.raises(InputError, match="for which the network was loaded"):
        other(images(40))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (7, "expected a dictionary by the inputs' names"),
        ({"z": (1, 3, 16, 24)}, "names 'z'; expected the network's inputs, x"),
        ({"x": (1, 3, 16)}, "gives 3 axes for 'x'; expected 4"),
        ({"x": "1x3"}, "expected one extent for each axis"),
        ({"x": (1, 4, 16, 24)}, "the file fixes x 1x3xHxW, and its nodes do not take x 1x4x16"),
        ({"x": (1, (2, 3), 16, 24)}, "does not take x 1x2x16x24"),
        ({"x": (1, (1, 10**12), 16, 24)}, "states 1000000000000 shapes"),
        ({"x": (1, 3, 16, (1, 2**70))}, "and at most 1099511627776"),
        ({"x": (1, 3, 16, (1, 2**39))}, "states 549755813888 shapes"),
        ({"x": (1, 3, 16, (96, 24))}, r"got \(96, 24\); expected the least extent first"),
        ({"x": (1, 3, 16, (24, 95, 8))}, "a number of steps after it"),
        ({"x": (1, 3, 16, (-1, 24))}, "of at least 0"),
        ({"x": (1, 3, 16, (8, 24, 0))}, "of at least 0"),
        ({"x": (1, 3, 16, (True, 24))}, "of at least 0"),
        ({"x": (1, 3, 16, True)}, "got True; expected a number"),
        ({"x": (1, 3, 16, (24, 96, 8, 2))}, "expected a number"),
        ({"x": (1, 3, 16, "W")}, "is open in the file"),
        ({}, "is open in the file"),
        ({"x": (1, 3, (1, 400), (1, 400))}, "states 160000 shapes; expected at most 20000"),
    ],
)
def test_what_makes_no_range_is_refused(shapes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lc.load(network(), shapes=shapes)


def test_shapes_that_the_network_does_not_take_are_named() -> None:
    built = model(
        [
            node("MaxPool", ["x"], "a", kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", ["a", "", "scales"], "b", coordinate_transformation_mode="asymmetric"),
            node("Add", ["x", "b"], "y"),
        ],
        {"x": (1, 3, 4, "W")},
        ["y"],
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ).SerializeToString()
    with pytest.raises(InputError, match=r"does not take x 1x3x4x7, .* give a range, or steps"):
        lc.load(bytes(built), shapes={"x": (1, 3, 4, (4, 8))})
    net = lc.load(bytes(built), shapes={"x": (1, 3, 4, (4, 8, 2))})
    assert net(np.ones((1, 3, 4, 6), np.float32)).shape == (1, 3, 4, 6)


def test_ranges_go_with_neither_plans_nor_tuning() -> None:
    with pytest.raises(SpecError, match="ranges of shapes together with tune"):
        lc.load(network(), shapes=RANGE, tune=True)
    with pytest.raises(SpecError, match="shapes for device 'cuda'"):
        lc.load(network(), shapes=RANGE, device="cuda")


def test_axes_of_one_name_have_one_extent() -> None:
    inputs = [
        InputSpec("a", ("N", 4), FLOAT32),
        InputSpec("b", ("N", None), FLOAT32),
    ]
    ranges = ShapeRanges.of({"a": ((1, 3), 4), "b": ((1, 3), (5, 6))}, inputs)
    found = list(ranges)
    assert ranges.count == len(found) == 6
    assert all(a[0] == b[0] for a, b in found)
    assert ranges.ends == [((3, 4), (3, 6)), ((1, 4), (1, 5))]
    with pytest.raises(InputError, match="'N' is .* of one input and .* of another"):
        ShapeRanges.of({"a": ((1, 3), 4), "b": ((1, 2), 5)}, inputs)
