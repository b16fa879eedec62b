"""Small files whose numbers ask for large constants: refused before these are made."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import BudgetError, LeanConvError
from support.hostile import MIB, bounded, node
from support.onnx_models import model, reference

R = np.random.default_rng(9)
LINE = {"x": (1, 1, 1, 4)}


def loaded(
    nodes: Sequence[onnx.NodeProto], inputs: Any, held: Any = None, opset: int = 21, **given: Any
) -> lc.Network:
    outputs = [name for each in nodes for name in each.output]
    read = {name for each in nodes for name in each.input}
    data = model(nodes, inputs, [n for n in outputs if n not in read], held, opset)
    return lc.load(data.SerializeToString(), threads=1, **given)


def sized(bits: int) -> dict[str, Any]:
    return {"n": np.array([1, 1, 1, (1 << bits) + 1])}


# -- tables of places ----------------------------------------------------------------------------
@pytest.mark.parametrize("bits", [22, 27, 33])
@pytest.mark.parametrize("form", ["nearest", "linear", "cubic", "crop", "antialias"])
def test_places_of_many_columns(form: str, bits: int) -> None:
    forms = {
        "crop": {"coordinate_transformation_mode": "tf_crop_and_resize"},
        "antialias": {"mode": "linear", "antialias": 1},
    }
    given, roi = forms.get(form, {"mode": form}), np.array([0, 0, 0, 0, 1, 1, 1, 0.9], "f4")
    resize = node("Resize", f"x {'roi' if form == 'crop' else '-'} - n", **given)
    with bounded(10), pytest.raises(LeanConvError, match="computing the constants"):
        loaded([resize], LINE, {**sized(bits), "roi": roi}, memory_limit="1 MiB")


def test_places_of_many_columns_that_are_data() -> None:
    """A size that the network computes: its tables count before they are made."""
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Cast", "m", "size", to=7),
        node("Reshape", "size one", "last"),
        node("Concat", "ones last", "n", axis=0),
        node("Resize", "x - - n", mode="linear"),
    ]
    held = {"one": np.array([1]), "ones": np.array([1, 1, 1])}
    network = loaded(nodes, LINE, held, memory_limit="16 MiB")
    few = np.float32([[[[1, 2, 3, 40]]]])
    assert network(few).shape == (1, 1, 1, 40)
    with bounded(10), pytest.raises(LeanConvError, match="in this run"):
        network(few * (1 << 13))


def test_large_tables_that_a_limit_allows() -> None:
    nodes, held = [node("Resize", "x - - n", mode="linear")], {"n": np.array([1, 1, 2, 60_000])}
    network = loaded(nodes, LINE, held)
    x = R.standard_normal(LINE["x"]).astype("f4")
    proto = model(nodes, LINE, ["y"], held, 21)
    np.testing.assert_allclose(network(x), reference(proto, {"x": x})["y"], 1e-5, 1e-6)


# -- weights in blocks ---------------------------------------------------------------------------
@pytest.mark.parametrize("block", [1 << 27, 1 << 30, 1 << 62])
def test_a_block_of_more_rows_than_there_are(block: int) -> None:
    held = {"w": R.integers(-9, 9, (4, 4)).astype("i1"), "s": np.full((1, 4), 0.5, "f4")}
    nodes = [
        node("DequantizeLinear", "w s", "d", axis=0, block_size=block),
        node("MatMul", "x d"),
    ]
    x = R.integers(-3, 4, (3, 4)).astype("f4")
    with bounded(10):
        network = loaded(nodes, {"x": (3, 4)}, held, memory_limit="1 MiB")
    np.testing.assert_array_equal(network(x), x @ (held["w"] * np.float32(0.5)))


# -- one number repeated -------------------------------------------------------------------------
MANY = 1 << 24
REPEATED = {
    "output": ([MANY], [node("Identity", "x", "z")]),
    "concat": ([1, MANY], [node("Concat", "x c", axis=1)]),
    "gather": ([MANY], [node("Cast", "x", "i", to=7), node("Gather", "c i")]),
    "normalised": ([MANY], [node("Expand", "x m", "e"), node("LayerNormalization", "e c")]),
    "product": ([4, MANY // 4], [node("Expand", "x m", "e"), node("MatMul", "e c")]),
    "left": ([MANY // 4, 4], [node("Expand", "x t", "e"), node("MatMul", "c e")]),
    "stack": ([MANY // 16, 4, 4], [node("Expand", "x m", "e"), node("MatMul", "e c")]),
}


@pytest.mark.parametrize("case", REPEATED)
def test_repeated_numbers_beyond_the_limit_are_not_made(case: str) -> None:
    shape, nodes = REPEATED[case]
    one = helper.make_tensor("one", 1, [1], [0.5])
    nodes = [node("ConstantOfShape", "n", "c", value=one), *nodes]
    last = MANY if case == "normalised" else 4
    held = {"n": np.array(shape), "m": np.array([4, last]), "t": np.array([4, 4])}
    with bounded(20, MIB * 8), pytest.raises(BudgetError) as caught:
        loaded(nodes, {"x": (1, 1)}, held, memory_limit="1 MiB")
    assert caught.value.smallest_bytes >= 4 * MANY


def test_a_repeated_number_is_read_where_it_is_not_made() -> None:
    one = helper.make_tensor("one", 1, [1], [0.5])
    nodes = [node("ConstantOfShape", "n", "c", value=one), node("Add", "x c")]
    with bounded(20, MIB * 8):
        loaded(nodes, {"x": (1, 1)}, {"n": np.array([1, MANY])}, memory_limit="1 MiB")


# -- matrices, windows, sequences ------------------------------------------------------------------
OTHERS: dict[str, tuple[list[onnx.NodeProto], Any, Any]] = {
    "a triangle": ([node("Trilu", "x k")], {"x": (1, 1 << 22)}, {"k": np.array(0)}),
    "a prime": ([node("DFT", "x n")], {"x": (1, 4, 1)}, {"n": np.array((1 << 61) - 1)}),
    "a window": (
        [node("HannWindow", "n", "w"), node("Add", "x w")],
        LINE,
        {"n": np.array(1 << 23)},
    ),
    "a range": (
        [node("Range", "a n b", "r"), node("Cast", "r", "f", to=1), node("Add", "x f")],
        LINE,
        {"a": np.array(0), "n": np.array(1 << 30), "b": np.array(1)},
    ),
    "filters": (
        [node("MelWeightMatrix", "n one r l h", "w"), node("Add", "x w")],
        LINE,
        {
            "n": np.array(1 << 22),
            "one": np.array(2),
            "r": np.array(8000),
            "l": np.float32(0),
            "h": np.float32(9),
        },
    ),
    "a triangle of one row": ([node("Trilu", "x k")], {"x": (1, 1 << 25)}, {"k": np.array(0)}),
    "bins of a prime": ([node("DFT", "x n")], {"x": (1, 1, 1)}, {"n": np.array((1 << 22) - 3)}),
    "places along an axis": ([node("Hardmax", "x", axis=1)], {"x": (1, 1 << 23)}, None),
    "a function of one number repeated": (
        [node("ConstantOfShape", "n", "c"), node("Gelu", "c", "g"), node("Add", "x g")],
        LINE,
        {"n": np.array([(1 << 23) - 1, 1])},
    ),
    "a grid": (
        [node("AffineGrid", "x n")],
        {"x": (1, 2, 3)},
        {"n": np.array([1, 1, 1, 1 << 22])},
    ),
    "images as many as rounded": (
        [node("Resize", "x - s", mode="linear")],
        {"x": ((1 << 25) + 1, 1, 2, 2)},
        {"s": np.array([1, 1, 2, 2], "f4")},
    ),
    "parts": (
        [
            node("SplitToSequence", "x one", "s", axis=0),
            node("SequenceAt", "s two", "y"),
        ],
        {"x": (1 << 36,)},
        {"one": np.array(1), "two": np.array(2)},
    ),
    "nothing, in many rows": ([node("Trilu", "x k")], {"x": (1 << 40, 0)}, {"k": np.array(0)}),
    "a grid of nothing": (
        [node("AffineGrid", "x n")],
        {"x": (1, 2, 3)},
        {"n": np.array([1, 1, 1 << 40, 0])},
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_numbers_that_ask_for_much(case: str) -> None:
    """Each loads, or is refused, in little memory and time."""
    nodes, inputs, held = OTHERS[case]
    with bounded(20, 64 * MIB), suppress(LeanConvError):
        loaded(nodes, inputs, held, 20, memory_limit="1 MiB")
