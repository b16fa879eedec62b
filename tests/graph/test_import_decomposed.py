"""Operations that are imported as several simpler ones: ONNX Runtime, float64, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.onnx_import import read_model
from leanconv.types import FLOAT64
from support.decomposed_cases import CASES, DEEP, GROUP, IMAGE, INSTANCE, LAYER, normal
from support.hostile import network, node, refused
from support.onnx_models import Const, agree, imported, single


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


# -- in float64, against the formulas ------------------------------------------------------------


def in_double(op: str, operands: list[Any], opset: int, **attributes: Any) -> np.ndarray:
    return imported(*single(op, operands, opset, **attributes), FLOAT64)["out0"]


def normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + np.float64(np.float32(epsilon))))


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_norms_in_double_precision(far: float) -> None:
    """Also where the mean is far larger than the deviation."""
    x32 = (IMAGE + np.float32(far)).astype(np.float32)
    x = x32.astype(np.float64)
    w, b, columns = normal(12), normal(12), normal(7)
    per = (1, 12, 1, 1)
    found = in_double(LAYER, [x32, Const(columns)], 17)
    np.testing.assert_allclose(found, normalised(x, (3,)) * columns, rtol=1e-11, atol=1e-11)
    found = in_double(INSTANCE, [x32, Const(w), Const(b)], 17)
    expected = normalised(x, (2, 3)) * w.reshape(per) + b.reshape(per)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    found = in_double(GROUP, [x32, Const(w), Const(b)], 21, num_groups=3)
    grouped = normalised(x.reshape(2, 3, 4, 5, 7), (2, 3, 4)).reshape(x.shape)
    expected = grouped * w.reshape(per) + b.reshape(per)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    found = in_double(GROUP, [x32, Const(w[:3]), Const(b[:3])], 18, num_groups=3)
    expected = grouped * w[:3].repeat(4).reshape(per) + b[:3].repeat(4).reshape(per)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_equal_numbers_are_normalised_to_the_bias() -> None:
    x = np.full((1, 4, 3, 3), 7, np.float32)
    w, b = normal(4), normal(4)
    for op, opset, more in ((INSTANCE, 17, {}), (GROUP, 21, {"num_groups": 2})):
        found = imported(*single(op, [x, Const(w), Const(b)], opset, **more))["out0"]
        np.testing.assert_array_equal(found, np.broadcast_to(b.reshape(1, 4, 1, 1), x.shape))


def test_the_scale_broadcasts() -> None:
    """ONNX allows it; ONNX Runtime does not in every version."""
    scale = normal(5, 1)
    found = in_double(LAYER, [IMAGE, Const(scale)], 17, axis=2)
    np.testing.assert_allclose(
        found, normalised(IMAGE.astype(np.float64), (2, 3)) * scale, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_element_by_element(mode: str) -> None:
    block, kept = 3, 2
    found = imported(*single("DepthToSpace", [DEEP], 13, blocksize=block, mode=mode))["out0"]
    assert found.shape == (2, kept, 12, 15)
    for c, i, j in np.ndindex(kept, 12, 15):
        place = (i % block) * block + j % block
        depth = place * kept + c if mode == "DCR" else c * block * block + place
        np.testing.assert_array_equal(found[:, c, i, j], DEEP[:, depth, i // block, j // block])


def test_space_to_depth_is_the_inverse() -> None:
    wide = imported(*single("DepthToSpace", [DEEP], 13, blocksize=3))["out0"]
    again = imported(*single("SpaceToDepth", [wide], 13, blocksize=3))["out0"]
    np.testing.assert_array_equal(again, DEEP)


def test_outputs_of_training_that_nothing_reads_are_left_out() -> None:
    weight = {"w": np.ones(8, "f4")}
    graph = read_model(network([node(LAYER, "x w", "y mean deviation")], weight)).bind()
    assert graph.outputs == ("y",)
    assert {each.op for each in graph.nodes} == {
        "ReduceMean",
        "Sub",
        "Mul",
        "Add",
        "Sqrt",
        "Reciprocal",
    }


# -- refusals ------------------------------------------------------------------------------------

FOUR, EIGHT = np.ones(4, "f4"), np.ones(8, "f4")
REFUSED = [
    (node(INSTANCE, "x w w", "m y"), {"w": FOUR}, 17, "InstanceNorm.*opset 17.*'y' is used"),
    (node(INSTANCE, "x w w", "z m y"), {"w": FOUR}, 17, "only the first 1"),
    (node(LAYER, "x"), {}, 17, "1 inputs; expected 2 to 3"),
    (node(LAYER, "x -"), {}, 17, "input 1 is absent"),
    (node(LAYER, "x w"), {"w": EIGHT}, 16, "opset 16"),
    (node(LAYER, "x w", axis=4), {"w": EIGHT}, 17, "axis is 4; expected -4 to 3"),
    (node(LAYER, "x w", axis=-(2**63)), {"w": EIGHT}, 17, "axis is -9"),
    (node(LAYER, "x w", axis=1.5), {"w": EIGHT}, 17, "axis"),
    (node(LAYER, "x w", epsilon=-1.0), {"w": EIGHT}, 17, "epsilon is -1.0; expected a finite"),
    (node(LAYER, "x w", epsilon=float("nan")), {"w": EIGHT}, 17, "epsilon is nan"),
    (node(LAYER, "x w", stash_type=10), {"w": EIGHT}, 17, "stash_type is 10 for float32; exp"),
    (node(LAYER, "x w", stash_type=11), {"w": EIGHT}, 17, "stash_type is 11 for float32"),
    (node(LAYER, "x w"), {"w": np.ones(3, "f4")}, 17, "do not broadcast"),
    (node(LAYER, "x w"), {"w": np.ones((2, 4, 8, 8), "f4")}, 17, "the scale is .*expected a"),
    (node(LAYER, "x w"), {"w": np.ones((2,) + (1,) * 4, "f4")}, 17, "the scale is"),
    (node(LAYER, "x w b"), {"w": EIGHT, "b": FOUR}, 17, "broadcast"),
    (node(LAYER, "x w"), {"w": np.ones(8, "i8")}, 17, "expected one dtype"),
    (node(LAYER, "c c"), {"c": np.ones(8, "i8")}, 17, "int64.*; expected float32 or float64"),
    (node(LAYER, "c c"), {"c": np.float32(1)}, 17, "rank 0; expected rank 1"),
    (node(INSTANCE, "x w"), {"w": FOUR}, 17, "2 inputs; expected 3"),
    (node(INSTANCE, "x w w"), {"w": EIGHT}, 17, r"the scale, is .*8.*; expected 4 numbers"),
    (node(INSTANCE, "x w w"), {"w": np.ones((4, 1), "f4")}, 17, "expected 4 numbers"),
    (node(INSTANCE, "c w w"), {"c": np.ones((2, 4), "f4"), "w": FOUR}, 17, "rank 2; expected"),
    (node(INSTANCE, "x w w", num_groups=2), {"w": FOUR}, 17, "num_groups"),
    (node(GROUP, "x w w", num_groups=2), {"w": FOUR[:2]}, 17, "opset 17"),
    (node(GROUP, "x w w"), {"w": FOUR}, 21, "num_groups is missing; expected"),
    (node(GROUP, "x w w", num_groups=0), {"w": FOUR}, 21, "num_groups is 0; expected a divisor"),
    (node(GROUP, "x w w", num_groups=-2), {"w": FOUR}, 21, "num_groups is -2"),
    (node(GROUP, "x w w", num_groups=3), {"w": FOUR}, 21, "num_groups is 3; expected a divisor"),
    (node(GROUP, "x w w", num_groups=2**62), {"w": FOUR}, 21, "expected a divisor of 4"),
    (
        node(GROUP, "x w w", num_groups=2),
        {"w": FOUR},
        18,
        "2 numbers, one for each group, as before opset",
    ),
    (node(GROUP, "x w w", num_groups=2), {"w": FOUR[:2]}, 21, "4 numbers, one for each channel"),
    (node("DepthToSpace", "x"), {}, 13, "blocksize is missing; expected"),
    (node("DepthToSpace", "x", blocksize=0), {}, 13, "blocksize is 0; expected"),
    (node("DepthToSpace", "x", blocksize=-2), {}, 13, "blocksize is -2; expected"),
    (node("DepthToSpace", "x", blocksize=3), {}, 13, "expected a multiple of 9 channels"),
    (node("DepthToSpace", "x", blocksize=2**62), {}, 13, "expected a multiple"),
    (node("DepthToSpace", "x", blocksize=2, mode="RCD"), {}, 13, "'RCD'; expected DCR or CRD"),
    (node("DepthToSpace", "c", blocksize=2), {"c": EIGHT}, 13, "rank 1; expected rank 4"),
    (node("SpaceToDepth", "x", blocksize=3), {}, 13, "expected height and width to be multiples"),
    (node("SpaceToDepth", "x", blocksize=2**62), {}, 13, "multiples"),
    (node("SpaceToDepth", "x", blocksize=0), {}, 13, "blocksize is 0"),
    (node("ReduceL2", "x", axes=[0, 0]), {}, 17, "distinct axes"),
    (node("ReduceL1", "x", axes=[2**40]), {}, 17, "expected -4 to 3"),
    (node("ReduceSumSquare", "x", keepdims=2), {}, 17, "expected 0 or 1"),
    (node("ReduceL2", "x", axes=[1]), {}, 18, "axes"),
    (node("Selu", "x", alpha=1), {}, 17, "alpha"),
    (node("Selu", "c", gamma=1e38), {"c": np.ones(8, "u1")}, 17, "uint8.*; expected float32 or"),
]


@pytest.mark.parametrize(("each", "arrays", "opset", "what"), REFUSED)
def test_what_does_not_fit_is_refused(
    each: Any, arrays: dict[str, Any], opset: int, what: str
) -> None:
    refused(network([each], arrays, opset), what)


def test_refusals_name_node_operation_and_opset() -> None:
    each = node(GROUP, "x w w", num_groups=3)
    each.name = "stem/norm"
    with pytest.raises(ModelError, match=r"node 'stem/norm' \(GroupNormalization, opset 21\): "):
        read_model(network([each], {"w": FOUR}, 21)).bind()
    each = node(INSTANCE, "x w w", "m y")
    each.name = "norm"
    with pytest.raises(UnsupportedError, match=r"node 'norm' \(InstanceNorm.*, opset 17\): "):
        read_model(network([each], {"w": FOUR}))


def test_constants_are_normalised_within_the_budget() -> None:
    """A small file may not ask for much work at load."""
    many = [node(LAYER, "c w", f"v{i}") for i in range(400)]
    last = node("Sum", "x " + " ".join(f"v{i}" for i in range(400)))
    held = {"c": np.ones((512, 64, 8), "f4"), "w": EIGHT}
    refused(network([*many, last], held), "traffic", seconds=5)
