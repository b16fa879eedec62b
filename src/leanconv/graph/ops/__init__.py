"""The operations of a graph in normal form: one table, `OPS`.

The inputs of every operation, its attributes (all of them required, tuples for lists) and its
meaning; each has one output where none are named:

| op | inputs | attributes |
|---|---|---|
| Conv | x (N, C, spatial), w (O, C/group, kernel), bias (O,)?, residual?, slope (O,)? | strides, \
pads (all begins, all ends), dilations, group, activation |
| ConvChain | x, residual?, then the constants of each stage | stages: a Stage for each |
| BlockChain | x, absent, then the same of each stage of each block | blocks: ChainBlocks |
| ConvTranspose | x, w (C, O/group, kernel), bias?, absent, slope? | as Conv, output_padding |
| MaxPool, AveragePool | x | kernel_shape, strides, pads, dilations, ceil_mode, count_include_pad |
| MaxPoolWithIndices | x; the values, and their places in x as int64 | as MaxPool, storage_order |
| ReduceMean, ReduceMax, ReduceMin, ReduceSum, ReduceProd | x | axes (not negative), keepdims |
| ReduceL1, ReduceSumSquare, ReduceMeanSquare | x; of |x|, of x² | axes (not negative), keepdims |
| Extremes | x; gives (2,): the least and the largest of all elements, NaN beside NaN | |
| CumSum, CumProd | x | axis (not negative), exclusive, reverse |
| Relu, Sigmoid, HardSwish, Silu, Tanh, Sqrt, Exp, Log, Erf, Neg, Abs, Reciprocal, Softplus | x | |
| Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Asinh, Acosh, Atanh | x | |
| LeakyRelu, Elu | x | alpha |
| HardSigmoid | x | alpha, beta |
| Gelu | x | approximate ("none" or "tanh") |
| Clip | x | min, max (floats, infinite where open) |
| PRelu | x, slope (broadcasts to x) | |
| Sign, Floor, Ceil, Round | x | |
| Add, Sub, Mul, Div, Pow, Min, Max | a, b (broadcast) | |
| Mod | a, b (broadcast) | fmod (whether it has the sign of a, not of b) |
| BitwiseAnd, BitwiseOr, BitwiseXor | a, b (integers, broadcast) | |
| BitwiseNot | x (integers) | |
| BitShift | a, b (integers, broadcast) | left (the direction) |
| Expression | what its terms take (floats of one type and bool, broadcast) | terms (a Term for \
each elementwise operation, all of whose results have one shape; the last one's is given) |
| Cast | x | to |
| BitCast | x | to (of as many bits) |
| Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And, Or, Xor | a, b (broadcast); gives bool | |
| Not, IsNaN | x; gives bool | |
| IsInf | x; gives bool | positive, negative (which infinities count) |
| Where | condition (bool), a, b (broadcast) | |
| ArgMax, ArgMin | x; gives int64 | axis (not negative), keepdims, last (of equal numbers) |
| TopK | x; the values, and their places as int64 | axis (not negative), k, largest, sorted |
| NonMaxSuppression | boxes (N, B, 4), scores (N, C, B), the most of each class (1,) as int64, iou \
threshold (1,), score threshold (1,)?, how many boxes are there (1,)?; gives image, class and box \
of each that is kept as int64, with room for all, and how many there are (1,); -1 for a threshold \
that is none | most (that room is for), centred |
| NonZero | x, how much of it is there (1,)?; the places of what is not 0 as int64 (axes of x, at \
least 1, x's elements), and how many there are (1,) | rows (whether each has a row, not a column) |
| Compress | x, flags (bool), how many of these are there (1,)?; the slices whose flag is set, in \
x's extents, and how many there are (1,) | axis (not negative) |
| Softmax, LogSoftmax | x | axis (not negative) |
| Normalise | x, scale?, bias? (constants; one number, or one for each place of all axes from \
first on, or one for each channel where these begin at 2): (x - mean) / sqrt(variance + epsilon) · \
scale + bias, of all axes from first on | first, epsilon, centred (whether the mean is taken away) |
| BatchNormalization | x, scale, bias, mean, variance, each (C,) | epsilon |
| Gemm | a, b, c? | transA, transB, alpha, beta |
| MatMul | a, b (NumPy's rules) | |
| MatMulNBits | x (..., K), codes (N rows of bytes), scales (N, blocks), zero points (N, blocks)?, \
bias (N,)?; constants but for x | bits (of a code), block (codes of a scale), inner (K), outputs \
(N), middle (the zero point where there are none) |
| Attention | q (batch..., M, D), k (batch..., D, N), v (batch..., N, W), mask? (broadcasts to \
(batch..., M, N)) | scale, transposed (whether k is (batch..., N, D)) |
| Reshape, Expand | x | shape |
| Transpose | x | perm |
| Concat | x... | axis |
| Slice | x | starts, steps, sizes: one of each for every axis; starts are within the axis |
| Split | x; an output for each part | axis, sizes (of all parts) |
| Pad | x | pads (not negative), mode (constant, reflect, edge), value |
| Resize | x | mode (nearest, linear), sizes, scales, coordinate_transformation_mode, nearest_mode |
| Resample | x | axes (one, or one and the next), sizes, scales, rois (begin and end) of each, \
mode (linear, cubic), coordinate_transformation_mode, cubic_coeff_a, exclude_outside, antialias |
| DeformColumns | x (N, C, H, W), offsets (N * groups * taps * 2, places), mask (N * groups * \
taps, places)?; gives (N, C * taps, height, width) | kernel_shape, strides, pads, dilations, \
offset_group, run (channels that stay beside each other) |
| RoiAlign | x (N, C, H, W), regions (R, 4), their images (R,) as int64; gives (R, C, sizes) | \
mode (avg, max), half_pixel, sampling_ratio, spatial_scale, sizes |
| GridSample | x (N, C, spatial), places (N * number, axes) from -1 to 1, the last axis first | \
mode (nearest, linear, cubic), padding_mode (zeros, border, reflection), align_corners, sizes |
| Gather | x, indices, how many of these are there (1,)? | axis (not negative) |
| GatherElements | x, indices, of x's extents on all other axes | axis (not negative) |
| GatherND | x, indices, how many lists of them are there (1,)? | batch_dims |
| ScatterElements | x, indices and updates, of at most x's extents on all other axes | axis (not \
negative), reduction (none, add, mul, min, max), padded (by indices that find nothing) |
| ScatterND | x, indices, updates | reduction |
| Recurrence | x (T, N, directions * gates * H): the input's product; r (directions, gates * H, \
H); h0, c0 (directions, N, H)?; peepholes (directions, 3 * H)?; bias (directions, H)?; lengths \
(N,)? of int32; gives those of Y, Y_h, Y_c that it names | cells (a Cell for each direction), \
results (their names) |
| LRN | x | size, alpha, beta, bias |
| QuantizeLinear | x (floats), scale, zero: one, or one along the axis (constants) | axis; low, \
high (codes that clamp it) where it is narrower than the type |
| QuantizeFloats | x (floats), scale, zero: floats that broadcast to x, zero whole | low, high \
(codes that clamp it), dtype |
| DequantizeLinear | x (codes), scale, zero: one, or one along the axis (constants) | axis, dtype |
| Lookup | x (bytes), table (256,) (a constant); gives elements of the table | |
| QLinearConv | x (codes), w (int8; uint8 where x is), bias (O,)? (int32), scale (O,)? (float32), \
residual (codes)? | strides, pads, dilations, group, x_zero, y_zero, low, high, dtype (codes, \
float32, or int32: the sums), residual (ResidualCodes) |
| QLinearAdd, QLinearMul | a, b (codes, broadcast) | scales, zeros (of a, b and the result), \
low, high (codes that clamp it), dtype |
| QLinearMatMul | a, b (codes, matrices by NumPy's rules) | as QLinearAdd |
| QLinearGlobalAveragePool | x (codes) | scales, zeros (of x and the result), low, high, dtype |
| QLinearAveragePool | x (codes) | as AveragePool and QLinearGlobalAveragePool |
| Loop | what is carried from one iteration to the next, then what each reads | body (a Region: \
what it carries on, then one slice of each result that is stacked), count, states (how many \
inputs are carried); outputs: what is carried at the end, then (count, ...) of each stack |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.ir import Attributes, Node, TensorType
from leanconv.graph.ops import (
    algebra,
    chain,
    conv,
    indexing,
    movement,
    packed_matmul,
    pointwise,
    pooling,
    quantised,
    quantised_conv,
    recurrent,
    resample,
    resize,
    sampling,
    selection,
    typed,
)
from leanconv.graph.ops.base import Array, Arrays, Op, Types, is_described
from leanconv.graph.ops.pointwise import BINARY, UNARY, activate, expression
from leanconv.graph.ops.recurrent import loop
from leanconv.types import FLOATS, HALVES, DType

__all__ = [
    "BINARY",
    "OPS",
    "UNARY",
    "Op",
    "activate",
    "check_dtypes",
    "evaluate",
    "evaluate_node",
    "infer",
    "infer_node",
    "label",
    "not_taken",
    "table_bytes",
    "working_bytes",
]

_PLACE_BYTES = 8
OPS: Mapping[str, Op] = MappingProxyType(
    {
        **conv.OPS,
        **chain.OPS,
        **pooling.OPS,
        **pointwise.OPS,
        **algebra.OPS,
        **packed_matmul.OPS,
        **movement.OPS,
        **resize.OPS,
        **resample.OPS,
        **sampling.OPS,
        **typed.OPS,
        **selection.OPS,
        **indexing.OPS,
        **recurrent.OPS,
        **quantised.OPS,
        **quantised_conv.OPS,
        "Expression": expression(
            lambda op, types, attributes: infer(op, types, attributes),
            lambda op, arrays, attributes: evaluate(op, arrays, attributes),
        ),
        "Loop": loop(
            lambda node, values: evaluate_node(node, values), lambda node, types: _work(node, types)
        ),
    }
)


def infer(op: str, types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the types of an operation's outputs.

    Args:
        op: a key of `OPS`.
        types: the inputs' types, None for an absent one.
        attributes: in normal form.

    Raises:
        ModelError: the inputs or attributes do not fit the operation.
    """
    entry = OPS.get(op)
    if entry is None:
        raise ModelError(f"got the operation {op!r}; expected one of {', '.join(sorted(OPS))}")
    if not entry.least <= len(types) <= entry.most:
        raise ModelError(f"got {len(types)} inputs; expected {entry.least} to {entry.most}")
    for index in range(entry.least):
        if types[index] is None:
            raise ModelError(f"input {index} is absent; expected a tensor")
    absent = [name for name in entry.attributes if name not in attributes]
    if absent:
        raise ModelError(f"attributes {', '.join(absent)} are missing; expected all of them")
    return entry.infer(types, attributes)


def check_dtypes(op: str, types: Types) -> None:
    """Raise unless an operation computes on run-time data of its inputs' types.

    Raises:
        UnsupportedError: it does not compute on the dtype of one of them.
    """
    taken = OPS[op].dtypes
    refused = next((kind for kind in types if kind and kind.dtype not in taken), None)
    if refused is None:
        return
    raise not_taken(op, refused.dtype, str(refused), taken)


def not_taken(
    op: str, dtype: DType, read: str, taken: Sequence[DType] = FLOATS
) -> UnsupportedError:
    """Return the error of an operation that does not compute on data of some dtype."""
    mend = "cast it in the network"
    if dtype in HALVES:  # all of the network is, and a Cast would not help
        mend = "export the float32 network (in PyTorch model.float())"
    return UnsupportedError(
        f"{op} reads {read}, which is not supported on data yet; expected "
        f"{' or '.join(taken)}: {mend}"
    )


def evaluate(op: str, arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    """Return the output arrays of an operation, computed in the dtype of its inputs.

    Args:
        op: a key of `OPS`.
        arrays: the inputs, None for an absent one; types that `infer` accepts.
        attributes: in normal form.
    """
    with np.errstate(all="ignore"):
        return OPS[op].evaluate(arrays, attributes)


def table_bytes(
    op: str, types: Types, attributes: Attributes, results: tuple[TensorType, ...]
) -> int:
    """Return the bytes of tables made from attributes alone; 0 where none is made.

    Args:
        op: a key of `OPS`.
        types, attributes, results: of a node.
    """
    tables = OPS[op].tables
    return 0 if tables is None or is_described() else tables(types, attributes, results)


def working_bytes(op: str, types: Types, results: Types) -> int:
    """Return the most bytes that NumPy works in, beside operands and results.

    Args:
        op: a key of `OPS`.
        types, results: of its inputs and outputs.
    """
    kinds = [kind for kind in (*types, *results) if kind is not None]
    entry = OPS[op]
    places = entry.places * _PLACE_BYTES * sum(kind.elements for kind in kinds)
    return places + entry.working * sum(kind.bytes for kind in kinds)


def label(node: Node) -> str:
    """Return a node's name in messages: its name in the file and its operation."""
    return f"node {node.name!r} ({node.op})" if node.name else f"a node {node.op}"


def infer_node(node: Node, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """`infer` for a node of a graph, given the types of its inputs by name.

    Raises:
        ModelError: as `infer`, naming the node.
    """
    try:
        return infer(
            node.op, [types[name] if name else None for name in node.inputs], node.attributes
        )
    except LeanConvError as error:
        raise type(error)(f"{label(node)}: {error}") from error


def evaluate_node(node: Node, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """`evaluate` for a node of a graph, given its inputs by name."""
    arrays = [values[name] if name else None for name in node.inputs]
    return evaluate(node.op, arrays, node.attributes)


def _work(node: Node, types: Mapping[str, TensorType]) -> int:
    """A quarter of the bytes that a node reads and writes, and what it computes beyond."""
    entry, names = OPS[node.op], (*node.inputs, *node.outputs)
    moved = sum(types[name].bytes for name in names if name) // 4
    if entry.work is None:
        return moved
    given = [types[name] if name else None for name in node.inputs]
    return moved + entry.work(given, node.attributes, tuple(types[n] for n in node.outputs))
