"""Arithmetic on extents with symbols, with numbers, and by ONNX Runtime gives the same."""

from __future__ import annotations

from random import Random

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.errors import LeanConvError
from leanconv.graph.convert.shapes import _kept
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.ops.base import integers, quotient, remainder
from leanconv.graph.passes import run_passes
from leanconv.graph.template import Templates
from leanconv.symbolic import Trace
from support.control_flow import node
from support.onnx_models import model, reference
from support.shape_programs import ShapeProgram

_NUMBERS = st.integers(-30, 30)
_SIZES = st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=2, max_size=4)


def _program(random: Random, steps: int) -> ShapeProgram:
    program = ShapeProgram(random)
    program.begin()
    for _ in range(steps):
        program.grow()
    return program


def _constants(read: Model, templates: Templates, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """All outputs, which are constants, from a template and from the numbers; they must agree."""
    shape = (1, 3, *size)
    try:
        wanted = read.bind({"x": shape})
    except LeanConvError:
        with pytest.raises(LeanConvError):
            templates.graph([shape])
        return {}
    found = templates.graph([shape])
    for name in wanted.outputs:
        expected, got = wanted.constants[name], found.constants[name]
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
        assert got.tolist() == expected.tolist(), name
    return {name: wanted.constants[name] for name in wanted.outputs}


@settings(deadline=None, max_examples=100)
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 12), sizes=_SIZES)
def test_with_symbols_as_with_numbers(
    random: Random, steps: int, sizes: list[tuple[int, int]]
) -> None:
    read = read_model(_program(random, steps).model().SerializeToString())
    templates = Templates(read, lambda shapes: run_passes(read.bind(shapes)))
    for size in sizes:
        _constants(read, templates, size)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(40))
def test_as_onnx_runtime_has_it(seed: int) -> None:
    random = Random(seed)
    proto = _program(random, 12).model()
    read = read_model(proto.SerializeToString())
    templates = Templates(read, lambda shapes: run_passes(read.bind(shapes)))
    for size in ((5, 8), (16, 3), (7, 7), (24, 31)):
        ours = _constants(read, templates, size)
        if not ours:  # a division by zero, which would end ONNX Runtime
            continue
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        names = list(ours)
        for name, theirs in zip(
            names, session.run(names, {"x": np.zeros((1, 3, *size), np.float32)}), strict=True
        ):
            assert ours[name].tolist() == theirs.tolist(), (name, size)


def _symbols(*numbers: int) -> np.ndarray:
    trace = Trace()
    return integers([trace.variable(i, n) for i, n in enumerate(numbers)])


@given(a=_NUMBERS, b=_NUMBERS.filter(bool))
def test_quotients_and_remainders_of_any_signs(a: int, b: int) -> None:
    towards_zero = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    for left, right in ((np.array([a]), np.array([b])), np.split(_symbols(a, b), 2)):
        assert int(quotient(left, right)[0]) == towards_zero
        assert int(remainder(left, right, True)[0]) == a - towards_zero * b
        assert int(remainder(left, right, False)[0]) == a % b


@given(
    start=st.one_of(_NUMBERS, st.just(2**62)),
    end=st.one_of(_NUMBERS, st.sampled_from([2**63 - 1, -(2**63)])),
    step=_NUMBERS.filter(bool),
    extent=st.integers(0, 30),
)
def test_slices_keep_what_python_keeps(start: int, end: int, step: int, extent: int) -> None:
    start = max(start, -extent)  # what ONNX makes of a start before the first element
    kept = range(extent)[start:end:step] if extent else range(0)
    for given_extent in (extent, Trace().variable(0, extent)):
        first, size = _kept(start, end, step, given_extent)
        assert int(size) == len(kept)
        assert int(first) == (kept.start if kept else 0)


def test_axes_that_follow_from_extents(caplog: pytest.LogCaptureFixture) -> None:
    """A graph for one axis is made anew where extents give another one."""
    nodes = [
        node("Shape", "x", "s"),
        node("Size", "x", "n"),
        node("Mod", "n two", "axis"),
        node("Reshape", "axis one", "axes"),
        node("ReduceSum", "x axes", "y"),
        node("CumSum", "x axis", "z"),
        node("Unsqueeze", "x axes", "u"),
    ]
    held = {"two": np.int64(2), "one": np.array([1])}
    proto = model(nodes, {"x": ("N", "M")}, "yzu", held)
    net = lc.load(proto.SerializeToString(), threads=1)
    for shape in ((2, 3), (3, 3), (5, 4), (5, 7)):
        x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
        found = net.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_array_equal(found[name], wanted, name)
    assert not caplog.records


def test_weights_whose_extents_are_open(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [
        node("Shape", "x", "s", start=1),
        node("Concat", "s three", "shape", axis=0),
        node("Expand", "two shape", "w"),
        node("MatMul", "x w", "y"),
        node("Gemm", "x w", "z", alpha=0.5),
    ]
    held = {"three": np.array([3]), "two": np.array([2], "f4")}
    proto = model(nodes, {"x": ("N", "K")}, "yz", held)
    net = lc.load(proto.SerializeToString(), threads=1)
    for shape in ((2, 3), (3, 3), (5, 4), (1, 7)):
        x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
        found = net.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_array_equal(found[name], wanted, name)
    assert not caplog.records


def test_how_many_of_the_largest_follows_from_extents(caplog: pytest.LogCaptureFixture) -> None:
    """Kept in lanes, in a list, and sorted."""
    nodes = [
        node("Shape", "x", "s", start=2),
        node("Div", "s two", "half"),
        node("TopK", "x half", "y a", axis=1),
        node("TopK", "x half", "z b", axis=-1, largest=0),
    ]
    proto = model(nodes, {"x": ("N", "K", "K")}, "yz", {"two": np.array([2])})
    net = lc.load(proto.SerializeToString(), threads=1)
    for size in (4, 40, 130):
        x = np.random.default_rng(size).integers(-99, 99, (2, size, size)).astype("f4")
        found = net.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_array_equal(found[name], wanted, name)
    assert not caplog.records
