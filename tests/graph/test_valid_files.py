"""What ONNX allows is computed, or called unsupported: never invalid."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing
from support.hostile import network, node
from support.onnx_models import agree, imported, model

X = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype("f4")


def refused(data: bytes, kind: type[LeanConvError], what: str) -> None:
    with pytest.raises(LeanConvError, match=what) as caught:
        check_flowing(run_passes(read_model(data).bind()))
    assert type(caught.value) is kind, caught.value


def transposed(**attributes: Any) -> bytes:
    weight = {"w": np.ones((4, 2, 3, 3), "f4")}
    return network([node("ConvTranspose", "x w", **attributes)], weight, opset=22)


def test_an_output_shape_beyond_a_step_of_the_kernels_is_invalid() -> None:
    read_model(transposed(output_shape=[26, 26], strides=[3, 3])).bind()
    for wanted in (27, 0, -1, 2**62):
        data = transposed(output_shape=[wanted, 24], strides=[3, 3])
        refused(data, ModelError, f"asks for {wanted} on spatial axis 0; expected 1 to 26, where")


def test_same_padding_on_which_engines_differ_is_unsupported() -> None:
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        refused(transposed(auto_pad=auto, strides=[4, 4]), UnsupportedError, "engines differ")


# -- tensors without elements ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "held"),
    [
        ([node("Conv", "x w")], {"w": np.zeros((0, 4, 3, 3), "f4")}),
        ([node("ConvTranspose", "x w")], {"w": np.zeros((4, 0, 3, 3), "f4")}),
        ([node("ReduceMean", "c", "m"), node("Add", "x m")], {"c": np.zeros((0, 3), "f4")}),
    ],
)
def test_tensors_without_elements_are_unsupported(
    nodes: list[onnx.NodeProto], held: dict[str, Any]
) -> None:
    refused(network(nodes, held), UnsupportedError, "extents of at least 1")


@pytest.mark.parametrize(
    ("nodes", "held"),
    [
        ([node("Slice", "x s s")], {"s": np.array([2])}),
        ([node("Slice", "x s s", "e"), node("Relu", "e")], {"s": np.array([2])}),
        ([node("MatMul", "x w")], {"w": np.zeros((8, 0), "f4")}),
        ([node("Relu", "c")], {"c": np.zeros((2, 0), "f4")}),
    ],
)
def test_outputs_without_elements_are_given(
    nodes: list[onnx.NodeProto], held: dict[str, Any]
) -> None:
    agree(onnx.load_from_string(network(nodes, held)), {"x": X})


def test_an_input_may_have_no_elements() -> None:
    agree(model([node("Relu", "x")], {"x": ("N", 4)}, ["y"]), {"x": np.zeros((0, 4), "f4")})


def test_parts_without_elements_vanish() -> None:
    """As where a transformer rotates all of its channels and keeps none."""
    held = {"sizes": np.array([4, 0]), "none": np.zeros((1, 0, 8, 8), "f4")}
    nodes = [
        node("Split", "x sizes", "a b", axis=1),
        node("Neg", "b", "c"),
        node("Concat", "a c none", axis=1),
    ]
    agree(model(nodes, {"x": X.shape}, ["y"], held), {"x": X})
    wrong = [node("Split", "x sizes", "a b", axis=1), node("Concat", "a b", axis=2)]
    refused(network(wrong, held), ModelError, "expected equal extents on every axis but 2")


# -- the newest opsets -------------------------------------------------------------------------


def test_what_only_float8_heeds_is_left_alone() -> None:
    cast = node("Cast", "x", "a", to=TensorProto.FLOAT, saturate=0, round_mode="down")
    like = node("CastLike", "c a", "k", saturate=1)
    held = {"c": np.arange(8, dtype=np.int32)}
    proto = model([cast, like, node("Add", "a k")], {"x": X.shape}, ["y"], held, opset=26)
    np.testing.assert_array_equal(imported(proto, {"x": X})["y"], X + np.arange(8, dtype="f4"))


def test_a_constant_cast_like_a_running_value_stays_constant() -> None:
    """Its dtype alone is read, so that shapes may be computed from it."""
    nodes = [node("CastLike", "one x", "f"), node("Cast", "f", "s", to=7), node("Tile", "x s")]
    held = {"one": np.array([1, 1, 2, 1], np.int32)}
    proto = model(nodes, {"x": X.shape}, ["y"], held)
    assert imported(proto, {"x": X})["y"].shape == (1, 4, 16, 8)


def test_space_to_depth_is_the_inverse_of_depth_to_space_in_both_modes() -> None:
    for mode in ("DCR", "CRD"):
        nodes = [
            node("DepthToSpace", "x", "d", blocksize=2, mode=mode),
            node("SpaceToDepth", "d", blocksize=2, mode=mode),
        ]
        proto = model(nodes, {"x": X.shape}, ["y"], opset=28)
        np.testing.assert_array_equal(imported(proto, {"x": X})["y"], X)


def test_a_range_of_float16_is_unsupported_where_its_steps_are_rounded_otherwise() -> None:
    held = {name: np.float16(number) for name, number in (("a", 0), ("b", 9), ("c", 1))}
    nodes = [node("Range", "a b c", "r"), node("Cast", "r", "k", to=1), node("ReduceMax", "k", "m")]
    refused(network([*nodes, node("Add", "x m")], held, 27), UnsupportedError, "range of float16")


# -- other domains -----------------------------------------------------------------------------


def test_a_file_of_another_domain_alone_is_unsupported() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    del proto.opset_import[:]
    refused(proto.SerializeToString(), ModelError, "imports 0 versions")
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    refused(
        proto.SerializeToString(), UnsupportedError, "domain 'ai.onnx.ml' only .Relu.; expected"
    )


def test_a_file_from_before_opsets_is_of_the_first() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    del proto.opset_import[:]
    proto.ir_version = 2
    assert read_model(proto.SerializeToString()).opset == 1
