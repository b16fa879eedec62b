"""Sound models, and seeded damage to their bytes and to the fields of their messages."""

from __future__ import annotations

import random

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import helper

from support.control_flow import branch, graph, node
from support.onnx_models import model, small_cnn
from support.sparse_models import sparsened

NUMBERS = [0, 1, -1, 2, 3, 7, 64, 2**31 - 1, 2**31, 2**32, 2**60, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -1.0, 1e30, float("nan"), float("inf"), -float("inf"), 1e-40]


def shapes_and_pools() -> onnx.ModelProto:
    """A model of what the small network lacks: slices, resizing, pads, ranges, windows."""
    held = {
        "starts": np.array([1, 1]),
        "ends": np.array([9, -1]),
        "axes": np.array([2, 3]),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "scales": np.array([1, 1, 2, 1.5], "f4"),
        "zero": np.int64(0),
        "four": np.int64(4),
        "one": np.int64(1),
        "w": np.ones((4, 2, 3, 3), "f4"),
        "slope": np.full((4, 1, 1), 0.1, "f4"),
        "shape": np.array([4, 1, 1]),
        "parts": np.array([1, 3]),
        "last": np.array([-1]),
    }
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["a"]),
        helper.make_node("Pad", ["a", "pads"], ["b"], mode="reflect"),
        helper.make_node("Resize", ["b", "", "scales"], ["c"], mode="linear"),
        helper.make_node("ConvTranspose", ["c", "w"], ["d"], group=2, strides=[2, 1]),
        helper.make_node("PRelu", ["d", "slope"], ["e"]),
        helper.make_node("AveragePool", ["e"], ["f"], kernel_shape=[3, 2], strides=[2, 2],
                         ceil_mode=1, count_include_pad=1, pads=[1, 0, 1, 1]),
        helper.make_node("LRN", ["f"], ["g"], size=3),
        helper.make_node("Range", ["zero", "four", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["rf"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Reshape", ["rf", "shape"], ["rs"]),
        helper.make_node("Mul", ["g", "rs"], ["h"]),
        helper.make_node("Split", ["h", "parts"], ["i", "j"], axis=1),
        helper.make_node("ConstantOfShape", ["shape"], ["k"]),
        helper.make_node("Concat", ["j", "i"], ["l"], axis=1),
        helper.make_node("Sum", ["l", "k", "h"], ["m"]),
        helper.make_node("Transpose", ["m"], ["n"], perm=[0, 2, 3, 1]),
        helper.make_node("ReduceMax", ["n"], ["o"], axes=[-1], keepdims=0),
        helper.make_node("Unsqueeze", ["o", "last"], ["y"]),
    ]  # fmt: skip
    return model(nodes, {"x": (1, 4, "H", 8)}, ["y"], held)


def values_and_loops() -> onnx.ModelProto:
    """A model whose extents follow from values, with a branch, a loop and a scan on data."""
    held = {
        "most": np.array([3]),
        "iou": np.array([0.5], "f4"),
        "least": np.array([0.1], "f4"),
        "rows": np.array([1, -1, 4]),
        "scored": np.array([1, 2, -1]),
        "classes": np.array([1, 4, -1]),
        "true": np.array(True),
        "five": np.array(5),
        "last": np.array([-1]),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    inside = graph(
        [
            node("Cast", "i", "f", to=1),
            node("Mul", "s f", "t"),
            node("ReduceMax", "t", "m", keepdims=0),
            node("Less", "m limit", "more"),
        ],
        "more t m",
        {"i": "int64", "on": "bool", "s": "float"},
        {"limit": np.float32(40)},
        kinds={"more": "bool"},
    )
    slices = graph(
        [node("Add", "u v", "w"), node("Neg", "w", "z")], "w z", {"u": "float", "v": "float"}
    )
    nodes = [
        node("Reshape", "x rows", "boxes"),
        node("Reshape", "x classes", "pairs"),
        node("Reshape", "x scored", "wide"),
        node("Abs", "wide", "cut"),
        node("Split", "cut", "scores rest", axis=2),
        node("NonZero", "scores", "places"),
        node("Unique", "places", "different first", axis=1),
        node("Greater", "x half", "flags"),
        node("Reshape", "flags last", "flat"),
        node("Compress", "x flat", "kept"),
        node("TopK", "kept most", "top which", axis=0),
        node("Loop", "five true top", "y rows_", body=inside),
        node("Scan", "one kept", "total z_", body=slices, num_scan_inputs=1),
        node("Greater", "total one", "large"),
        branch("large", "b", *(graph([node(op, "y", "n")], "n") for op in ("Neg", "Exp"))),
        node("NonMaxSuppression", "boxes pairs most iou least", "nms"),
    ]
    return model(nodes, {"x": (1, 4, 8, 8)}, ["b", "z_", "nms", "different"], held)


def moved_and_sampled() -> onnx.ModelProto:
    """A model of operations that find elements by index or place."""
    held = {
        "at": np.array([[[0, 2]], [[-1, -1]]]),
        "each": np.resize(np.arange(4), (1, 2, 8, 8)),
        "grid": np.linspace(-1.2, 1.2, 60, dtype="f4").reshape(1, 6, 5, 2),
        "regions": np.array([[0, 0, 3, 4], [1, 2, 9, 5]], "f4"),
        "which": np.array([0, 0]),
        "sizes": np.array([1, 4, 3, 9]),
        "roi": np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.1], "f4"),
        "w": np.ones((2, 4, 2, 2), "f4"),
        "offset": np.full((1, 8, 7, 7), 0.3, "f4"),
        "lengths": np.array([1, 1]),
        "columns": np.array([4, 4]),
        "kernel": np.array([2, 2]),
        "middle": np.array([1, 2, 6, 9]),
        "theta": np.ones((1, 2, 3), "f4"),
        "eight": np.array([1, 4, 8, 8]),
    }
    node = helper.make_node
    nodes = [
        node("GatherND", ["x", "at"], ["a"], batch_dims=0),
        node("GatherElements", ["x", "each"], ["b"], axis=1),
        node("ScatterElements", ["x", "each", "b"], ["c"], axis=1, reduction="add"),
        node("Gather", ["c", "which"], ["d"], axis=1),
        node("Resize", ["c", "", "", "sizes"], ["e"], mode="cubic", antialias=1),
        node("Resize", ["c", "roi", "", "sizes"], ["f"], mode="linear", extrapolation_value=2.0,
             coordinate_transformation_mode="tf_crop_and_resize"),
        node("GridSample", ["c", "grid"], ["g"], mode="cubic", padding_mode="reflection"),
        node("AffineGrid", ["theta", "eight"], ["h"], align_corners=1),
        node("GridSample", ["c", "h"], ["i"], padding_mode="border"),
        node("RoiAlign", ["c", "regions", "which"], ["j"], output_height=2, output_width=3),
        node("DeformConv", ["x", "w", "offset"], ["k"], kernel_shape=[2, 2], strides=[1, 1]),
        node("ReverseSequence", ["d", "lengths"], ["l"], time_axis=0, batch_axis=1),
        node("MaxPool", ["x"], ["m", "places"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", ["m", "places"], ["n"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["k"], ["o"], axis=2),
        node("CenterCropPad", ["n", "middle"], ["p"]),
        *(node("ReduceSum", [name], [f"s{name}"], keepdims=0) for name in "aefgijklp"),
        node("Sum", [f"s{name}" for name in "aefgijklp"], ["y"]),
    ]  # fmt: skip
    return model(nodes, {"x": (1, 4, 8, 8)}, ["y"], held, 20)


MODELS = [
    small_cnn(),
    shapes_and_pools(),
    values_and_loops(),
    moved_and_sampled(),
    sparsened(small_cnn(), coo=True),
    sparsened(values_and_loops()),
]
FILES = [each.SerializeToString() for each in MODELS]


def damaged_bytes(choose: random.Random) -> bytes:
    """Flip, insert, remove and repeat bytes; cut the end off."""
    data = bytearray(choose.choice(FILES))
    for _ in range(choose.choice([1, 1, 2, 4, 16])):
        place = choose.randrange(len(data))
        kind = choose.randrange(6)
        if kind < 3:
            data[place] ^= 1 << choose.randrange(8)
        elif kind == 3:
            data[place:place] = choose.randbytes(choose.randrange(1, 9))
        elif kind == 4:
            del data[place : place + choose.randrange(1, 9)]
        else:
            end = place + choose.randrange(1, 40)
            data[place:place] = data[place:end]
    return bytes(data[: choose.randrange(len(data))] if choose.random() < 0.1 else data)


def damaged_fields(choose: random.Random) -> bytes:
    """Set, clear, repeat or exchange fields anywhere in the message."""
    changed = onnx.ModelProto()
    changed.CopyFrom(choose.choice(MODELS))
    for _ in range(choose.choice([1, 1, 2, 3])):
        message: Message = changed
        while True:
            filled = [f for f in message.ListFields() if f[0].name != "opset_import"]
            if not filled:
                break
            field, value = choose.choice(filled)
            if field.message_type is None:
                _change(choose, message, field, value)
                break
            if not field.is_repeated:
                message = value
            elif choose.random() < 0.12:
                _rearrange(choose, value)
                break
            else:
                message = choose.choice(value)
    return changed.SerializeToString()


def _rearrange(choose: random.Random, items: object) -> None:
    kind = choose.randrange(3)
    if kind == 0:
        del items[choose.randrange(len(items))]  # type: ignore[attr-defined, arg-type]
    elif kind == 1:
        items.add().CopyFrom(choose.choice(items))  # type: ignore[attr-defined, call-overload]
    else:
        a, b = choose.choice(items), choose.choice(items)  # type: ignore[call-overload]
        b.CopyFrom(a)


def _change(choose: random.Random, message: Message, field: object, value: object) -> None:
    name = field.name  # type: ignore[attr-defined]
    if choose.random() < 0.15:
        message.ClearField(name)
        return
    new = _replacement(choose, value[0] if field.is_repeated else value)  # type: ignore[attr-defined, index]
    try:
        if not field.is_repeated:  # type: ignore[attr-defined]
            setattr(message, name, new)
        elif choose.random() < 0.3:
            getattr(message, name).append(new)
        else:
            getattr(message, name)[choose.randrange(len(value))] = new  # type: ignore[arg-type]
    except ValueError:  # out of the field's range
        message.ClearField(name)


def _replacement(choose: random.Random, old: object) -> object:
    if isinstance(old, float):
        return choose.choice(FLOATS)
    if isinstance(old, int):
        return choose.choice([*NUMBERS, old + 1, old - 1])
    if isinstance(old, bytes):
        return choose.choice([b"", old[:-1], old + b"\xff", old[::-1], b"SAME_UPPER"])
    names = [name for each in MODELS for node in each.graph.node for name in node.output]
    ops = [node.op_type for each in MODELS for node in each.graph.node]
    return choose.choice([*names, *ops, "", "x", "y", "If"])
