"""Weights in blocks that share a scale, of which several elements are packed in a byte.

`MatMulNBits` and `GatherBlockQuantized` of the domain com.microsoft. Weights of products stay as
they are; with groups (g_idx), or zero points that are floats, they become floats when the network
is bound. A gather keeps its table as codes, a byte for each element, and makes floats of what it
takes.

Constants of DequantizeLinear with a `block_size` are such weights, too: products read the codes as
they are; floats are made for whatever else reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.convert import indexing
from leanconv.graph.convert.quantisation import Quantisation, broadcast, read_quantisation
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.narrow_codes import BITS
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.quantised_layers import (
    WORD_BITS,
    are_usual,
    packed_rows,
    unpacked_bits,
    unsigned,
    weights_of,
)
from leanconv.graph.value import Value
from leanconv.types import FLOAT32, FLOATS, INT2, INT4, INT8, INT32, UINT2, UINT4, UINT8, DType

_WHOLE = 16  # codes of 2 bits in a word: blocks of as many are whole words
_KINDS = (INT2, UINT2, INT4, UINT4, INT8, UINT8)
_BITS = (2, 4, 8)
_LEAST_BLOCK = 16
_LEVEL_OF_BYTES = 4  # accuracy_level of products that may round their rows to bytes


def blocked_floats(call: Call, x: Value, given: Quantisation, dtype: DType) -> Value:
    """Floats of constant codes of which blocks along an axis share a scale and a zero point."""
    codes, scale = np.asarray(x.numbers), np.asarray(given.scale.numbers)
    zero = None if given.zero is None else np.asarray(given.zero.numbers)

    def made() -> Array:
        places = np.arange(codes.shape[given.axis]) // given.blocks
        floats = codes.astype(np.float32)
        if zero is not None:
            floats -= np.take(zero, places, given.axis)
        floats *= np.take(scale, places, given.axis)
        return np.asarray(floats)

    kind = call.declared(0)
    kept = kind in _KINDS and len(x.shape) == 2 and not call.builder.running and are_usual(scale)
    if dtype != FLOAT32 or not kept:
        return call.cast(call.fold(made, x.shape, FLOAT32), dtype)
    floats = call.later(made, x.shape, FLOAT32)
    call.builder.blocked[floats] = _Blocked(codes, scale, zero, given.axis, given.blocks, kind)
    return floats


class _Blocked:
    """A matrix of constant codes in blocks.

    Args:
        codes: one in each element.
        scale, zero: of as many axes; no zero for 0.
        axis: along which blocks are.
        block: how many codes one has.
        kind: of the codes.
    """

    def __init__(
        self, codes: Array, scale: Array, zero: Array | None, axis: int, block: int, kind: DType
    ) -> None:
        self._codes, self._scale, self._zero = codes, scale, zero
        self.axis, self.bits = axis, BITS.get(kind, 8)
        whole = block * self.bits % WORD_BITS == 0
        if whole and scale.shape[axis] == 1:  # however long the file says that it is
            block = min(block, max(_WHOLE, 1 << (codes.shape[axis] - 1).bit_length()))
        self.block = block
        self.middle = 1 << (self.bits - 1) if kind.low < 0 else 0
        self._inputs: list[Value | None] = []

    def inputs(self, call: Call) -> list[Value | None]:
        """Packed codes, scales and zero points for MatMulNBits, the same for all products."""
        if not self._inputs:
            codes, scale = (np.moveaxis(each, self.axis, 1) for each in (self._codes, self._scale))
            length, zero = scale.shape[1] * self.block, self._zero
            self._inputs = [
                call.fold(
                    lambda: packed_rows(codes, self.bits, self.middle, length),
                    (len(codes), length * self.bits // 8),
                    UINT8,
                ),
                call.constant_of(np.ascontiguousarray(scale)),
                None
                if zero is None
                else call.constant_of(
                    unsigned(np.moveaxis(zero, self.axis, 1), self.bits, self.middle)
                ),
            ]
        return self._inputs


def product_of_codes(call: Call, a: Value, w: Value, axis: int) -> Value | None:
    """A product of rows with a matrix whose weights stay codes; None for other matrices.

    Args:
        call: the node.
        a: the rows.
        w: the weights.
        axis: of these, along which sums are.
    """
    held = call.builder.blocked.get(w)
    if held is None or a.is_known or a.type.dtype != FLOAT32 or not a.shape or not w.type.elements:
        return None
    if held.axis != axis or held.block * held.bits % WORD_BITS or a.shape[-1] != w.shape[axis]:
        return None
    return call.emit(
        "MatMulNBits",
        [a, *held.inputs(call)],
        bits=held.bits,
        block=held.block,
        inner=w.shape[axis],
        outputs=w.shape[1 - axis],
        middle=held.middle,
        bytes=False,
    )


# -- products -------------------------------------------------------------------------------------
def _bits(call: Call) -> int:
    bits = call.attribute("bits", 4)
    if bits not in _BITS:
        raise UnsupportedError(f"attribute bits is {bits}; expected {', '.join(map(str, _BITS))}")
    return int(bits)


def _block(call: Call, default: int | None = None) -> int:
    block = call.attribute("block_size", default)
    if block is None or block < _LEAST_BLOCK or block & (block - 1):
        raise ModelError(
            f"attribute block_size is {block}; expected a power of two of at least {_LEAST_BLOCK}"
        )
    return int(block)


def _in_rows(call: Call, index: int, rows: int, columns: int) -> Array:
    """The numbers of a constant input as a matrix.

    Raises:
        ModelError: there is another number of them.
    """
    array = call.constant(index)
    if array.size != rows * columns:
        raise ModelError(
            f"input {index} is {call.value(index).type}; expected {rows} x {columns} numbers"
        )
    return array.reshape(rows, columns)


def _groups(call: Call, inner: int, blocks: int) -> Array | None:
    """Return the block whose scale each row of the weights has; None where it is its own."""
    if call.optional(4) is None:
        return None
    groups = call.constant(4).reshape(-1)
    if groups.dtype != INT32 or groups.size < inner:
        raise ModelError(
            f"input 4 is {call.value(4).type}; expected int32, one for each of {inner}"
        )
    groups = groups[:inner]
    if groups.size and not 0 <= groups.min() <= groups.max() < blocks:
        raise ModelError(f"input 4 holds numbers outside 0 to {blocks - 1}; expected blocks")
    return groups


def _zeros(call: Call, bits: int, rows: int, blocks: int) -> Array | None:
    """The zero point of each block, uint8 or float32 (rows, blocks); None for the middle code."""
    held = call.optional(3)
    if held is None:
        return None
    if held.type.dtype != UINT8:
        return _in_rows(call, 3, rows, blocks).astype(np.float32)
    packed = _in_rows(call, 3, rows, math.ceil(blocks * bits / 8))
    return unpacked_bits(packed, bits)[:, :blocks]


def _matmul(call: Call) -> list[Value]:
    """MatMulNBits: a (..., K), b (N, blocks, bytes) packed, scales, zero points, groups, bias."""
    inner, columns = call.attribute("K", 0), call.attribute("N", 0)
    bits, block, a = _bits(call), _block(call), call.value(0)
    if min(inner, columns) < 1 or not a.shape or a.shape[-1] != inner:
        raise ModelError(
            f"got {a.type} and attributes K = {inner}, N = {columns}; expected rows of K elements"
        )
    blocks = math.ceil(inner / block)
    if call.dtype(1) != UINT8 or not call.value(2).type.dtype.is_float:
        raise ModelError(
            f"got weights {call.value(1).type} with scales {call.value(2).type}; expected uint8 "
            "and floats"
        )
    packed = _in_rows(call, 1, columns, blocks * block * bits // 8)
    scales = _in_rows(call, 2, columns, blocks).astype(np.float32, copy=False)
    zeros, groups = _zeros(call, bits, columns, blocks), _groups(call, inner, blocks)
    bias, middle = call.optional(5), 1 << (bits - 1)
    sizes = {"bits": bits, "block": block, "inner": inner, "outputs": columns, "middle": middle}
    sizes["bytes"] = call.attribute("accuracy_level", 0) == _LEVEL_OF_BYTES
    whole = (zeros is None or zeros.dtype == np.uint8) and are_usual(scales)
    if a.type.dtype == FLOAT32 and groups is None and whole:
        return [_kept(call, scales, zeros, sizes)]
    arrays = [None, packed, scales, zeros]
    w = call.fold(lambda: weights_of(arrays, sizes, groups), (inner, columns), FLOAT32)
    y = call.emit("MatMul", [a, call.cast(w, a.type.dtype)])
    return [y if bias is None else call.emit("Add", [y, bias])]


def _kept(call: Call, scales: Array, zeros: Array | None, sizes: Mapping[str, int]) -> Value:
    """A product whose weights stay codes; `sizes` are its attributes."""
    scale, bias = call.value(2), call.optional(5)
    if scale.type.dtype != FLOAT32:
        scale = call.fold(lambda: scales, scales.shape, FLOAT32)
    away = None if zeros is None else call.fold(lambda: zeros, zeros.shape, UINT8)
    fused = bias is not None and bias.is_known and bias.type.elements == sizes["outputs"]
    inputs = [call.value(0), call.value(1), scale, away, bias if fused else None]
    y = call.emit("MatMulNBits", inputs, **sizes)
    return y if bias is None or fused else call.emit("Add", [y, bias])


# -- gathers --------------------------------------------------------------------------------------
def _unpacked_table(call: Call, index: int) -> Value:
    """A constant of codes with a byte for each; of uint8 they may be packed along the last axis."""
    value, bits = call.value(index), _bits(call)
    if value.type.dtype != UINT8 or value in call.builder.narrow or bits == 8:
        return value
    packed = call.constant(index)
    shape = (*packed.shape[:-1], packed.shape[-1] * 8 // bits)
    return call.fold(lambda: unpacked_bits(packed, bits), shape, UINT8)


def _gather(call: Call) -> list[Value]:
    """GatherBlockQuantized: codes, indices, scales, zero points."""
    data, indices, scale = _unpacked_table(call, 0), call.value(1), call.value(2)
    rank, zero, block = len(data.shape), call.optional(3), _block(call, 128)
    gathered = call.axis(call.attribute("gather_axis", 0), rank, "gather_axis")
    axis = call.axis(call.attribute("quantize_axis", 1), rank, "quantize_axis")
    packed = call.dtype(0) == UINT8 and data not in call.builder.narrow
    if data.type.dtype not in (INT8, UINT8) or gathered == axis or (packed and axis != rank - 1):
        raise ModelError(
            f"got codes {data.type}, gathered along {gathered}, in blocks along {axis}; expected "
            "codes of at most 8 bits and two axes, where they are packed the last one"
        )
    if zero is not None:
        zero = _unpacked_table(call, 3)
        if len(zero.shape) == rank == len(scale.shape) and packed and scale.shape != zero.shape:
            sizes = scale.shape  # the last byte of a row need not be full
            starts = (0,) * rank
            zero = call.emit("Slice", [zero], starts=starts, steps=(1,) * rank, sizes=sizes)
    elif packed:
        middle = np.full((), 1 << (_bits(call) - 1), UINT8)
        zero = call.builder.filled(middle, scale.shape)
    inputs = [data, indices, scale, zero]
    given = read_quantisation(call.with_inputs(inputs), 2, 3, data, axis, block)
    dtype = call.builder.kept(scale.type.dtype)
    if dtype not in FLOATS:
        raise UnsupportedError(f"the scale is {scale.type}; expected {' or '.join(FLOATS)}")
    codes, factor = (indexing.gathered(call, each, gathered) for each in (data, given.scale))
    away = None if given.zero is None else indexing.gathered(call, given.zero, gathered)
    place = axis + (len(indices.shape) - 1) * (axis > gathered)
    taken = Quantisation(call.cast(factor, dtype), away, place, block)
    if away is not None:
        away = broadcast(call, away, codes, taken)
    scale = broadcast(call, taken.scale, codes, taken)
    return [float_codes.dequantise(call, codes, scale, away, dtype)]


_NUMBERS = dict.fromkeys(("K", "N", "bits", "block_size", "accuracy_level"), "int")
_AXES = dict.fromkeys(("bits", "block_size", "gather_axis", "quantize_axis"), "int")
RULES: dict[str, Rule] = {
    "MatMulNBits": Rule(_matmul, {**_NUMBERS, "weight_prepacked": "int"}, 3, 6, running=(0,)),
    "GatherBlockQuantized": Rule(_gather, _AXES, 3, 4, running=(0, 1, 2, 3), narrow=True),
}
