"""Gather and Scatter as files have them, against ONNX Runtime, with indices that are data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import ModelError
from support.import_cases import Numbers
from support.onnx_models import Array, Const, imported, model, reference
from support.onnx_models import single as _single

N = Numbers(3)
X = N.normal(3, 4, 5)


def single(op: str, arrays: list[Any], opset: int, **attributes: Any) -> Any:
    """A model of one node whose inputs are data of their types."""
    proto, given = _single(op, arrays, opset, **attributes)
    for value in proto.graph.input:
        dtype = given[value.name].dtype
        value.type.tensor_type.elem_type = {"float32": 1, "int64": 7, "int32": 6}[str(dtype)]
    return proto, given


def check(op: str, arrays: list[Array], opset: int, **attributes: Any) -> None:
    proto, given = single(op, arrays, opset, **attributes)
    wanted = reference(proto, given)["out0"]
    found = imported(proto, given)["out0"]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6, strict=True)


AT = np.array([[2, -1, 0], [1, 1, -3]])
EACH = np.resize(np.array([0, -1, 2, 1]), (3, 4, 2))


@pytest.mark.parametrize("opset", [1, 11, 13])
def test_gather(opset: int) -> None:
    for at in (AT, AT.astype(np.int32), np.array(2)):
        for axis in (0, 1, -1):
            check("Gather", [X, at], opset, axis=axis)


def test_gather_elements_of_fewer_rows() -> None:
    for opset in (11, 13):
        check("GatherElements", [X, EACH], opset, axis=2)
        check("GatherElements", [X, EACH[:2, :1]], opset, axis=2)
        check("GatherElements", [X, EACH[:, :1, :1]], opset, axis=-2)


def test_gather_nd() -> None:
    check("GatherND", [X, np.array([[0, -1], [2, 3]])], 11)
    for opset in (12, 13):
        check("GatherND", [X, np.array([[[0], [-1]], [[2], [3]], [[1], [1]]])], opset, batch_dims=1)
        check("GatherND", [X, np.array([[[0, 1]], [[2, -3]], [[1, 1]]])], opset, batch_dims=1)


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 16, 18])
def test_scatter_elements(opset: int) -> None:
    op = "Scatter" if opset < 11 else "ScatterElements"
    at = np.array([[[1, 0]], [[2, -1]]])
    check(op, [X, at, N.normal(2, 1, 2)], opset, axis=2)
    ways = {16: ("add", "mul"), 18: ("add", "mul", "min", "max")}.get(opset, ())
    for way in ways:
        check(op, [X, EACH, N.normal(3, 4, 2)], opset, axis=2, reduction=way)
        check(op, [X, EACH[:, :3], N.normal(3, 3, 2)], opset, axis=1, reduction=way)


@pytest.mark.parametrize("opset", [11, 13, 16, 18])
def test_scatter_nd(opset: int) -> None:
    check("ScatterND", [X, np.array([[0, -1], [2, 3]]), N.normal(2, 5)], opset)
    ways = {16: ("add", "mul"), 18: ("add", "mul", "min", "max")}.get(opset, ())
    for way in ways:
        at = np.array([[[0], [-1]], [[2], [2]]])
        check("ScatterND", [X, at, N.normal(2, 2, 4, 5)], opset, reduction=way)


def test_no_updates() -> None:
    none = np.zeros((3, 0, 5), np.int64)
    check("ScatterElements", [X, none, none.astype("f4")], 18, axis=1)
    check("ScatterND", [X, np.zeros((0, 2), np.int64), np.zeros((0, 5), "f4")], 18)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    """As ONNX's reference has it; ONNX Runtime has none."""
    update, first = N.normal(3, 2, 5), np.array([2, 0, 1])
    if mode == "circular":
        first = np.array([3, 0, 2])
    proto, given = single("TensorScatter", [X, update, first], 24, axis=1, mode=mode)
    wanted = X.copy()
    for image, at in enumerate(first):
        for step in range(2):
            wanted[image, (at + step) % 4] = update[image, step]
    np.testing.assert_array_equal(imported(proto, given)["out0"], wanted)
    np.testing.assert_array_equal(lc.load(proto, threads=1).run(given)["out0"], wanted)
    proto, given = single("TensorScatter", [X, update], 24, axis=1)
    wanted = np.concatenate([update, X[:, 2:]], axis=1)
    np.testing.assert_array_equal(imported(proto, given)["out0"], wanted)


OUTSIDE: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Gather", [X, np.array([0, 3])], {"axis": 0}),
    ("Gather", [X, np.array([[-5]], np.int32)], {"axis": 1}),
    (
        "GatherElements",
        [X, np.where(np.arange(5) == 3, 2**40, np.zeros((3, 4, 5), int))],
        {"axis": 2},
    ),
    ("GatherND", [X, np.array([[0, 0], [2, 4]])], {}),
    ("ScatterND", [X, np.array([[-4]]), X[:1]], {}),
    ("ScatterElements", [X, np.full((1, 1, 1), 5), X[:1, :1, :1]], {"axis": 2}),
    ("ScatterElements", [X, np.full((3, 4, 1), -6), X[:, :, :1]], {"axis": 2}),
    ("ScatterElements", [X, np.full(X.shape, -(2**31), np.int32), X], {"axis": 1}),
    ("ScatterElements", [X, np.full((1, 1, 1), -(2**63)), X[:1, :1, :1]], {"axis": 2}),
    (
        "RoiAlign",
        [X[None], np.ones((2, 4), np.float32), np.array([0, 1])],
        {"output_height": 1, "output_width": 1},
    ),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), OUTSIDE)
def test_indices_outside(op: str, arrays: list[Any], attributes: dict[str, Any]) -> None:
    """They end a run, and the next one knows nothing of it; as constants they are refused."""
    proto, given = single(op, arrays, 16, **attributes)
    net, name = lc.load(proto, threads=2), list(given)[2 if op == "RoiAlign" else 1]
    message = re.escape(f"({op}): indices element out of data bounds, idx=")
    right = given | {name: np.zeros_like(given[name])}
    wanted = net.run(right)["out0"]
    for _ in range(2):
        with pytest.raises(lc.InputError, match=message):
            net.run(given)
        np.testing.assert_array_equal(net.run(right)["out0"], wanted)
    with pytest.raises(lc.InputError, match="idx="):
        imported(proto, given)
    held = [Const(a) if a is given[name] else a for a in arrays]
    if op != "RoiAlign":
        with pytest.raises(lc.ModelError, match="idx="):
            lc.load(single(op, held, 16, **attributes)[0], threads=1)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("Gather", [X, X], {}, "expected integers"),
        ("Gather", [X[:0], AT], {}, "no elements"),
        ("GatherElements", [X, EACH[0]], {}, "equal ranks"),
        ("GatherND", [X, np.zeros((2, 4), int)], {}, "axes that are left"),
        ("GatherND", [X, AT], {"batch_dims": 1}, "expected these to be equal"),
        ("ScatterElements", [X[:0], np.zeros(X[:1].shape, int), X[:1]], {}, "no elements"),
        ("ScatterND", [X[:0], np.array([[0]]), X[:1]], {}, "no elements"),
        ("ScatterElements", [X, EACH, X], {}, "expected one for each"),
        ("ScatterElements", [X, EACH, N.normal(3, 4, 2)], {"reduction": "sub"}, "reduction"),
        ("ScatterND", [X, np.zeros((2, 2), int), X], {}, "expected the shape 2x5"),
    ],
)
def test_refusals(op: str, arrays: list[Array], attributes: dict[str, Any], message: str) -> None:
    proto, given = single(op, arrays, 18, **attributes)
    with pytest.raises(ModelError, match=f"{op}.*{message}"):
        lc.load(proto, threads=1).run(given)


def test_embeddings_of_a_network_of_open_sizes() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["y"], axes=[1], keepdims=0),
    ]
    table = N.normal(50, 24)
    proto = model(nodes, {"words": ("N", "L")}, ["y"], {"table": table})
    proto.graph.input[0].type.tensor_type.elem_type = 7
    net = lc.load(proto, threads=1)
    for shape in ((1, 3), (2, 7), (4, 60), (3, 1)):
        words = np.random.default_rng(1).integers(0, 50, shape)
        np.testing.assert_allclose(net.run({"words": words})["y"], table[words].mean(1), atol=1e-6)
