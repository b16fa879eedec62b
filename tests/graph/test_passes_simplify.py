"""drop_dead, simplify and merge_common: less work, the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leanconv.graph.passes.simplify import drop_dead, merge_common, simplify
from leanconv.types import FLOAT32, FLOAT64, INT64, as_dtype
from support.graph_builder import Builder, applied, only, ops


def test_drop_dead_removes_chains_and_constants() -> None:
    b = Builder()
    x, spare = b.input(2, 3), b.input(4)
    b.op("Mul", b.op("Relu", x), b.normal(3))
    y = b.op("Add", x, 2.0)
    result = applied(drop_dead, b.graph(y))
    assert ops(result) == ["Add"]
    assert set(result.constants) == {"c1"}
    assert set(result.types) == {x, spare, y, "c1"}


def test_drop_dead_keeps_outputs_that_are_inputs_or_constants() -> None:
    b = Builder()
    x, c = b.input(2), b.normal(3)
    assert ops(applied(drop_dead, b.graph(x, c))) == []


def test_a_cast_reads_past_one_that_loses_nothing() -> None:
    for between, kept in (("float64", False), ("int16", True), ("uint8", True), ("float32", False)):
        b = Builder(as_dtype("int16" if between == "float32" else "int32"))
        y = b.op("Cast", b.op("Cast", b.input(2, 3), to=as_dtype(between)), to=INT64)
        result = applied(simplify, b.graph(y))
        assert len(result.nodes) == 1 + kept, between
    back = Builder(FLOAT32)
    wide = back.op("Cast", back.op("Neg", back.input(5)), to=FLOAT64)
    y = back.op("Neg", back.op("Cast", wide, to=FLOAT32))
    assert ops(applied(simplify, back.graph(y))) == ["Neg", "Neg"]


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceSumSquare", "ReduceMeanSquare"])
def test_a_reduction_that_changes_one_element_stays(op: str) -> None:
    b = Builder()
    y = b.op(op, b.input(2, 3, 4, 1), axes=(3,), keepdims=True)
    assert ops(applied(simplify, b.graph(y))) == [op]


IDENTITIES: list[tuple[str, tuple[float, ...], dict[str, Any]]] = [
    ("Reshape", (), {"shape": (2, 3, 4, 1)}),
    ("Expand", (), {"shape": (2, 3, 4, 1)}),
    ("Transpose", (), {"perm": (0, 1, 2, 3)}),
    ("Slice", (), {"starts": (0,) * 4, "steps": (1, 1, 1, -1), "sizes": (2, 3, 4, 1)}),
    ("Concat", (), {"axis": 1}),
    ("Pad", (), {"pads": (0,) * 8, "mode": "reflect", "value": 0.0}),
    ("ReduceMean", (), {"axes": (3,), "keepdims": True}),
    ("Clip", (), {"min": -math.inf, "max": math.inf}),
    ("Add", (0.0,), {}),
    ("Sub", (0.0,), {}),
    ("Mul", (1.0,), {}),
    ("Div", (1.0,), {}),
    ("Pow", (1.0,), {}),
]


@pytest.mark.parametrize(("op", "more", "attributes"), IDENTITIES, ids=lambda v: str(v)[:12])
def test_identities_vanish(op: str, more: tuple[float, ...], attributes: dict[str, Any]) -> None:
    b = Builder()
    x = b.input(2, 3, 4, 1)
    inner = b.op("Tanh", x)
    y = b.op(op, inner, *more, **attributes)
    assert ops(applied(simplify, b.graph(b.op("Exp", y)))) == ["Tanh", "Exp"]
    result = applied(simplify, b.graph(y, b.op("Exp", y)))  # also where it gives an output
    assert ops(result) == ["Tanh", "Exp", "Exp"]


def test_a_pool_of_one_and_a_resize_of_one_vanish() -> None:
    b = Builder()
    x = b.op("Tanh", b.input(1, 2, 3, 3))
    y = b.pool(x, (1, 1), "MaxPool")
    z = b.op(
        "Resize",
        y,
        mode="linear",
        sizes=(1, 2, 3, 3),
        scales=(1.0,) * 4,
        coordinate_transformation_mode="half_pixel",
        nearest_mode="floor",
    )
    assert ops(applied(simplify, b.graph(b.op("Exp", z)))) == ["Tanh", "Exp"]


@pytest.mark.parametrize("first", [True, False])
def test_neutral_constants_on_either_side(first: bool) -> None:
    b = Builder()
    x = b.op("Tanh", b.input(2, 3))
    ones = b.const(np.ones((2, 3)))
    y = b.op("Mul", *((ones, x) if first else (x, ones)))
    assert ops(applied(simplify, b.graph(b.op("Exp", y)))) == ["Tanh", "Exp"]


def test_what_only_looks_neutral_stays() -> None:
    b = Builder()
    x = b.input(3)
    kept = [
        b.op("Sub", 0.0, x),
        b.op("Div", 1.0, x),
        b.op("Add", x, b.const(np.zeros((2, 3)))),  # widens
        b.op("Mul", x, b.const([1.0, 1.0, 2.0])),
        b.op("Slice", x, starts=(2,), steps=(-1,), sizes=(3,)),
    ]
    assert len(applied(simplify, b.graph(*kept)).nodes) == 5


def test_identities_between_known_names_stay() -> None:
    b = Builder()
    x = b.input(2, 3)
    inner = b.op("Relu", x)
    outputs = (b.op("Mul", x, 1.0), inner, b.op("Mul", inner, 1.0))
    assert ops(applied(simplify, b.graph(*outputs))) == ["Relu", "Mul", "Mul"]


def test_two_identities_of_one_value_give_two_outputs() -> None:
    b = Builder()
    inner = b.op("Relu", b.input(2, 3))
    outputs = b.op("Mul", inner, 1.0), b.op("Add", inner, 0.0), b.op("Exp", inner)
    assert ops(applied(simplify, b.graph(*outputs))) == ["Relu", "Add", "Exp"]


def test_reshapes_merge() -> None:
    b = Builder()
    x = b.op("Tanh", b.input(2, 6))
    y = b.op("Reshape", b.op("Reshape", x, shape=(3, 4)), shape=(12,))
    z = b.op("Reshape", y, shape=(2, 6))
    result = applied(simplify, b.graph(b.op("Exp", y), b.op("Exp", z)))
    assert ops(result) == ["Tanh", "Reshape", "Exp", "Exp"]


def test_a_concat_of_concats_is_one() -> None:
    b = Builder()
    x = [b.op("Tanh", b.input(2, n, 3)) for n in (1, 2, 3, 4)]
    inner = b.op("Concat", b.op("Concat", x[0], x[1], axis=1), x[2], axis=1)
    shared = b.op("Concat", x[3], x[0], axis=1)
    other = b.op("Concat", x[1], x[1], axis=2)
    across = b.op("Concat", other, b.input(2, 1, 6), axis=1)
    one = b.op("Concat", x[3], inner, shared, axis=1)
    result = applied(simplify, b.graph(one, b.op("Exp", shared), across))
    joined = sorted(len(n.inputs) for n in result.nodes if n.op == "Concat")
    assert joined == [2, 2, 2, 5], "what others read, or lies along another axis, stays"


def test_a_long_row_of_concats_keeps_few_inputs() -> None:
    b = Builder()
    x = joined = b.op("Tanh", b.input(1, 2))
    for _ in range(300):
        joined = b.op("Concat", joined, x, axis=0)
    counts = [len(n.inputs) for n in applied(simplify, b.graph(joined)).nodes if n.op == "Concat"]
    assert max(counts) <= 64
    assert sum(counts) < 20_000


def test_transposes_merge() -> None:
    b = Builder()
    x = b.op("Tanh", b.input(2, 3, 4, 5))
    there = b.op("Transpose", x, perm=(0, 2, 3, 1))
    back = b.op("Transpose", there, perm=(0, 3, 1, 2))
    other = b.op("Transpose", there, perm=(1, 0, 2, 3))
    result = applied(simplify, b.graph(b.op("Exp", back), other))
    assert ops(result) == ["Tanh", "Transpose", "Exp"]
    assert only(result, "Transpose").attributes["perm"] == (2, 0, 3, 1)


def test_a_transpose_of_extents_of_one_is_a_reshape() -> None:
    b = Builder()
    y = b.op("Transpose", b.input(2, 7, 1, 1), perm=(0, 2, 3, 1))
    z = b.op("ReduceMax", y, axes=(1, 2), keepdims=False)
    assert ops(applied(simplify, b.graph(z))) == ["Reshape"]


INF = math.inf


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, INF), (-INF, 6), (0, 6)),
        ((-1, 1), (0, INF), (0, 1)),
        ((0, 1), (2, 3), (2, 2)),
        ((2, 3), (0, 1), (1, 1)),
        ((-INF, INF), (0, INF), None),
        ((0, INF), (-5, INF), None),
    ],
)
def test_clips_merge(first: Any, second: Any, expected: Any) -> None:
    b = Builder()
    x = b.op("Mul", b.input(50), 4.0)
    y = b.op("Clip", x, min=float(first[0]), max=float(first[1]))
    y = b.op("Clip", y, min=float(second[0]), max=float(second[1]))
    result = applied(simplify, b.graph(y))
    if expected is None:
        assert ops(result) == ["Mul", "Relu"]
    else:
        clip = only(result, "Clip")
        assert (clip.attributes["min"], clip.attributes["max"]) == expected


def test_clips_that_others_read_and_crossed_bounds_stay() -> None:
    b = Builder()
    x = b.input(9)
    first = b.op("Relu", x)
    crossed = b.op("Clip", b.op("Clip", x, min=2.0, max=1.0), min=0.0, max=5.0)
    result = applied(simplify, b.graph(first, b.op("Clip", first, min=-1.0, max=0.5), crossed))
    assert ops(result) == ["Relu", "Clip", "Clip", "Clip"]


def test_expanded_operands_are_read_unexpanded() -> None:
    b = Builder()
    x, s = b.input(2, 3, 4, 4), b.input(2, 3, 1, 1)
    y = b.op("Mul", b.op("Expand", s, shape=(2, 3, 4, 4)), x)
    z = b.op("Mul", b.op("Expand", s, shape=(2, 3, 4, 4)), s)
    result = applied(simplify, b.graph(y, z))
    assert ops(result) == ["Mul", "Expand", "Mul"]
    assert result.nodes[0].inputs == (s, x)


def test_common_nodes_merge_in_chains() -> None:
    b = Builder()
    x, z = b.input(2, 3), b.input(2, 3)
    one = b.op("Relu", b.op("Add", x, z))
    two = b.op("Relu", b.op("Add", z, x))
    result = applied(merge_common, b.graph(b.op("Mul", one, two)))
    assert ops(result) == ["Add", "Relu", "Mul"]


def test_different_attributes_or_order_do_not_merge() -> None:
    b = Builder()
    x, z = b.input(3), b.input(3)
    kept = [
        b.op("LeakyRelu", x, alpha=0.1),
        b.op("LeakyRelu", x, alpha=0.2),
        b.op("Sub", x, z),
        b.op("Sub", z, x),
    ]
    kept = [b.op("Tanh", y) for y in kept]
    assert len(applied(merge_common, b.graph(*kept)).nodes) == 8


def test_common_nodes_that_are_outputs() -> None:
    b = Builder()
    x = b.input(3)
    one, two = b.op("Relu", x), b.op("Relu", x)
    y = b.op("Exp", one)
    assert ops(applied(merge_common, b.graph(y, two))) == ["Relu", "Exp"]
    assert ops(applied(merge_common, b.graph(y, one, two))) == ["Relu", "Relu", "Exp"]
