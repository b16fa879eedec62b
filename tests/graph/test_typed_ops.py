"""Operations between types, and places of extremes, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from leanconv.errors import ModelError
from leanconv.graph.ir import TensorType
from leanconv.graph.ops import OPS, evaluate, infer
from leanconv.types import BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, NUMBERS, as_dtype
from support.onnx_models import Array, imported, model, reference

R = np.random.default_rng(12)


def numbers(dtype: str, *shape: int) -> Array:
    """A few small numbers, so that many are equal; no zeros."""
    if dtype == BOOL:
        return R.integers(0, 2, shape).astype(bool)
    least = 1 if np.dtype(dtype).kind == "u" else -4
    found = R.integers(least, 5, shape)
    return np.where(found == 0, 5, found).astype(dtype)


def wanted(op: str, arrays: list[Array], outputs: int, opset: int, **given: Any) -> list[Array]:
    """What ONNX Runtime computes of one node, and our import of it; a TopK's k is in the file."""
    names = [f"x{index}" for index in range(len(arrays))]
    made = [f"y{index}" for index in range(outputs)]
    inputs = dict(zip(names, arrays, strict=True))
    held = {"x1": inputs.pop("x1")} if op == "TopK" else {}
    proto = model([helper.make_node(op, names, made, **given)], {}, made, held, opset)
    for name, array in inputs.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    for value in proto.graph.output:
        value.ClearField("type")  # it follows
    proto.ir_version = 10
    found = reference(proto, inputs)
    ours = imported(proto, inputs)
    alike([ours[name] for name in made], [found[name] for name in made])
    return [found[name] for name in made]


def computed(op: str, arrays: list[Array], **attributes: Any) -> list[Array]:
    """What the table's operation gives, of the types that it infers."""
    types = [TensorType(array.shape, as_dtype(array.dtype)) for array in arrays]
    made = evaluate(op, arrays, attributes)
    kinds = infer(op, types, attributes)
    assert [(array.shape, array.dtype) for array in made] == [(k.shape, k.dtype) for k in kinds]
    return list(made)


def alike(found: list[Array], other: list[Array]) -> None:
    assert len(found) == len(other)
    for a, b in zip(found, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


CASTS = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64")


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_cast(source: str, target: str) -> None:
    x = numbers(source, 3, 4)
    if np.dtype(source).kind == "f" and np.dtype(target).kind != "u":
        x += np.asarray(0.75, source)
    if np.dtype(target).kind == "u":
        x = np.abs(x) if x.dtype != bool else x
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    alike(computed("Cast", [x], to=as_dtype(target)), wanted("Cast", [x], 1, 21, to=kind))


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [INT32, INT64, FLOAT32, FLOAT64])
def test_comparisons(op: str, dtype: str) -> None:
    arrays = [numbers(dtype, 2, 3, 4), numbers(dtype, 3, 1)]
    alike(computed(op, arrays), wanted(op, arrays, 1, 21))


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_logic(op: str) -> None:
    arrays = [numbers(BOOL, 2, 3, 4), numbers(BOOL, 3, 1)]
    alike(computed(op, arrays), wanted(op, arrays, 1, 21))
    alike(computed("Not", arrays[:1]), wanted("Not", arrays[:1], 1, 21))


@pytest.mark.parametrize("dtype", [INT32, INT64, "uint8", FLOAT32])
def test_where(dtype: str) -> None:
    arrays = [numbers(BOOL, 3, 1), numbers(dtype, 2, 3, 4), numbers(dtype, 4)]
    alike(computed("Where", arrays), wanted("Where", arrays, 1, 21))


@pytest.mark.parametrize("fmod", [False, True])
@pytest.mark.parametrize("dtype", [each for each in NUMBERS if each.is_integer])
def test_modulo(dtype: str, fmod: bool) -> None:
    arrays = [numbers(dtype, 2, 30), numbers(dtype, 30)]
    alike(computed("Mod", arrays, fmod=fmod), wanted("Mod", arrays, 1, 21, fmod=int(fmod)))


def test_modulo_of_floats_has_the_sign_of_the_dividend() -> None:
    arrays = [R.standard_normal((5, 7)).astype("f4"), R.standard_normal(7).astype("f4")]
    alike(computed("Mod", arrays, fmod=True), wanted("Mod", arrays, 1, 21, fmod=1))


def test_numbers_that_are_none() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf, 0], "f4")
    alike(computed("IsNaN", [x]), wanted("IsNaN", [x], 1, 20))
    for positive, negative in ((1, 1), (0, 1), (1, 0)):
        found = computed("IsInf", [x], positive=bool(positive), negative=bool(negative))
        alike(
            found, wanted("IsInf", [x], 1, 20, detect_positive=positive, detect_negative=negative)
        )


@pytest.mark.parametrize("op", ["Sign", "Floor", "Ceil", "Round"])
def test_steps(op: str) -> None:
    x = np.array([-2.5, -1.5, -0.5, -0.2, 0, 0.5, 1.5, 2.5, 7.1], "f4")
    alike(computed(op, [x]), wanted(op, [x], 1, 21))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, "uint8"])
def test_places_of_extremes(op: str, last: bool, dtype: str) -> None:
    x = numbers(dtype, 3, 7, 4)
    for axis, keepdims in ((0, True), (1, False), (2, True)):
        found = computed(op, [x], axis=axis, keepdims=keepdims, last=last)
        given = {"axis": axis, "keepdims": int(keepdims), "select_last_index": int(last)}
        alike(found, wanted(op, [x], 1, 13, **given))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, INT64])
def test_top(largest: bool, dtype: str) -> None:
    x = numbers(dtype, 3, 9, 4)
    for axis, k in ((0, 1), (1, 5), (2, 4), (1, 0)):
        found = computed("TopK", [x], axis=axis, k=k, largest=largest, sorted=True)
        k_ = np.array([k])
        alike(found, wanted("TopK", [x, k_], 2, 11, axis=axis, largest=int(largest)))
    kind = TensorType(x.shape, as_dtype(dtype))
    with pytest.raises(ModelError, match="k is 5; expected 0 to 4, the extent of axis 2"):
        infer("TopK", [kind], {"axis": 2, "k": 5, "largest": True, "sorted": True})


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,)},
        {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 2), "dilations": (1, 1)},
        {"kernel_shape": (3, 2), "strides": (1, 2), "pads": (0, 1, 1, 0), "dilations": (2, 1)},
        {"kernel_shape": (2,) * 3, "strides": (1,) * 3, "pads": (1,) * 6, "dilations": (1,) * 3},
    ],
)
def test_maxima_with_their_places(window: dict[str, Any], order: int) -> None:
    x = R.integers(-3, 3, (2, 3, *(7, 6, 5)[: len(window["kernel_shape"])])).astype("f4")
    given = {**window, "ceil_mode": False, "count_include_pad": False, "storage_order": order}
    found = computed("MaxPoolWithIndices", [x], **given)
    alike(found, wanted("MaxPool", [x], 2, 12, **window, storage_order=order))
    values = {name: given[name] for name in OPS["MaxPool"].attributes}
    alike(found[:1], computed("MaxPool", [x], **values))


@pytest.mark.parametrize(
    ("op", "dtypes", "what"),
    [
        ("And", (INT32, INT32), "expected bool"),
        ("Less", (BOOL, BOOL), "expected int8"),
        ("Equal", (INT32, INT64), "expected one dtype"),
        ("Not", (FLOAT32,), "expected bool"),
        ("Where", (INT32, INT32, INT32), "expected bool and two alike"),
        ("Where", (BOOL, INT32, INT64), "expected bool and two alike"),
        ("IsNaN", (INT32,), "expected floats"),
        ("Mod", (BOOL, BOOL), "expected int8"),
    ],
)
def test_other_types_are_refused(op: str, dtypes: tuple[Any, ...], what: str) -> None:
    with pytest.raises(ModelError, match=what):
        infer(op, [TensorType((2,), dtype) for dtype in dtypes], {"fmod": False})


def test_run_time_types_are_those_that_kernels_take() -> None:
    for op in ("Less", "Mod", "Add", "ArgMax", "TopK"):
        assert {FLOAT16, INT64}.intersection(OPS[op].dtypes) == {INT64}
    for op in ("Cast", "Where"):
        assert {FLOAT16, INT64} < set(OPS[op].dtypes)
