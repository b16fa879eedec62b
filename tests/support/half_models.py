"""Models in float16, as converters write them."""

from __future__ import annotations

import onnx
from onnx import TensorProto, numpy_helper

from support.control_flow import node

HALF = TensorProto.FLOAT16


def in_half(proto: onnx.ModelProto, keep_ends: bool = False) -> onnx.ModelProto:
    """A float32 model as converters write it: all float32 becomes float16, but perhaps the ends."""
    made = onnx.ModelProto.FromString(proto.SerializeToString())
    graph = made.graph
    for held in graph.initializer:
        if held.data_type == TensorProto.FLOAT:
            held.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(held).astype("f2"), held.name)
            )
    if not keep_ends:
        for each in (*graph.input, *graph.output):
            each.type.tensor_type.elem_type = HALF
        return made
    (x,), (y,) = ([each.name for each in ends] for ends in (graph.input, graph.output))
    for each in graph.node:
        for names in (each.input, each.output):
            for index, name in enumerate(names):
                names[index] = {x: f"{x}_half", y: f"{y}_half"}.get(name, name)
    graph.node.insert(0, node("Cast", x, f"{x}_half", to=HALF))
    graph.node.append(node("Cast", f"{y}_half", y, to=TensorProto.FLOAT))
    return made
