"""Sparse tensors of ONNX files, and models whose weights are all sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, SparseTensorProto, helper, numpy_helper


def sparse(name: str, array: Any, *, coo: bool = False) -> SparseTensorProto:
    """An array as a sparse tensor, its indices linear or, with `coo`, along each axis."""
    array = np.asarray(array)
    places = np.flatnonzero(array)
    indices = np.stack(np.unravel_index(places, array.shape), -1) if coo else places
    values = numpy_helper.from_array(array.reshape(-1)[places], name)
    return stated(values, indices, array.shape)


def stated(values: onnx.TensorProto, indices: Any, dims: Sequence[int]) -> SparseTensorProto:
    """A sparse tensor of any values, indices and dims, sound or not."""
    held = numpy_helper.from_array(np.asarray(indices))
    return SparseTensorProto(values=values, indices=held, dims=dims)


def sparsened(proto: onnx.ModelProto, *, coo: bool = False) -> onnx.ModelProto:
    """The model with sparse tensors for its initializers, and for the values of its Constants."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _sparsen(made.graph, coo)
    return made


def _sparsen(graph: onnx.GraphProto, coo: bool) -> None:
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        graph.sparse_initializer.append(sparse(tensor.name, array, coo=coo and array.ndim > 0))
    del graph.initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _sparsen(attribute.g, coo)
            elif node.op_type == "Constant" and attribute.type == AttributeProto.TENSOR:
                held = sparse("", numpy_helper.to_array(attribute.t), coo=coo)
                attribute.CopyFrom(helper.make_attribute("sparse_value", held))
