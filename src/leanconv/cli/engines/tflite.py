"""TensorFlow Lite's files, written from ONNX files: what the engine LiteRT runs.

A file is made for the shapes of its inputs, of the graph that our reader binds, by passes that
every converter has: constants are folded, batch normalisation and padding move into convolutions,
and an activation that is written as several nodes becomes one.

Maps have their channels last, as TensorFlow Lite has them: the *order* of a value is the order in
which the axes that it has in the graph lie in memory. A Transpose of the graph changes the order
alone, so that the file has one only where an operation needs another order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.onnx_import import read_model
from leanconv.graph.ops.conv import window_steps
from leanconv.graph.ops.resize import coordinates, nearest_cells
from leanconv.graph.passes import Pass, run_passes
from leanconv.graph.passes.canonical_forms import merge_pads
from leanconv.graph.passes.fold_batch_norm import fold_batch_norm
from leanconv.graph.passes.recognise_activations import recognise_activations
from leanconv.graph.passes.simplify import drop_dead, merge_common, simplify
from leanconv.records import dataclass
from leanconv.spec.conv import effective_extent
from leanconv.types import FLOAT32

Order = tuple[int, ...]

_PASSES: tuple[Pass, ...] = (
    drop_dead,
    simplify,
    merge_common,
    recognise_activations,
    simplify,
    merge_pads,
    fold_batch_norm,
    simplify,
    merge_common,
    drop_dead,
)
_MAP: Order = (0, 2, 3, 1)  # of a map of the graph, (N, C, H, W)
_SAME, _VALID = schema.Padding.SAME, schema.Padding.VALID
_IDENTIFIER = b"TFL3"
_VERSION = 3  # of the format
_MOST_OLD_CODE = 127  # of an operator in the field for older readers
_ROOM = 1 << 20  # bytes of a file beside its constants, at first


@dataclass(frozen=True)
class Port:
    """An input or output of a file.

    Attributes:
        name: in the ONNX file.
        order: in which its axes lie.
    """

    name: str
    order: Order

    @property
    def back(self) -> Order:
        """The permutation by which NumPy makes the ONNX file's array of it."""
        return tuple(int(axis) for axis in np.argsort(self.order))


@dataclass(frozen=True)
class TfliteFile:
    """A file, and its inputs and outputs in their order."""

    data: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def convert(model: str | Path, shapes: Mapping[str, tuple[int, ...]]) -> TfliteFile:
    """Write a float32 network for inputs of these shapes.

    Args:
        model: the ONNX file.
        shapes: of all inputs, by name.

    Raises:
        LeanConvError: the file cannot be read or bound.
        UnsupportedError: it has an operation that is not written; the message names it.
    """
    graph = run_passes(read_model(Path(model)).bind(shapes), _PASSES)
    unknown = sorted({node.op for node in graph.nodes} - _RULES.keys())
    if unknown:
        raise UnsupportedError(
            f"the network has {', '.join(unknown)}; expected operations that are written for "
            "LiteRT; measure it by other engines"
        )
    for name in (*graph.inputs, *(name for node in graph.nodes for name in node.outputs)):
        kind = graph.types[name]
        if kind.dtype != FLOAT32 or not kind.elements:
            raise UnsupportedError(
                f"value {name!r} is {kind}; expected float32 and elements in each value that is "
                "written for LiteRT; measure the network by other engines"
            )
    writer = _Writer(graph)
    for node in graph.nodes:
        _RULES[node.op](writer, node)
    return writer.file()


@dataclass(frozen=True)
class _Place:
    """Where a value is: a tensor of the file, and the order of its axes in it."""

    tensor: int
    order: Order


class _Writer:
    """A file that is being written.

    Attributes:
        graph: what is written.
        tensors: so far, with their shapes as they lie.
        places: of the values that inputs and operators give.
        makers: by tensor, the operator that may take in the activation or the bias behind it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: list[Any] = []
        self.places: dict[str, _Place] = {}
        self.makers: dict[int, Any] = {}
        self._operators: list[Any] = []
        self._buffers: list[Any] = [schema.BufferT()]
        self._codes: dict[int, int] = {}
        self._arranged: dict[tuple[str, Order], int] = {}
        read = (name for node in graph.nodes for name in node.inputs)
        self._readers = Counter((*read, *graph.outputs))
        users = graph.users()
        for name in graph.inputs:
            rank = len(graph.types[name].shape)
            is_map = rank == 4 and all(node.op != "Transpose" for node in users[name])
            self.result(name, _MAP if is_map else _plain(rank))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value in the graph."""
        return self.graph.types[name].shape

    def constant(self, array: Any) -> int:
        """A tensor of float32 that the file holds."""
        return self._held(np.asarray(array, np.float32))

    def integers(self, values: Sequence[Any]) -> int:
        """A constant of int32, in which the format has shapes and axes."""
        return self._held(np.array(values, np.int32))

    def value(self, shape: Sequence[int]) -> int:
        """A tensor that an operator gives."""
        return self._tensor(shape, np.dtype(np.float32), 0)

    def result(self, name: str, order: Order) -> int:
        """The tensor of a value, in an order."""
        tensor = self.value([self.shape(name)[axis] for axis in order])
        self.places[name] = _Place(tensor, order)
        return tensor

    def alias(self, name: str, source: str, order: Order) -> None:
        """Let a value be the same tensor as another one."""
        tensor = self.places[source].tensor
        if self._readers[source] > 1:
            self.makers.pop(tensor, None)
        self.places[name] = _Place(tensor, order)

    def add(
        self, builtin: str, operands: Sequence[int], results: Sequence[int], options: Any = None
    ) -> Any:
        """Add an operator of TensorFlow Lite by its name."""
        code = getattr(schema.BuiltinOperator, builtin)
        operator = schema.OperatorT(self._codes.setdefault(code, len(self._codes)))
        operator.inputs, operator.outputs = list(operands), list(results)
        if options is not None:
            kind = type(options).__name__.removesuffix("T")
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
            operator.builtinOptions = options
        self._operators.append(operator)
        return operator

    def step(self, builtin: str, operands: Sequence[int], options: Any = None) -> int:
        """Add an operator whose result is as large as its first operand."""
        made = self.value(self.tensors[operands[0]].shape)
        self.add(builtin, operands, [made], options)
        return made

    def made(
        self, node: Node, builtin: str, operands: Sequence[int], order: Order, options: Any = None
    ) -> None:
        """Add the operator that gives a node's result, in an order."""
        tensor = self.result(node.output, order)
        self.makers[tensor] = self.add(builtin, operands, [tensor], options)

    def maker(self, name: str) -> Any:
        """The operator that may take in what follows a value; None where others read it, too."""
        return self.makers.get(self.places[name].tensor) if self._readers[name] == 1 else None

    def constant_of(self, node: Node, index: int, what: str) -> np.ndarray:
        """An operand that must be a constant."""
        array = self.graph.constants.get(node.input(index))
        if array is None:
            raise _refused(node, f"{what} that are computed", "constants")
        return np.asarray(array)

    def bias_of(self, node: Node, outputs: int) -> np.ndarray:
        """The bias of a layer; XNNPACK takes no convolution without one."""
        if not node.input(2):
            return np.zeros(outputs, np.float32)
        return self.constant_of(node, 2, "biases")

    def arranged(self, name: str, order: Order) -> int:
        """The tensor of a value, or of a constant, with its axes in an order.

        The value may have fewer axes: the first ones are 1 then.
        """
        shape = self.shape(name)
        more = len(order) - len(shape)
        shape = (1,) * more + shape
        if name in self.graph.constants:
            return self.constant(self.graph.constants[name].reshape(shape).transpose(order))
        place = self.places[name]
        lies = (*range(more), *(axis + more for axis in place.order))
        if (name, order) not in self._arranged:
            tensor = self.reshaped(place.tensor, [shape[axis] for axis in lies])
            stored = [shape[axis] for axis in order]
            if _long(lies, shape) == _long(order, shape):
                tensor = self.reshaped(tensor, stored)
            else:
                moves = self.integers([lies.index(axis) for axis in order])
                source, tensor = tensor, self.value(stored)
                self.add("TRANSPOSE", [source, moves], [tensor], schema.TransposeOptionsT())
            self._arranged[name, order] = tensor
        return self._arranged[name, order]

    def reshaped(self, tensor: int, shape: list[int]) -> int:
        """A tensor with another shape: the same one if it has that."""
        if self.tensors[tensor].shape == shape:
            return tensor
        made = self.value(shape)
        self.reshape(tensor, made)
        return made

    def reshape(self, tensor: int, made: int) -> None:
        """Add the operator that gives a tensor another shape."""
        shape = self.tensors[made].shape
        operands = [tensor, self.integers(shape)]
        self.add("RESHAPE", operands, [made], schema.ReshapeOptionsT(shape))

    def file(self) -> TfliteFile:
        """The file, when all nodes are written."""
        for name in self.graph.outputs:
            if name not in self.places:
                raise UnsupportedError(
                    f"output {name!r} is a constant; expected outputs that are computed; measure "
                    "the network by other engines"
                )
        subgraph, model = schema.SubGraphT(), schema.ModelT()
        subgraph.tensors, subgraph.operators = self.tensors, self._operators
        subgraph.inputs = [self.places[name].tensor for name in self.graph.inputs]
        subgraph.outputs = [self.places[name].tensor for name in self.graph.outputs]
        model.version, model.subgraphs, model.buffers = _VERSION, [subgraph], self._buffers
        model.operatorCodes = [
            schema.OperatorCodeT(min(code, _MOST_OLD_CODE), builtinCode=code)
            for code in self._codes
        ]
        held = sum(buffer.data.nbytes for buffer in self._buffers[1:])
        builder = flatbuffers.Builder(held + _ROOM)
        builder.Finish(model.Pack(builder), _IDENTIFIER)
        inputs, outputs = (
            tuple(Port(name, self.places[name].order) for name in names)
            for names in (self.graph.inputs, self.graph.outputs)
        )
        return TfliteFile(bytes(builder.Output()), inputs, outputs)

    def _held(self, array: np.ndarray) -> int:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._buffers.append(schema.BufferT(data))
        return self._tensor(array.shape, array.dtype, len(self._buffers) - 1)

    def _tensor(self, shape: Sequence[int], dtype: np.dtype[Any], buffer: int) -> int:
        kind = getattr(schema.TensorType, dtype.name.upper())
        number = len(self.tensors)
        self.tensors.append(schema.TensorT([*map(int, shape)], kind, buffer, f"t{number}"))
        return number


def _plain(rank: int) -> Order:
    return tuple(range(rank))


def _long(order: Sequence[int], shape: Sequence[int]) -> Order:
    """Those of some axes that have more than one element."""
    return tuple(axis for axis in order if shape[axis] != 1)


def _refused(node: Node, got: str, expected: str) -> UnsupportedError:
    return UnsupportedError(
        f"node {node.name or node.key!r} ({node.op}) has {got}; expected {expected} of what is "
        "written for LiteRT; measure the network by other engines"
    )


_Rule = Callable[[_Writer, Node], None]
_RULES: dict[str, _Rule] = {}


def _writes(*operations: str) -> Callable[[_Rule], _Rule]:
    """Say which operations of a graph a function writes."""

    def known(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operations, rule))
        return rule

    return known


# -- windows -------------------------------------------------------------------------------------
@_writes("Conv")
def _conv(writer: _Writer, node: Node) -> None:
    weights, x = writer.constant_of(node, 1, "weights"), _map(writer, node)
    operands = [writer.constant(writer.bias_of(node, len(weights)))]
    channels, groups = writer.shape(node.inputs[0])[1], node.attributes["group"]
    window = _Window(writer, node, x, weights.shape[2:])
    if groups > 1 and groups == channels:
        builtin, weights = "DEPTHWISE_CONV_2D", weights.transpose(1, 2, 3, 0)
        options = schema.DepthwiseConv2DOptionsT(depthMultiplier=weights.shape[3] // channels)
    else:
        builtin, weights = "CONV_2D", weights.transpose(0, 2, 3, 1)
        options = schema.Conv2DOptionsT()
    x, options.padding = window.padded()
    options.strideH, options.strideW = node.attributes["strides"]
    options.dilationHFactor, options.dilationWFactor = node.attributes["dilations"]
    writer.made(node, builtin, [x, writer.constant(weights), *operands], _MAP, options)


@_writes("ConvTranspose")
def _transposed(writer: _Writer, node: Node) -> None:
    weights, x = writer.constant_of(node, 1, "weights"), _map(writer, node)
    shape, given = writer.shape(node.output), node.attributes
    if given["group"] != 1 or any(step != 1 for step in given["dilations"]):
        raise _refused(node, "groups or dilations", "one group and dilation 1")
    valid = same = True
    for extent, count, taps, (stride, _, before, _) in zip(
        writer.shape(node.inputs[0])[2:],
        shape[2:],
        weights.shape[2:],
        window_steps(given),
        strict=True,
    ):
        valid = valid and before == 0 and count == (extent - 1) * stride + taps
        same = same and before == max(taps - stride, 0) // 2 and count == extent * stride
    if not (valid or same):
        raise _refused(node, "other padding", "none, or as many outputs as inputs times the stride")
    options = schema.TransposeConvOptionsT(_VALID if valid else _SAME)
    options.strideH, options.strideW = given["strides"]
    operands = [
        writer.integers([shape[axis] for axis in _MAP]),
        writer.constant(weights.transpose(1, 2, 3, 0)),
        x,
        writer.constant(writer.bias_of(node, shape[1])),
    ]
    writer.made(node, "TRANSPOSE_CONV", operands, _MAP, options)


@_writes("MaxPool", "AveragePool")
def _pool(writer: _Writer, node: Node) -> None:
    given, x = node.attributes, _map(writer, node)
    if any(step != 1 for step in given["dilations"]):
        raise _refused(node, "dilations", "dilation 1")
    window = _Window(writer, node, x, given["kernel_shape"])
    if node.op == "MaxPool":
        # XNNPACK pads with 0 alone, which is as good behind a Relu.
        before = writer.graph.producer().get(node.inputs[0])
        least = 0.0 if before is not None and before.op == "Relu" else -math.inf
        builtin, (x, padding) = "MAX_POOL_2D", window.padded(least)
    else:
        builtin, (x, padding) = "AVERAGE_POOL_2D", window.averaged(given["count_include_pad"])
    options = schema.Pool2DOptionsT(padding)
    options.strideH, options.strideW = given["strides"]
    options.filterHeight, options.filterWidth = given["kernel_shape"]
    writer.made(node, builtin, [x], _MAP, options)


class _Window:
    """The windows of a convolution or pool over a map.

    TensorFlow Lite pads as VALID, by nothing, or as SAME: so that there are as many windows as
    strides, the odd cell behind the map. All else is an operator of its own. Of padding that no
    window reads nothing is left.
    """

    def __init__(self, writer: _Writer, node: Node, x: int, kernel: Sequence[int]) -> None:
        self._writer, self._node, self._x = writer, node, x
        self._widths: list[tuple[int, int]] = []
        self._same, self._beyond = True, False
        for extent, count, taps, (stride, dilation, before, after) in zip(
            writer.tensors[x].shape[1:3],
            writer.shape(node.output)[2:],
            kernel,
            window_steps(node.attributes),
            strict=True,
        ):
            read = (count - 1) * stride + effective_extent(taps, dilation)
            lacking, behind = max(read - extent, 0), max(read - extent - before, 0)
            self._widths.append((before, behind))
            as_same = count == -(-extent // stride) and before == lacking // 2
            self._same = self._same and as_same and before + behind == lacking
            self._beyond = self._beyond or behind > after

    def padded(self, value: float = 0.0) -> tuple[int, int]:
        """The map, padded with a value where that takes an operator, and the padding to state."""
        if not any(map(any, self._widths)):
            return self._x, _VALID
        return (self._x, _SAME) if self._same else (self._with_pad(value), _VALID)

    def averaged(self, counts_padding: bool) -> tuple[int, int]:
        """The same for means, of padding too or of the map alone."""
        if (self._same and not counts_padding) or not any(map(any, self._widths)):
            return self.padded()
        if counts_padding and not self._beyond:
            return self._with_pad(0.0), _VALID
        raise _refused(self._node, "windows partly outside", "padding that counts, or SAME")

    def _with_pad(self, value: float) -> int:
        writer, widths = self._writer, [(0, 0), *self._widths, (0, 0)]
        extents = zip(writer.tensors[self._x].shape, widths, strict=True)
        made = writer.value([extent + sum(around) for extent, around in extents])
        operands = [self._x, writer.integers(widths)]
        operands += [writer.constant([value])] if value else []
        writer.add("PADV2" if value else "PAD", operands, [made])
        return made


def _map(writer: _Writer, node: Node) -> int:
    """The map that a node reads, (N, H, W, C)."""
    axes = len(writer.shape(node.inputs[0])) - 2
    if axes != 2:
        raise _refused(node, f"{axes} spatial axes", "two")
    return writer.arranged(node.inputs[0], _MAP)


@_writes("Resize")
def _resize(writer: _Writer, node: Node) -> None:
    given, extents = node.attributes, writer.shape(node.inputs[0])
    x, sizes = _map(writer, node), given["sizes"]
    for aligned, centred in ((False, False), (True, False), (False, True)):
        axes = zip(extents, sizes, given["scales"], strict=True)
        if extents[:2] == sizes[:2] and all(_reads_so(*a, given, aligned, centred) for a in axes):
            break
    else:
        raise _refused(node, "places that TensorFlow Lite does not read", "one of its three ways")
    linear = given["mode"] == "linear"
    builtin = "RESIZE_BILINEAR" if linear else "RESIZE_NEAREST_NEIGHBOR"
    kind = schema.ResizeBilinearOptionsT if linear else schema.ResizeNearestNeighborOptionsT
    writer.made(node, builtin, [x, writer.integers(sizes[2:])], _MAP, kind(aligned, centred))


def _reads_so(
    extent: int, size: int, scale: float, given: Mapping[str, Any], aligned: bool, centred: bool
) -> bool:
    """Return whether TensorFlow Lite, in one of its ways, reads the places of an axis."""
    place = np.arange(size) * (extent / size)
    if aligned:
        place = np.arange(size) * ((extent - 1) / max(size - 1, 1))
    if centred:
        place = (np.arange(size) + 0.5) * (extent / size) - 0.5
    mode = given["coordinate_transformation_mode"]
    if given["mode"] == "linear":
        ours = coordinates(extent, size, scale, mode, np.float64)
        return np.allclose(np.clip(place, 0, extent - 1), np.clip(ours, 0, extent - 1))
    cells = np.floor(place + 0.5 if aligned or centred else place)
    ours = nearest_cells(extent, size, scale, mode, given["nearest_mode"])
    return np.array_equal(np.minimum(cells, extent - 1), ours)


# -- products ------------------------------------------------------------------------------------
@_writes("Gemm")
def _gemm(writer: _Writer, node: Node) -> None:
    given = node.attributes
    weights = writer.constant_of(node, 1, "weights") * np.float32(given["alpha"])
    weights = weights if given["transB"] else weights.T
    bias = writer.bias_of(node, len(weights)) * np.float32(given["beta"])
    if bias.size not in (1, len(weights)) or bias.shape[-1:] not in ((1,), (len(weights),)):
        raise _refused(node, "biases that vary along rows", "one for each column")
    bias = np.broadcast_to(bias.reshape(-1), len(weights))
    x = writer.arranged(node.inputs[0], (1, 0) if given["transA"] else (0, 1))
    operands = [x, writer.constant(weights), writer.constant(bias)]
    writer.made(node, "FULLY_CONNECTED", operands, (0, 1), schema.FullyConnectedOptionsT())


@_writes("MatMul")
def _matmul(writer: _Writer, node: Node) -> None:
    a, b = node.inputs
    weights, rank = writer.graph.constants.get(b), len(writer.shape(a))
    plain = _plain(rank)
    if weights is not None and weights.ndim == 2 and rank > 1:
        order = writer.places[a].order
        order = order if order[-1] == rank - 1 else plain
        operands = [writer.arranged(a, order), writer.constant(weights.T)]
        options = schema.FullyConnectedOptionsT(keepNumDims=True)
        writer.made(node, "FULLY_CONNECTED", operands, order, options)
        return
    if rank != len(writer.shape(b)) or rank < 3:
        raise _refused(node, "operands of other ranks", "equal ones from 3 on, or weights (K, M)")
    turned = (*plain[:-2], rank - 1, rank - 2)
    is_turned = b in writer.places and writer.places[b].order == turned
    operands = [writer.arranged(a, plain), writer.arranged(b, turned if is_turned else plain)]
    writer.made(node, "BATCH_MATMUL", operands, plain, schema.BatchMatMulOptionsT(adjY=is_turned))


# -- each element --------------------------------------------------------------------------------
@_writes("Add", "Sub", "Mul", "Div")
def _arithmetic(writer: _Writer, node: Node) -> None:
    if node.op == "Add" and (_takes_bias(writer, node, 0) or _takes_bias(writer, node, 1)):
        return
    shape = writer.shape(node.output)
    placed = [name for name in node.inputs if name in writer.places]
    whole = [name for name in placed if writer.shape(name) == shape] or [
        name for name in placed if len(writer.shape(name)) == len(shape)
    ]
    order = writer.places[whole[0]].order if whole else _plain(len(shape))
    operands = [writer.arranged(name, order) for name in node.inputs]
    writer.made(node, node.op.upper(), operands, order, getattr(schema, f"{node.op}OptionsT")())


def _takes_bias(writer: _Writer, node: Node, index: int) -> bool:
    """Let a product with weights take in a constant that is added; False where it cannot."""
    bias, product = writer.graph.constants.get(node.inputs[1 - index]), node.inputs[index]
    maker, shape = None if bias is None else writer.maker(product), writer.shape(node.output)
    if bias is None or maker is None or writer.shape(product) != shape:
        return False
    if not isinstance(maker.builtinOptions, schema.FullyConnectedOptionsT) or maker.inputs[2:]:
        return False
    order = writer.places[product].order
    if bias.shape[-1:] != (bias.size,) or bias.size != shape[-1] or order[-1] != len(shape) - 1:
        return False
    maker.inputs.append(writer.constant(bias.reshape(-1)))
    writer.alias(node.output, product, order)
    return True


@_writes("Pow")
def _square(writer: _Writer, node: Node) -> None:
    exponent, place = writer.graph.constants.get(node.inputs[1]), _place(writer, node)
    if exponent is None or exponent.size != 1 or exponent.reshape(()) != 2:
        raise _refused(node, "an exponent other than 2", "squares")
    operands = [place.tensor, place.tensor]
    writer.made(node, "MUL", operands, place.order, schema.MulOptionsT())


@_writes("BatchNormalization")
def _normalised(writer: _Writer, node: Node) -> None:
    scale, bias, mean, variance = (
        writer.constant_of(node, index, "statistics").astype(np.float64) for index in range(1, 5)
    )
    factor, place = scale / np.sqrt(variance + node.attributes["epsilon"]), _place(writer, node)
    along = [len(factor) if axis == 1 else 1 for axis in place.order]
    numbers = (factor, bias - mean * factor)
    factors, summands = (writer.constant(each.reshape(along)) for each in numbers)
    scaled = writer.step("MUL", [place.tensor, factors], schema.MulOptionsT())
    writer.made(node, "ADD", [scaled, summands], place.order, schema.AddOptionsT())


def _place(writer: _Writer, node: Node) -> _Place:
    """Where the first operand is."""
    return writer.places[node.inputs[0]]


def _each(builtin: str) -> _Rule:
    """The rule of an operation that TensorFlow Lite has for each element."""

    def rule(writer: _Writer, node: Node) -> None:
        place = _place(writer, node)
        writer.made(node, builtin, [place.tensor], place.order)

    return rule


_writes("HardSwish")(_each("HARD_SWISH"))
_writes("Sigmoid")(_each("LOGISTIC"))
_writes("Sqrt")(_each("SQRT"))
_writes("Tanh")(_each("TANH"))


@_writes("Relu", "Clip")
def _bounded(writer: _Writer, node: Node) -> None:
    low, high = node.attributes.get("min", 0.0), node.attributes.get("max", math.inf)
    known = {(0, math.inf): "RELU", (0, 6): "RELU6", (-1, 1): "RELU_N1_TO_1"}
    builtin, place = known.get((low, high)), _place(writer, node)
    options: Any = getattr(writer.maker(node.inputs[0]), "builtinOptions", None)
    if builtin and getattr(options, "fusedActivationFunction", None) == 0:
        options.fusedActivationFunction = getattr(schema.ActivationFunctionType, builtin)
        writer.alias(node.output, node.inputs[0], place.order)
        del writer.makers[place.tensor]
    elif builtin:
        writer.made(node, builtin, [place.tensor], place.order)
    else:
        above = writer.step("MAXIMUM", [place.tensor, writer.constant(low)])
        writer.made(node, "MINIMUM", [above, writer.constant(high)], place.order)


@_writes("HardSigmoid")
def _hard_sigmoid(writer: _Writer, node: Node) -> None:
    """Write relu6(6 alpha x + 6 beta) / 6: XNNPACK has no bounds of 0 and 1."""
    place, given = _place(writer, node), node.attributes
    alpha, beta, sixth = map(writer.constant, (6 * given["alpha"], 6 * given["beta"], 1 / 6))
    scaled = writer.step("MUL", [place.tensor, alpha], schema.MulOptionsT())
    relu6 = schema.AddOptionsT(schema.ActivationFunctionType.RELU6)
    moved = writer.step("ADD", [scaled, beta], relu6)
    writer.made(node, "MUL", [moved, sixth], place.order, schema.MulOptionsT())


@_writes("Silu")
def _silu(writer: _Writer, node: Node) -> None:
    place = _place(writer, node)
    operands = [place.tensor, writer.step("LOGISTIC", [place.tensor])]
    writer.made(node, "MUL", operands, place.order, schema.MulOptionsT())


@_writes("Gelu")
def _gelu(writer: _Writer, node: Node) -> None:
    place, options = _place(writer, node), schema.GeluOptionsT()
    options.approximate = node.attributes["approximate"] == "tanh"
    writer.made(node, "GELU", [place.tensor], place.order, options)


@_writes("PRelu")
def _prelu(writer: _Writer, node: Node) -> None:
    place, slopes = _place(writer, node), writer.constant_of(node, 1, "slopes")
    shape = (1,) * (len(place.order) - slopes.ndim) + slopes.shape
    slopes = slopes.reshape(shape).transpose(place.order)
    if len(slopes) > 1:
        raise _refused(node, "slopes that vary along the first axis", "the same for all images")
    writer.made(node, "PRELU", [place.tensor, writer.constant(slopes[0])], place.order)


# -- axes ----------------------------------------------------------------------------------------
@_writes("Transpose")
def _transpose(writer: _Writer, node: Node) -> None:
    perm = node.attributes["perm"]
    order = tuple(perm.index(axis) for axis in _place(writer, node).order)
    writer.alias(node.output, node.inputs[0], order)


@_writes("Reshape")
def _reshape(writer: _Writer, node: Node) -> None:
    source, shape, place = node.inputs[0], writer.shape(node.output), _place(writer, node)
    tensor, order = place.tensor, _order_behind(writer.shape(source), place.order, shape)
    if order is None:
        tensor = writer.arranged(source, _plain(len(place.order)))
        order = _plain(len(shape))
    if writer.tensors[tensor].shape == [shape[axis] for axis in order]:
        writer.alias(node.output, source, order)
    else:
        writer.reshape(tensor, writer.result(node.output, order))


def _order_behind(shape: Sequence[int], order: Order, new: Sequence[int]) -> Order | None:
    """The order that a value has when it is reshaped as it lies; None where it must move.

    Axes fall into groups, of which each becomes others of the same product, and whose axes must
    lie together.
    """
    before, after = _long(_plain(len(shape)), shape), _long(_plain(len(new)), new)
    ends = list(accumulate((shape[axis] for axis in before), mul))
    stops = list(accumulate((new[axis] for axis in after), mul))
    becomes: dict[int, tuple[Order, Order]] = {}
    i = j = 0
    for product in ends:
        if product in stops:
            k, m = ends.index(product) + 1, stops.index(product) + 1
            becomes[before[i]] = before[i:k], after[j:m]
            i, j = k, m
    lies, found = _long(order, shape), [axis for axis, extent in enumerate(new) if extent == 1]
    while lies:
        group, others = becomes.get(lies[0], ((), ()))
        if not group or lies[: len(group)] != group:
            return None
        lies, found = lies[len(group) :], [*found, *others]
    return tuple(found)


@_writes("Concat")
def _concat(writer: _Writer, node: Node) -> None:
    order = next(writer.places[name].order for name in node.inputs if name in writer.places)
    options = schema.ConcatenationOptionsT(axis=order.index(node.attributes["axis"]))
    operands = [writer.arranged(name, order) for name in node.inputs]
    writer.add("CONCATENATION", operands, [writer.result(node.output, order)], options)


@_writes("Softmax")
def _softmax(writer: _Writer, node: Node) -> None:
    axis = node.attributes["axis"]
    order = (*(each for each in _place(writer, node).order if each != axis), axis)
    x = writer.arranged(node.inputs[0], order)
    writer.made(node, "SOFTMAX", [x], order, schema.SoftmaxOptionsT(1.0))


@_writes("ReduceMean")
def _mean(writer: _Writer, node: Node) -> None:
    place, axes, keeps = _place(writer, node), node.attributes["axes"], node.attributes["keepdims"]
    kept = [axis for axis in place.order if keeps or axis not in axes]
    order = tuple(sorted(kept).index(axis) for axis in kept)
    operands = [place.tensor, writer.integers(sorted(place.order.index(axis) for axis in axes))]
    writer.made(node, "MEAN", operands, order, schema.ReducerOptionsT(bool(keeps)))


@_writes("Slice")
def _slice(writer: _Writer, node: Node) -> None:
    place, given = _place(writer, node), node.attributes
    starts, steps, sizes = (
        [given[name][axis] for axis in place.order] for name in ("starts", "steps", "sizes")
    )
    if any(step < 1 for step in steps):
        raise _refused(node, "steps backwards", "steps of at least 1")
    ends = [a + (n - 1) * s + 1 for a, n, s in zip(starts, sizes, steps, strict=True)]
    operands = [place.tensor, *map(writer.integers, (starts, ends, steps))]
    writer.made(node, "STRIDED_SLICE", operands, place.order, schema.StridedSliceOptionsT())


@_writes("Split")
def _split(writer: _Writer, node: Node) -> None:
    place, start = _place(writer, node), 0
    axis, shape = place.order.index(node.attributes["axis"]), writer.tensors[place.tensor].shape
    for name, size in zip(node.outputs, node.attributes["sizes"], strict=True):
        begin, cut = [0] * len(shape), list(shape)
        begin[axis], cut[axis] = start, size
        operands = [place.tensor, writer.integers(begin), writer.integers(cut)]
        writer.add("SLICE", operands, [writer.result(name, place.order)])
        start += size
