"""Constants of DequantizeLinear with a `block_size`: floats of codes in blocks that share a scale.

Products read the codes as they are, several packed in a word; floats are made for whatever else
reads them.
"""

from __future__ import annotations

import numpy as np

from leanconv.graph import float_codes
from leanconv.graph.convert.quantisation import Quantisation
from leanconv.graph.convert.rule import Call
from leanconv.graph.narrow_codes import BITS
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.packed_matmul import WORD_BITS, are_usual, packed_rows, unsigned
from leanconv.graph.value import Value
from leanconv.types import FLOAT32, INT2, INT4, INT8, UINT2, UINT4, UINT8, DType

_WHOLE = 16  # codes of 2 bits in a word: blocks of as many are whole words
_KINDS = (INT2, UINT2, INT4, UINT4, INT8, UINT8)


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
        return float_codes.cast(call, call.fold(made, x.shape, FLOAT32), dtype)
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
        self,
        codes: Array,
        scale: Array,
        zero: Array | None,
        axis: int,
        block: int,
        kind: DType,
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
    """A product of rows with a matrix whose weights stay codes; None for any other.

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
    )
