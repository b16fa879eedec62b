"""Damaged copies of sound models: whatever happens is a LeanConvError, soon, and in little memory.

Three kinds of damage: to the bytes, to the fields of the message, and to the network that it says.
What still loads is run with NumPy when it is small. Every case is seeded; a failure names its seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from leanconv.errors import LeanConvError
from leanconv.graph.convert import FILE_RULES
from leanconv.graph.ir import Graph
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from leanconv.graph.verify import verify
from support.damaged_models import FILES, FLOATS, NUMBERS, damaged_bytes, damaged_fields
from support.hostile import ResidentPeak, cpu_limit
from support.interpret import interpret
from support.onnx_models import model
from support.sparse_models import stated

CASES = 100  # of damage
CASE_SECONDS = 3.0  # of CPU time, for the slowest case; the usual one takes a few milliseconds
PEAK_BYTES = 300 << 20
RUN_BYTES = 8 << 20
LIMITS = Limits(
    fold_bytes=16 << 20, late_bytes=32 << 20, late_traffic_bytes=64 << 20, late_nodes=2000
)


def survive(data: bytes, what: str) -> bool:
    """Read, bind and perhaps run a file; True when it went through, False when it was refused."""
    with cpu_limit(CASE_SECONDS, what):
        try:
            found = read_model(data, LIMITS)
            shapes = {
                each.name: tuple(n if isinstance(n, int) else 8 for n in each.shape or (1, 4, 8, 8))
                for each in found.inputs
            }
            graph = verify(found.bind(shapes, late=True))
            if sum(kind.bytes for kind in graph.types.values()) < RUN_BYTES and _cheap(graph):
                inputs = {name: np.ones(graph.types[name].shape, "f4") for name in graph.inputs}
                results = interpret(graph, {n: a.astype(found.dtype) for n, a in inputs.items()})
                for name, array in results.items():
                    assert array.shape == graph.types[name].shape, what
                tail = found.tail(graph)
                if tail is not None:
                    tail.run({**inputs, **results})
            return True
        except LeanConvError:
            return False


def _cheap(graph: Graph) -> bool:
    """Whether no window reads far more than there is: padding is not in the types."""
    for node in graph.nodes:
        for name in ("pads", "kernel_shape", "strides", "dilations", "output_padding"):
            if any(number > 32 for number in node.attributes.get(name, ())):
                return False
    return True


def trial(damage: Callable[[random.Random], bytes], first: int) -> None:
    """Damage and read `CASES` times, from a seed on; count what went through."""
    passed, peak = 0, ResidentPeak()
    for seed in range(first, first + CASES):
        data = damage(random.Random(seed))
        peak.begin()
        passed += survive(data, f"seed {seed}")
        assert peak.bytes < PEAK_BYTES, f"seed {seed}"
    assert 0 < passed < CASES, "all or none went through: the damage is too small or too large"


@pytest.mark.drawn
@pytest.mark.skipif(not ResidentPeak.is_known(), reason="reads /proc")
@pytest.mark.parametrize("first", range(1, 4 * CASES, CASES))
@pytest.mark.parametrize("damage", [damaged_bytes, damaged_fields])
def test_damaged_models(damage: Callable[[random.Random], bytes], first: int) -> None:
    trial(damage, first)


def test_a_hang_is_stopped() -> None:
    """The limit of a case ends a loop that never would, also where its error is caught."""

    def endless() -> None:
        while True:
            pass

    with pytest.raises(AssertionError, match="loop has not ended after"), cpu_limit(0.05, "loop"):
        endless()
    with (
        pytest.raises(AssertionError, match="loop has not ended after"),
        cpu_limit(0.05, "loop"),
        contextlib.suppress(AssertionError),
    ):
        endless()


@pytest.mark.parametrize("data", FILES)
def test_sound_models(data: bytes) -> None:
    assert survive(data, "undamaged")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes(data: bytes) -> None:
    assert not survive(data, "any bytes")


KNOWN = b"\x42\x02\x10\x11\x3a"


@given(
    st.lists(st.tuples(st.integers(0, 25), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=12)))
)
@settings(max_examples=300, deadline=None)
def test_any_fields(fields: list[tuple[int, int, bytes]]) -> None:
    graph = b""
    for number, wire, data in fields:
        tag = number << 3 | wire
        graph += bytes([tag & 127 | 128, tag >> 7])
        graph += bytes([len(data)]) + data if wire == 2 else data
    assert not survive(KNOWN + bytes([len(graph) & 127 | 128, len(graph) >> 7]) + graph, "fields")


NUMBER_LISTS = st.one_of(
    st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=5),
    st.lists(st.integers(-2, 5), min_size=1, max_size=5),
)
VALUES = {
    "int": st.one_of(st.sampled_from(NUMBERS), st.integers(-3, 5)),
    "dtype": st.integers(0, 23),
    "element type": st.integers(0, 26),
    "float": st.sampled_from(FLOATS),
    "ints": NUMBER_LISTS,
    "floats": st.lists(st.sampled_from(FLOATS), min_size=1, max_size=5),
    "string": st.sampled_from(
        ["SAME_UPPER", "VALID", "linear", "nearest", "reflect", "edge", "asymmetric",
         "align_corners", "floor", "tanh", "x"]
    ),
    "strings": st.just([b"x"]),
    "tensor": NUMBER_LISTS.map(lambda n: numpy_helper.from_array(np.array(n, np.int64))),
    "sparse tensor": NUMBER_LISTS.map(
        lambda n: stated(numpy_helper.from_array(np.array(n, np.int64)), np.arange(len(n)), n)
    ),
}  # fmt: skip
CONSTANTS = st.one_of(
    st.lists(st.sampled_from(NUMBERS), max_size=5).map(lambda n: np.array(n, np.int64)),
    st.lists(st.integers(-3, 9), max_size=5).map(lambda n: np.array(n, np.int64)),
    st.lists(st.integers(0, 4), max_size=5).map(lambda n: np.ones(n, np.float32)),
    st.lists(st.sampled_from(FLOATS), max_size=5).map(lambda n: np.array(n, np.float32)),
    st.booleans().map(np.bool_),
)


@st.composite
def nodes_of_any_kind(draw: st.DrawFn) -> list[onnx.NodeProto]:
    """A few nodes with attributes and operands of the right kind and any value."""
    nodes = []
    for index in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(sorted(FILE_RULES)))
        rule = FILE_RULES[op]
        values = ["x", "x", "a", "b", "c", ""] + [f"v{i}" for i in range(index)] * 2
        count = draw(st.integers(rule.least, min(rule.most, rule.least + 3)))
        names = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        wanted = draw(st.sets(st.sampled_from(sorted(rule.attributes) or ["none"]), max_size=3))
        attributes = {name: draw(VALUES[rule.attributes.get(name, "int")]) for name in wanted}
        outputs = [f"v{index}"] + ["", f"w{index}"] * draw(st.integers(0, op == "Split"))
        nodes.append(helper.make_node(op, names, outputs, **attributes))
    return nodes


@pytest.mark.parametrize("examples", [330, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_any_network(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        st.integers(7, 22),
        nodes_of_any_kind(),
        st.tuples(CONSTANTS, CONSTANTS, CONSTANTS),
        st.lists(st.integers(1, 6), max_size=5),
    )
    def each(
        opset: int,
        nodes: list[onnx.NodeProto],
        held: tuple[object, object, object],
        shape: list[int],
    ) -> None:
        outputs = [f"v{len(nodes) - 1}"]
        constants = dict(zip("abc", held, strict=True))
        proto = model(nodes, {"x": shape}, outputs, constants, opset)
        survive(proto.SerializeToString(), "any network")

    each()
