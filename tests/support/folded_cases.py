"""Operations on constants, each with the constants that it may read."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from support.import_cases import Numbers

normal = Numbers(8).normal
IMAGE = normal(2, 6, 9, 7)


def node(op: str, inputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, ["k"], **attributes)


def tensor(*numbers: Any, dtype: Any = np.int64) -> Any:
    return np.array(numbers, dtype=dtype)


I64 = np.array([[-7], [5]])
FOLDS = {
    "Shape": node("Shape", ["s"]),
    "Shape-part": node("Shape", ["cube"], start=1, end=-1),
    "Size": node("Size", ["s"]),
    "Range": node("Range", ["zero", "seven", "one"]),
    "Range-down": node("Range", ["seven", "zero", "minus"]),
    "Range-float": node("Range", ["fzero", "fseven", "fone"]),
    "ConstantOfShape": node("ConstantOfShape", ["shape"]),
    "ConstantOfShape-value": node(
        "ConstantOfShape", ["shape"], value=numpy_helper.from_array(tensor(3))
    ),
    "Where": node("Where", ["flags", "i", "row"]),
    "Equal": node("Equal", ["i", "row"]),
    "Less": node("Less", ["i", "row"]),
    "LessOrEqual": node("LessOrEqual", ["i", "row"]),
    "Greater": node("Greater", ["i", "row"]),
    "GreaterOrEqual": node("GreaterOrEqual", ["i", "row"]),
    "And": node("And", ["flags", "flag"]),
    "Or": node("Or", ["flags", "flag"]),
    "Not": node("Not", ["flags"]),
    "Floor": node("Floor", ["f32"]),
    "Ceil": node("Ceil", ["f32"]),
    "Round": node("Round", ["f32"]),
    "Sign": node("Sign", ["f32"]),
    "Mod": node("Mod", ["i", "row"]),
    "Mod-float": node("Mod", ["f32", "f32b"], fmod=1),
    "ReduceProd": node("ReduceProd", ["i"], axes=[0]),
    "Tile": node("Tile", ["i", "two"]),
    "DequantizeLinear": node("DequantizeLinear", ["q8", "fone"]),
    "DequantizeLinear-zero": node("DequantizeLinear", ["q8", "fone", "q8zero"]),
    "DequantizeLinear-slices": node("DequantizeLinear", ["q8", "f32b"], axis=-1),
    "DequantizeLinear-zeros": node("DequantizeLinear", ["u8", "f32b", "u8zeros"], axis=0),
    "DequantizeLinear-bias": node("DequantizeLinear", ["q32", "f32b"], axis=0),
    "Div": node("Div", ["i", "row"]),
    "Mul": node("Mul", ["i", "row"]),
    "Pow": node("Pow", ["i", "i2"]),
    "Neg": node("Neg", ["i"]),
    "Min": node("Min", ["i", "row"]),
    "Gather": node("Gather", ["row", "index"]),
    "Slice": node("Slice", ["row", "one1", "seven1"]),
    "Concat": node("Concat", ["head", "tail"], axis=0),
    "Expand": node("Expand", ["i", "shape"]),
    "Cast": node("Cast", ["f32"], to=TensorProto.INT32),
    "CastLike": node("CastLike", ["f32", "i"]),
    "Constant-float": node("Constant", [], value_float=2.5),
    "Constant-floats": node("Constant", [], value_floats=[2.5] * 7),
    "Constant-int": node("Constant", [], value_int=4),
    "Constant-ints": node("Constant", [], value_ints=[4] * 7),
    "Constant-value": node("Constant", [], value=numpy_helper.from_array(normal(7))),
    "MaxPool": node("MaxPool", ["image"], kernel_shape=[2, 2]),
    "Conv": node("Conv", ["image", "kernel"]),
    "Softmax": node("Softmax", ["f32"]),
    "ReduceMean": node("ReduceMean", ["f32"]),
}
HELD = {
    "s": normal(7),
    "cube": normal(1, 5, 2),
    "head": tensor(1, 2, 3),
    "tail": tensor(4, 5, 6, 7),
    "zero": np.int64(0),
    "one": np.int64(1),
    "minus": np.int64(-1),
    "seven": np.int64(7),
    "fzero": np.float32(0),
    "fone": np.float32(0.5),
    "fseven": np.float32(3.3),
    "shape": tensor(1, 1, 9, 7),
    "flags": np.array([[True], [False]] * 1)[:1],
    "flag": np.array([False] * 7),
    "i": tensor(-7),
    "i2": tensor(3),
    "row": tensor(1, -2, 3, -4, 5, -6, 9),
    "two": tensor(7),
    "f32": np.array([-2.5, -0.5, 0.5, 1.5, 2.5, 0.1, -0.9], np.float32),
    "f32b": np.array([1.5, -0.7, 0.4, 1.0, -2.0, 3.0, 0.2], np.float32),
    "q8": np.array([[-128, -1, 0, 1, 2, 3, 127]], np.int8),
    "q8zero": np.int8(-128),
    "u8": np.array([0, 1, 2, 3, 128, 254, 255], np.uint8),
    "u8zeros": np.array([255, 0, 128, 3, 2, 1, 0], np.uint8),
    "q32": np.array([-(2**24) - 1, 2**30, 5, 0, -6, 7, 2**24], np.int32),
    "index": tensor(6, 0, 0, -1, 2, 3, 1),
    "one1": tensor(-1),
    "seven1": tensor(7),
    "image": normal(1, 6, 10, 8),
    "kernel": normal(6, 6, 2, 2),
}
