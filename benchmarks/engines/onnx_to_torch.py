"""Run an ONNX classification network as a torch module: torch's engines get the same weights.

Only what the measured networks hold: Conv, BatchNormalization, Relu, Clip, Add, MaxPool,
AveragePool, GlobalAveragePool, Gemm, MatMul, Flatten, Reshape, Softmax, Concat, Dropout, Identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

Tensor: TypeAlias = "torch.Tensor"
Operation = Callable[[list[Any], dict[str, Any]], Tensor]


def _spatial_pads(x: Tensor, attributes: dict[str, Any], value: float) -> tuple[Tensor, list[int]]:
    """Return `x` and the symmetric padding left to do; unequal padding is done here."""
    rank = x.dim() - 2
    pads = list(attributes.get("pads", [0] * 2 * rank))
    begins, ends = pads[:rank], pads[rank:]
    if begins == ends:
        return x, begins
    widths = [width for pair in zip(begins[::-1], ends[::-1], strict=True) for width in pair]
    return functional.pad(x, widths, value=value), [0] * rank


def _conv(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    x, weight, *rest = args
    x, padding = _spatial_pads(x, attributes, 0.0)
    rank = weight.dim() - 2
    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    result: Tensor = convolution(
        x,
        weight,
        rest[0] if rest else None,
        attributes.get("strides", [1] * rank),
        padding,
        attributes.get("dilations", [1] * rank),
        attributes.get("group", 1),
    )
    return result


def _batch_norm(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    x, scale, bias, mean, variance = args
    return functional.batch_norm(
        x, mean, variance, scale, bias, False, 0.0, attributes.get("epsilon", 1e-5)
    )


def _clip(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    low = args[1] if len(args) > 1 and args[1] is not None else attributes.get("min")
    high = args[2] if len(args) > 2 and args[2] is not None else attributes.get("max")
    low, high = (None if bound is None else float(bound) for bound in (low, high))
    if (low, high) == (0.0, 6.0):
        return functional.relu6(args[0])
    result: Tensor = torch.clamp(args[0], low, high)
    return result


def _max_pool(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    x, padding = _spatial_pads(args[0], attributes, float("-inf"))
    return functional.max_pool2d(
        x,
        attributes["kernel_shape"],
        attributes.get("strides", [1, 1]),
        padding,
        attributes.get("dilations", [1, 1]),
        bool(attributes.get("ceil_mode", 0)),
    )


def _average_pool(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    x, padding = _spatial_pads(args[0], attributes, 0.0)
    result: Tensor = functional.avg_pool2d(
        x,
        attributes["kernel_shape"],
        attributes.get("strides", [1, 1]),
        padding,
        bool(attributes.get("ceil_mode", 0)),
        bool(attributes.get("count_include_pad", 0)),
    )
    return result


def _gemm(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    a, b, *rest = args
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise ValueError("Gemm with alpha or beta other than 1")
    a = a.t() if attributes.get("transA", 0) else a
    b = b if attributes.get("transB", 0) else b.t()
    return functional.linear(a, b, rest[0] if rest else None)


def _global_average(args: list[Any], _: dict[str, Any]) -> Tensor:
    result: Tensor = args[0].mean(tuple(range(2, args[0].dim())), keepdim=True)
    return result


def _softmax(args: list[Any], attributes: dict[str, Any]) -> Tensor:
    return functional.softmax(args[0], attributes.get("axis", -1))


def _reshape(args: list[Any], _: dict[str, Any]) -> Tensor:
    x, shape = args
    extents = [x.shape[i] if extent == 0 else int(extent) for i, extent in enumerate(shape)]
    result: Tensor = x.reshape(extents)
    return result


OPERATIONS: dict[str, Operation] = {
    "Add": lambda args, _: args[0] + args[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": lambda args, attributes: torch.cat(args, attributes["axis"]),
    "Conv": _conv,
    "Dropout": lambda args, _: args[0],
    "Flatten": lambda args, attributes: args[0].flatten(attributes.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "Identity": lambda args, _: args[0],
    "MatMul": lambda args, _: args[0] @ args[1],
    "MaxPool": _max_pool,
    "Relu": lambda args, _: functional.relu(args[0]),
    "Reshape": _reshape,
    "Softmax": _softmax,
}
_HOST_INPUTS = {"Reshape": (1,), "Clip": (1, 2)}  # read as numbers, not as tensors


def _fold_batch_norms(
    nodes: Sequence[onnx.NodeProto], arrays: dict[str, np.ndarray]
) -> list[onnx.NodeProto]:
    """Put each BatchNormalization that alone reads a convolution into its weights.

    Every engine does this; done here, it does not depend on how torch exports it.
    """
    readers: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    convolutions = {n.output[0]: n for n in nodes if n.op_type == "Conv"}
    kept: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in nodes:
        source = convolutions.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if source is None or readers[node.input[0]] != 1:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [renamed.get(name, name) for name in node.input]
            kept.append(copy)
            continue
        scale, bias, mean, variance = (arrays[name].astype(np.float64) for name in node.input[1:])
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        factor = scale / np.sqrt(variance + epsilon)
        weight = arrays[source.input[1]]
        shaped = factor.reshape(-1, *[1] * (weight.ndim - 1))
        old_bias = arrays[source.input[2]] if len(source.input) > 2 else np.zeros_like(mean)
        names = [f"{source.output[0]}/folded_weight", f"{source.output[0]}/folded_bias"]
        arrays[names[0]] = (weight * shaped).astype(weight.dtype)
        arrays[names[1]] = (bias + (old_bias - mean) * factor).astype(weight.dtype)
        folded = next(n for n in kept if n.output[0] == source.output[0])
        folded.input[:] = [folded.input[0], *names]
        renamed[node.output[0]] = source.output[0]
    return kept


class OnnxModule(torch.nn.Module):
    """A graph of ONNX nodes, run one after another.

    Attributes:
        input_names: the order in which `forward` takes the network's inputs.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        arrays = {t.name: np.array(numpy_helper.to_array(t)) for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                value = onnx.helper.get_attribute_value(node.attribute[0])
                arrays[node.output[0]] = np.array(numpy_helper.to_array(value))
        nodes = _fold_batch_norms([n for n in graph.node if n.op_type != "Constant"], arrays)
        unknown = sorted({node.op_type for node in nodes} - OPERATIONS.keys())
        if unknown:
            raise ValueError(f"ops that the torch engines here do not translate: {unknown}")
        self.input_names = [i.name for i in graph.input if i.name not in arrays]
        self.output_names = [o.name for o in graph.output]
        self.steps = [
            (
                OPERATIONS[node.op_type],
                list(node.input),
                node.output[0],
                {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
                _HOST_INPUTS.get(node.op_type, ()),
            )
            for node in nodes
        ]
        used = {name for step in self.steps for name in step[1]}
        arrays = {name: array for name, array in arrays.items() if name in used}
        self.arrays = arrays
        self.buffer_names: dict[str, str] = {}
        for name, array in arrays.items():
            if array.dtype.kind == "f":
                self.buffer_names[name] = f"weight_{len(self.buffer_names)}"
                self.register_buffer(self.buffer_names[name], torch.from_numpy(array))

    @staticmethod
    def from_file(file: str) -> OnnxModule:
        """Read an ONNX file."""
        return OnnxModule(onnx.load(file).graph)

    def forward(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Compute the outputs, in the order of the file."""
        values: dict[str, Any] = dict(zip(self.input_names, inputs, strict=True))
        for name, buffer_name in self.buffer_names.items():
            values[name] = getattr(self, buffer_name)
        for operation, names, output, attributes, host in self.steps:
            args = [
                None if not name else self.arrays[name] if i in host else values[name]
                for i, name in enumerate(names)
            ]
            values[output] = operation(args, attributes)
        return tuple(values[name] for name in self.output_names)
