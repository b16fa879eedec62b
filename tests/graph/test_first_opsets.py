"""Opsets 1 to 6: what they wrote otherwise, against the same in a newer opset in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.onnx_import import read_model
from support.hostile import node
from support.onnx_models import imported, model, reference

R = np.random.default_rng(5)
X = R.standard_normal((2, 3, 4, 5)).astype("f4")
SHAPE = np.array([2, -1, 5])
HELD: dict[str, Any] = {
    "like": R.standard_normal((2, 3, 4, 5)).astype("f4"),
    "c": R.standard_normal(3).astype("f4"),
    "hw": R.standard_normal((4, 5)).astype("f4"),
    "ch": R.standard_normal((3, 4)).astype("f4"),
    "one": np.array([1.5], "f4"),
    "c11": R.standard_normal((3, 1, 1)).astype("f4"),
    "w": R.standard_normal((5, 6)).astype("f4"),
    "row": R.standard_normal(6).astype("f4"),
    "full": R.standard_normal((24, 6)).astype("f4"),
    "v": R.uniform(0.5, 2, 3).astype("f4"),
    "shape": SHAPE,
    "halves": np.array([1, 2]),
    "three": np.array(3),
    "axis": np.array(1),
    "tiles": np.array([1, 3, 1, 1]),
    "pads": np.array([0, 0, 1, 2, 0, 0, 3, 4]),
    "scales": np.array([1, 1, 2, 3], "f4"),
    "two": np.array(2.5, "f4"),
}
HELD["c11"], HELD["ch1"] = HELD["c"].reshape(3, 1, 1), HELD["ch"].reshape(3, 4, 1)

Nodes = list[onnx.NodeProto]


def built(nodes: Nodes, opset: int, outputs: str = "y") -> onnx.ModelProto:
    """A model of some nodes with those of the constants that they read."""
    held = {name: HELD[name] for each in nodes for name in each.input if name in HELD}
    return model(nodes, {"x": X.shape}, outputs.split(), held, opset)


def _n(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Nodes:
    return [node(op, inputs, outputs, **attributes)]


C = {"consumed_inputs": [0, 0]}
CASES: list[tuple[int, Nodes, Nodes]] = [
    (1, _n("Add", "x like", **C), _n("Add", "x like")),
    (6, _n("Mul", "x c", broadcast=1, axis=1), _n("Mul", "x c11")),
    (6, _n("Sub", "x hw", broadcast=1), _n("Sub", "x hw")),
    (1, _n("Div", "x ch", broadcast=1, axis=1, **C), _n("Div", "x ch1")),
    (6, _n("Add", "x c", broadcast=1, axis=-3), _n("Add", "x c11")),
    (6, _n("Add", "x one", broadcast=1, axis=0), _n("Add", "x one")),
    (
        1,
        [*_n("Abs", "x", "a", consumed_inputs=[0]), *_n("Pow", "a two", broadcast=1)],
        [*_n("Abs", "x", "a"), *_n("Pow", "a two")],
    ),
    (1, _n("Relu", "x", consumed_inputs=[0]), _n("Relu", "x")),
    (5, _n("PRelu", "x c", **C), _n("PRelu", "x c11")),
    (6, _n("PRelu", "x one"), _n("PRelu", "x one")),
    (1, _n("Selu", "x"), _n("Selu", "x", alpha=1.6732, gamma=1.0507)),
    (6, _n("Selu", "x"), _n("Selu", "x")),
    (1, _n("Clip", "x", min=-0.5, max=0.5), _n("Identity", "x", "y")),  # its own check below
    (1, _n("Reshape", "x", shape=[0, -1, 5], **C), _n("Reshape", "x shape")),
    (5, _n("Reshape", "x shape"), _n("Reshape", "x shape")),
    (1, _n("Concat", "x like"), _n("Concat", "x like", axis=1)),
    (4, _n("Concat", "x like", axis=2), _n("Concat", "x like", axis=2)),
    (1, _n("Split", "x halves", "y z", axis=1), _n("Split", "x halves", "y z", axis=1)),
    (2, _n("Split", "x", "y z", axis=1, split=[1, 2]), _n("Split", "x halves", "y z", axis=1)),
    (1, _n("Pad", "x", paddings=[0, 0, 1, 2, 0, 0, 3, 4]), _n("Pad", "x pads")),
    (2, _n("Pad", "x", pads=[0, 0, 1, 2, 0, 0, 3, 4]), _n("Pad", "x pads")),
    (1, _n("Tile", "x three axis"), _n("Tile", "x tiles")),
    (6, _n("Tile", "x tiles"), _n("Tile", "x tiles")),
    (
        1,
        _n("Upsample", "x", height_scale=2.0, width_scale=3.0, mode="nearest"),
        _n(
            "Resize",
            "x - scales",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ),
    (1, _n("Cast", "x", to="FLOAT"), _n("Identity", "x")),
    (1, _n("Dropout", "x", "y m", is_test=1, ratio=0.3, **C), _n("Identity", "x")),
    (6, _n("Dropout", "x", ratio=0.3), _n("Identity", "x")),
    (
        6,
        [*_n("Flatten", "x", "f", axis=3), *_n("Gemm", "f w row", broadcast=1)],
        [*_n("Flatten", "x", "f", axis=3), *_n("Gemm", "f w row")],
    ),
    (
        1,
        [*_n("Flatten", "x", "f", axis=3), *_n("Gemm", "f w full")],
        [*_n("Flatten", "x", "f", axis=3), *_n("Gemm", "f w full")],
    ),
    (
        1,
        _n("BatchNormalization", "x c v c v", is_test=1, epsilon=1e-3, consumed_inputs=[0] * 5),
        _n("BatchNormalization", "x c v c v", epsilon=1e-3),
    ),
    (6, _n("BatchNormalization", "x c v c v"), _n("BatchNormalization", "x c v c v")),
    (
        1,
        _n("InstanceNormalization", "x c v", consumed_inputs=[0, 0, 0]),
        _n("InstanceNormalization", "x c v"),
    ),
    (1, _n("ReduceMean", "x", axes=[2, 3]), _n("ReduceMean", "x", axes=[2, 3])),
    (1, _n("Sum", "x like x", **C), _n("Sum", "x like x")),
    (1, _n("LogSoftmax", "x", axis=3), _n("LogSoftmax", "x", axis=3)),
    (
        1,
        _n("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2]),
        _n("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2]),
    ),
]


@pytest.mark.parametrize(
    ("opset", "old", "new"), CASES, ids=[f"{old[-1].op_type}-{n}" for n, old, _ in CASES]
)
def test_what_the_first_opsets_wrote(opset: int, old: Nodes, new: Nodes) -> None:
    found = imported(built(old, opset), {"x": X})["y"]
    wanted = reference(built(new, 13), {"x": X})["y"]
    if old[0].op_type == "Clip":
        wanted = np.clip(X, -0.5, 0.5)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_statistics_of_every_feature() -> None:
    """spatial=0, which opset 9 took away; ONNX Runtime still has it."""
    held = {name: R.uniform(0.5, 2, X.shape[1:]).astype("f4") for name in "sbmv"}
    for opset in (7, 8):
        nodes = [node("BatchNormalization", "x s b m v", "y", spatial=0)]
        proto = model(nodes, {"x": X.shape}, ["y"], held, opset)
        wanted = reference(proto, {"x": X})["y"]
        np.testing.assert_allclose(imported(proto, {"x": X})["y"], wanted, atol=1e-5)
    held["m"] = held["m"][:1]
    with pytest.raises(ModelError, match=r"spatial=0; expected 3x4x5 for all"):
        imported(model(nodes, {"x": X.shape}, ["y"], held, 7), {"x": X})


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3), (1, 3, 7)])
def test_statistics_of_the_batch(shape: tuple[int, ...]) -> None:
    x = (R.standard_normal(shape) * 3 + 5).astype("f4")
    nodes = [node("BatchNormalization", "x s b m v", "y rm rv", training_mode=1)]
    held = {name: R.uniform(0.5, 2, 3).astype("f4") for name in "sbmv"}
    proto = model(nodes, {"x": x.shape}, ["y"], held, 15)
    found, wanted = imported(proto, {"x": x})["y"], reference(proto, {"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("nodes", "opset", "kind", "what"),
    [
        (_n("Add", "x c"), 6, ModelError, "the attribute broadcast"),
        (_n("Add", "x c", broadcast=1, axis=0), 6, ModelError, "do not broadcast"),
        (_n("Add", "x c", broadcast=1, axis=9), 6, ModelError, "axis is 9"),
        (_n("Add", "x like", broadcast=1), 7, UnsupportedError, "'broadcast' is not supported"),
        (_n("Relu", "x", consumed_inputs=[0]), 6, UnsupportedError, "'consumed_inputs' is not"),
        (
            _n("BatchNormalization", "x c v c v", "y a b"),
            6,
            UnsupportedError,
            "there are outputs for the statistics",
        ),
        (_n("Reshape", "x shape"), 4, ModelError, "2 inputs; expected 1 to 1"),
        (_n("Tile", "x tiles"), 5, ModelError, "2 inputs; expected 3 to 3"),
        (_n("Upsample", "x", height_scale=2.0), 6, ModelError, "height_scale 2.0 and width"),
        (_n("Cast", "x", to="BFLOAT"), 5, ModelError, "element type 0"),
        (_n("HardSwish", "x"), 6, ModelError, "expected opset 14"),
    ],
)
def test_what_they_had_not(nodes: Nodes, opset: int, kind: type[LeanConvError], what: str) -> None:
    with pytest.raises(kind, match=what):
        read_model(built(nodes, opset).SerializeToString()).bind()
