"""What NumPy works in while it computes an operation, measured, is at most what is stated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from leanconv.graph.convert.selection import distinct, working_for_distinct
from leanconv.graph.ir import TensorType
from leanconv.graph.ops import evaluate, working_bytes
from leanconv.graph.ops.base import dtype_of
from support.onnx_models import Array
from support.single_nodes import nodes

R = np.random.default_rng(2)
_LARGE = 300_000  # bytes of an operand
_SMALL = 120_000  # buffers, and objects of Python
_COMPILED = {"Conv", "ConvChain", "BlockChain", "ConvTranspose", "Gemm", "MatMul", "Attention"}


def grown() -> Iterator[tuple[str, list[Array], dict[str, Any]]]:
    """The single nodes of all operations, with many more images."""
    for op, inputs, attributes, *held in nodes():
        if held or op == "Expand":
            continue
        rank = max(x.ndim for x in inputs)
        times = _LARGE // max(x.nbytes for x in inputs)
        large = [np.concatenate([x] * times) if x.ndim == rank else x for x in inputs]
        changed = dict(attributes)
        if "shape" in changed:
            changed["shape"] = (changed["shape"][0] * times, *changed["shape"][1:])
        yield op, large, changed


def others() -> Iterator[tuple[str, list[Array], dict[str, Any]]]:
    """Operations on numbers of other types, and with indices."""
    wide = R.standard_normal((300, 300)).astype("f4")
    whole = R.integers(-9, 9, (400, 400))
    flags = wide > 0
    for op in ("Floor", "Ceil", "Round", "Sign", "IsNaN"):
        yield op, [wide], {}
    yield "IsInf", [wide], {"positive": True, "negative": True}
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        yield op, [wide, wide[:1]], {}
    for op in ("And", "Or", "Xor"):
        yield op, [flags, flags[:1]], {}
    yield "Not", [flags], {}
    yield "Where", [flags, wide, wide[:1]], {}
    for kind in ("i1", "i4", "i8"):
        x = whole.astype(kind)
        for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Neg", "Abs", "Sign"):
            yield op, [x] if op in ("Neg", "Abs", "Sign") else [x, x[:1] | 1], {}
        yield "Mod", [x, x[:1] | 1], {"fmod": False}
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            yield op, [x, x[:1]], {}
        yield "BitwiseNot", [x], {}
        for to in ("float32", "bool", "uint8", "int64"):
            yield "Cast", [x], {"to": to}
        yield "ReduceSum", [x], {"axes": (1,), "keepdims": False}
        yield "ReduceMax", [x], {"axes": (0,), "keepdims": False}
        yield "CumSum", [x], {"axis": 1, "exclusive": False, "reverse": True}
    for to in ("int8", "int64", "bool", "float64"):
        yield "Cast", [wide], {"to": to}
    yield "Mod", [wide, wide[:1]], {"fmod": True}
    yield "BitShift", [whole.astype("u4"), np.ones(1, "u4")], {"left": True}
    yield "ReduceMean", [wide], {"axes": (0,), "keepdims": False}
    small = wide.astype("i1")
    for x in (wide, small, whole[:300, :300]):
        for op in ("ArgMax", "ArgMin"):
            yield op, [x], {"axis": 0, "keepdims": False, "last": True}
        for k, ordered in ((2, True), (290, False), (290, True)):
            yield "TopK", [x], {"axis": 0, "k": k, "largest": True, "sorted": ordered}
        places = R.integers(-300, 300, (100_000,))
        yield "Gather", [x, places[:700]], {"axis": 0}
        yield "Gather", [x.reshape(-1), places.astype("i4")], {"axis": 0}
        yield "GatherElements", [x, places[:90_000].reshape(300, 300)], {"axis": 1}
        pairs = R.integers(-300, 300, (80_000, 2))
        yield "GatherND", [x, pairs], {"batch_dims": 0}
        yield "GatherND", [x, pairs[:700, :1].astype("i4")], {"batch_dims": 0}
        for way in ("none", "add", "max"):
            updates = x.reshape(-1)[:80_000]
            yield "ScatterND", [x, pairs, updates], {"reduction": way}
            rows = x[:200]
            yield "ScatterND", [x, pairs[:200, :1], rows], {"reduction": way}
            at = places[: rows.size].reshape(rows.shape)
            for padded in (False, True):
                how = {"axis": 0, "reduction": way, "padded": padded}
                yield "ScatterElements", [x, at, rows], how
    pool = {"kernel_shape": (5, 5), "strides": (1, 1), "pads": (2, 2, 2, 2), "dilations": (1, 1)}
    pool |= {"ceil_mode": False, "count_include_pad": True}
    maps = wide.reshape(1, 1, 300, 300)
    for op in ("MaxPool", "AveragePool"):
        yield op, [maps], pool
    yield "MaxPool", [maps.astype("i1")], pool
    yield "MaxPoolWithIndices", [maps], {**pool, "storage_order": 0}
    size = {"sizes": (1, 1, 500, 400), "scales": (1.0, 1.0, 5 / 3, 4 / 3), "nearest_mode": "floor"}
    for mode in ("nearest", "linear"):
        place = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
        yield "Resize", [maps], {**size, **place}
    grid = R.random((200 * 300, 2)).astype("f4") * 2 - 1
    for mode in ("nearest", "linear", "cubic"):
        how = {"mode": mode, "padding_mode": "reflection", "align_corners": False}
        yield "GridSample", [maps, grid], {**how, "sizes": (200, 300)}
    deep = wide.reshape(1, -1, 3, 3)
    regions = np.array([[0, 0, 2, 2], [0, 1, 2, 3]], "f4")
    align = {"half_pixel": True, "sampling_ratio": 2, "spatial_scale": 1.0, "sizes": (3, 3)}
    for mode in ("avg", "max"):
        yield "RoiAlign", [deep, regions, np.zeros(2, "i8")], {**align, "mode": mode}
    boxes = np.sort(R.random((1, 9000, 2, 2)), 2).reshape(1, 9000, 4).astype("f4")
    scores = R.random((1, 3, 9000)).astype("f4")
    limits = [np.array([300]), np.array([0.4], "f4")]
    flags = R.random(9000) < 0.9
    for rows in (False, True):
        yield "NonZero", [flags], {"rows": rows}
        yield "NonZero", [np.ones((20, 30, 50), "i1")], {"rows": rows}
    yield "Compress", [flags, flags], {"axis": 0}
    yield "Compress", [wide, np.ones(wide.shape[-1], bool)], {"axis": wide.ndim - 1}
    yield "NonMaxSuppression", [boxes, scores, *limits], {"most": 300, "centred": False}


def measured(op: str, inputs: list[Array], attributes: dict[str, Any]) -> tuple[int, int]:
    """Bytes beside operands and results: those that were in use, and those that are stated."""
    with np.errstate(all="ignore"):
        evaluate(op, inputs, attributes)
        tracemalloc.start()
        try:
            found = evaluate(op, inputs, attributes)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    types, results = ([TensorType(x.shape, dtype_of(x)) for x in each] for each in (inputs, found))
    used = peak - sum(array.nbytes for array in found)
    return used, working_bytes(op, types, results)


def test_no_operation_works_in_more_than_is_stated() -> None:
    for op, inputs, attributes in (*grown(), *others()):
        if op not in _COMPILED:
            used, stated = measured(op, inputs, attributes)
            shapes = [(x.shape, str(x.dtype)) for x in inputs]
            assert used <= stated + _SMALL, (op, shapes, attributes)


@pytest.mark.parametrize("dtype", ["f4", "i1", "f8", "?"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((100_000,), None), ((300, 400), 0), ((100, 900), 1), ((2, 90_000), 0), ((90_000, 2), 0)],
)
def test_different_slices(shape: tuple[int, ...], axis: int | None, dtype: str) -> None:
    for x in (np.zeros(shape, dtype), (R.standard_normal(shape) * 50).astype(dtype)):
        distinct(x, axis)
        tracemalloc.start()
        try:
            found = distinct(x, axis)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        count = x.size if axis is None else shape[axis]
        used = peak - sum(array.nbytes for array in found)
        assert used <= working_for_distinct(x.nbytes, count) + _SMALL


def test_different_slices_are_those_of_numpy() -> None:
    for number in range(200):
        shape = tuple(R.integers(1, 5, R.integers(1, 5)))
        dtype = ("f4", "f8", "i1", "i4", "i8", "u1", "?")[number % 7]
        x = R.integers(0 if dtype in "u1?" else -1, 2, shape).astype(dtype)
        if dtype in ("f4", "f8"):
            x *= R.choice([1, -1], shape)  # zeros of both signs
        axis = int(R.integers(len(shape)))
        expected = np.unique(x, True, True, True, axis=axis)
        for array, wanted in zip(distinct(x, axis), expected, strict=True):
            np.testing.assert_array_equal(array, wanted.reshape(array.shape))
    none = distinct(np.zeros((3, 0), "f4"), 0)
    assert [array.shape for array in none] == [(1, 0), (1,), (3,), (1,)]
    assert distinct(np.full((3, 2), np.nan, "f4"), 0)[0].shape == (1, 2)
