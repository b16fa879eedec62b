"""Products with weights of few bits, of which blocks along the sum share a scale.

    y[..., n] = sum_k x[..., k] * (code[n, k] - zero[n, k / block]) * scale[n, k / block] + bias[n]

Codes lie as in `MatMulNBits` of the domain com.microsoft: a row of bytes for each output, the first
element in a byte's lowest bits, the last block filled up.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    checked,
    first,
    given,
    required,
    single,
)
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32, UINT8

WORD_BITS = 32  # codes of a row that kernels read together
_OUTPUTS = 64  # whose weights are floats at a time, so that these stay in the caches


def unpacked_bits(data: Array, bits: int) -> Array:
    """Numbers that are packed in bytes along the last axis, the first in the lowest bits."""
    if bits == 8:
        return data
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*data.shape[:-1], data.shape[-1] * len(parts))


def packed_bits(codes: Array, bits: int) -> Array:
    """The opposite of `unpacked_bits`; whole bytes of codes that have no more bits."""
    parts = codes.reshape(*codes.shape[:-1], -1, 8 // bits)
    packed: Array = parts[..., 0].copy()
    for number in range(1, parts.shape[-1]):
        packed |= parts[..., number] << (number * bits)
    return packed


def packed_rows(codes: Array, bits: int, middle: int, length: int) -> Array:
    """Rows of codes, uint8 (outputs, length * bits / 8), as products read them.

    Args:
        codes: of 8 bits, (outputs, inner), of which none needs more than `bits`.
        bits: of each then.
        middle: the code that 0 becomes; 0 or, of codes with signs, half of all codes.
        length: to which a row is filled up with zeros, whole bytes.
    """
    whole = np.zeros((len(codes), length), np.uint8)
    whole[:, : codes.shape[1]] = unsigned(codes, bits, middle)
    return packed_bits(whole, bits)


def unsigned(codes: Array, bits: int, middle: int) -> Array:
    """Codes of 8 bits, or few, as those from 0 on; each is `middle` larger."""
    return np.asarray((codes.view(np.uint8) ^ np.uint8(middle)) & np.uint8((1 << bits) - 1))


def are_usual(scale: Array) -> bool:
    """Return whether scales are finite, none subnormal, and no product with a code overflows."""
    size = np.abs(scale)
    low, high = FLOAT32.least_normal, FLOAT32.high / (1 << 10)
    return bool(np.all((size == 0) | ((size >= low) & (size <= high))))


def floats_of(codes: Array, scale: Array, zero: Array | float, block: int) -> Array:
    """The weights of some outputs as float32 (outputs, inner in whole blocks).

    Args:
        codes: unpacked, (outputs, inner in whole blocks).
        scale: of each block, (outputs, blocks).
        zero: of each block, or of all.
        block: how many codes it has.
    """
    floats = codes.reshape(*scale.shape, block).astype(np.float32)
    floats -= zero[:, :, None] if isinstance(zero, np.ndarray) else np.float32(zero)
    floats *= scale[:, :, None]
    return np.asarray(floats.reshape(len(scale), -1))


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, codes, scale = first(types), required(types, 1), required(types, 2)
    zero, bias = given(types, 3), given(types, 4)
    bits, block, inner, outputs = (attributes[n] for n in ("bits", "block", "inner", "outputs"))
    if bits not in (2, 4, 8) or block < 1 or block * bits % WORD_BITS or min(inner, outputs) < 1:
        raise ModelError(
            f"got {outputs} sums of {inner} codes of {bits} bits in blocks of {block}; expected at "
            "least one, and blocks of whole words"
        )
    blocks = outputs * ceil_div(inner, block)
    wanted = (
        ("codes", codes, UINT8, blocks * block * bits // 8),
        ("scales", scale, FLOAT32, blocks),
        ("zero points", zero, UINT8, blocks),
        ("a bias", bias, FLOAT32, outputs),
    )
    for what, kind, dtype, count in wanted:
        if kind is not None and (kind.dtype, kind.elements) != (dtype, count):
            raise ModelError(f"got {what} {kind}; expected {dtype}, {count} elements")
    if not x.shape or x.shape[-1] != inner or x.dtype != FLOAT32:
        raise ModelError(f"got {x}; expected float32, rows of {inner} elements")
    return checked((*x.shape[:-1], outputs), x.dtype)


def _pieces(
    arrays: Arrays, attributes: Attributes, groups: Array | None = None
) -> Iterator[tuple[slice, Array]]:
    """Some outputs at a time, and their weights as float32 (outputs, inner)."""
    outputs, inner, block = (attributes[name] for name in ("outputs", "inner", "block"))
    codes, scale = (array(arrays, number).reshape(outputs, -1) for number in (1, 2))
    zeros = None if given(arrays, 3) is None else array(arrays, 3).reshape(outputs, -1)
    for start in range(0, outputs, _OUTPUTS):
        rows = slice(start, start + _OUTPUTS)
        zero = attributes["middle"] if zeros is None else zeros[rows]
        unpacked, factors = unpacked_bits(codes[rows], attributes["bits"]), scale[rows]
        if groups is None:
            yield rows, floats_of(unpacked, factors, zero, block)[:, :inner]
        else:
            zero = zero[:, groups] if isinstance(zero, np.ndarray) else zero
            yield rows, floats_of(unpacked[:, :inner], factors[:, groups], zero, 1)


def weights_of(arrays: Arrays, attributes: Attributes, groups: Array | None = None) -> Array:
    """The weights as floats, (inner, outputs).

    Args:
        arrays: inputs of the operation, of which the first may be absent; zero points may be
            floats.
        attributes: of it.
        groups: for each of `inner` the block whose scale and zero point it has; None for its own.
    """
    weights = np.empty((attributes["inner"], attributes["outputs"]), np.float32)
    for rows, floats in _pieces(arrays, attributes, groups):
        weights[:, rows] = floats.T
    return weights


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    x, bias = array(arrays), given(arrays, 4)
    y = np.empty((*x.shape[:-1], attributes["outputs"]), x.dtype)
    for rows, floats in _pieces(arrays, attributes):
        y[..., rows] = x @ floats.T
    return y if bias is None else y + bias.reshape(-1)


def _work(types: Types, attributes: Attributes, result: TensorType) -> int:
    del types
    return int(result.elements * attributes["inner"])


OPS: dict[str, Op] = {
    "MatMulNBits": single(
        _infer,
        _evaluate,
        "x (..., K), codes (N rows), scales (N, blocks), zeros (N, blocks)?, bias (N,)?; inner: K; "
        "outputs: N; middle: the zero point where there are none",
        ("bits", "block", "inner", "outputs", "middle"),
        _work,
        dtypes=(FLOAT32, UINT8),
        halves="rounded",
        kernel="packed_matmul",
    )
}
