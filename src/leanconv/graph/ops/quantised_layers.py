"""Layers with weights that are codes: QLinearConv, and MatMulNBits for weights of few bits.

QLinearConv has the bits of onnxruntime's. Its inputs, "" where there is none: codes x; w (K, C/g,
kernel…), int8, or uint8 where x is; bias, (K,) int32; scale, (K,) float32; residual, codes of y's
type and shape; affine, (2, K) float32. A code of x stands for (code - x_zero) · its scale, and so
does the padding: for code x_zero. Modulo 2^32

    sum = bias + sum over taps and channels of (x - x_zero) · w

What becomes of it, `dtype` says: int32, the sum itself; uint8 or int8, its code, as
`spec.requantise` has the formula; float32, sum · scale. An `activation` is applied to sum · scale;
`affine` has a factor and a summand for each channel that make codes of its result, without the
zero. `low` and `high` are codes, or bounds of the float32 result; `residual` says how the
residual's codes are added, None without one.

Of the weights of MatMulNBits, blocks along the sum share a scale:

    y[..., n] = sum_k x[..., k] * (code[n, k] - zero[n, k / block]) * scale[n, k / block] + bias[n]

Their codes lie as in `MatMulNBits` of the domain com.microsoft: a row of bytes for each output, the
first element in a byte's lowest bits, the last block filled up. Where `bytes` says so, x may be
rounded to bytes, by blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isnan

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
from leanconv.graph.ops.conv import check_channels, conv_type, sums_over_taps, work_conv
from leanconv.graph.ops.pointwise import activate
from leanconv.graph.ops.quantised import CODES, add_factors, fma
from leanconv.spec import Activation
from leanconv.spec.format import ceil_div
from leanconv.spec.requantise import (
    FIXED,
    HIGH,
    LAST_HIGH,
    LAST_LOW,
    LOW,
    NUMBERS,
    OWN_RATIO,
    RESIDUAL_RATIO,
    ZERO,
    Quantisation,
    Requantise,
)
from leanconv.types import FLOAT32, INT8, INT32, UINT8, DType

_CODES = 256  # of a byte
RESULTS = (*CODES, FLOAT32, INT32)
WORD_BITS = 32  # codes of a row that kernels read together
_OUTPUTS = 64  # whose weights are floats at a time, so that these stay in the caches


def numbers_of(quantisation: Quantisation) -> np.ndarray:
    """Return the numbers that kernels read, (8,) float32, in the order of `spec.requantise`."""
    numbers = np.zeros(NUMBERS, np.float32)
    own, zero = quantisation.residual, quantisation.zero
    low, high = quantisation.low, quantisation.high
    if own is None:
        numbers[[LOW, HIGH, ZERO]] = low - zero, high - zero, zero
        return numbers
    zeros = own.own_low - own.own_zero, own.own_high - own.own_zero, own.own_zero
    numbers[[LOW, HIGH, ZERO]] = zeros
    numbers[[LAST_LOW, LAST_HIGH]] = low, high
    operands = [(own.own_scale, own.own_zero, OWN_RATIO), (own.scale, own.zero, RESIDUAL_RATIO)]
    (a_scale, a_zero, a), (b_scale, b_zero, b) = operands[::-1] if own.first else operands
    factors = add_factors((a_scale, b_scale, own.result_scale), (a_zero, b_zero, zero))
    numbers[[a, b, FIXED]] = factors
    return numbers


def form_of(quantisation: Quantisation, scales: np.ndarray, dtype: DType) -> Requantise:
    """Return the part of a quantisation on which the code of kernels depends, not their numbers."""
    small = quantisation.activation is None and bool((np.abs(scales) < 1).all())
    own, bounds = quantisation.residual, (quantisation.low, quantisation.high)
    if own is None:
        last = quantisation.zero == 0
    else:
        a, b, fixed = np.abs(numbers_of(quantisation)[[OWN_RATIO, RESIDUAL_RATIO, FIXED]])
        last = bool(2 * _CODES * (a + b) + fixed < INT32.high)
    saturates = last and dtype in (INT8, UINT8) and bounds == (dtype.low, dtype.high)
    return replace(quantisation.form, small=small, saturates=saturates)


def requantised(
    sums: np.ndarray,
    scale: np.ndarray,
    quantisation: Quantisation,
    dtype: DType,
    residual: np.ndarray | None = None,
    affine: np.ndarray | None = None,
) -> np.ndarray:
    """The definition: the codes or floats that sums (N, K, …) in int32 become.

    Args:
        sums: with bias and zeros, modulo 2^32.
        scale: (K,) float32.
        quantisation: what they become.
        dtype: int8 or uint8, or float32.
        residual: codes of the sums' shape, where `quantisation` has how they are added.
        affine: (2, K) float32, of an activation: factors and summands.
    """
    numbers, own = numbers_of(quantisation), quantisation.residual
    channels = (-1, *(1,) * (sums.ndim - 2))
    with np.errstate(all="ignore"):  # scales are a file's
        value = sums.astype(np.float32) * scale.reshape(channels)
        if affine is not None:
            factors, summands = (each.reshape(channels) for each in affine)
            value = fma(activate(value, quantisation.activation), factors, summands)
        value = _clamped(value, numbers[LOW], numbers[HIGH])
        if dtype == FLOAT32:
            return value
        value = np.rint(value) + numbers[ZERO]
        if own is not None:
            assert residual is not None, "the codes to add"
            terms = [(value, numbers[OWN_RATIO]), (residual, numbers[RESIDUAL_RATIO])]
            (a, a_ratio), (b, b_ratio) = reversed(terms) if own.first else terms
            inner = fma(np.asarray(b), np.asarray(b_ratio), np.asarray(numbers[FIXED]))
            value = fma(np.asarray(a), np.asarray(a_ratio), inner)
            value = np.rint(_clamped(value, numbers[LAST_LOW], numbers[LAST_HIGH]))
    codes: np.ndarray = value.astype(np.int32).astype(dtype)
    return codes


def _clamped(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """A number within bounds; NaN becomes the lower one."""
    return np.minimum(np.where(value > low, value, low), high, dtype=np.float32)


def quantisation_of(attributes: Attributes) -> Quantisation | None:
    """Return the quantisation of a node's sums; None: they stay int32."""
    if attributes["dtype"] == INT32:
        return None
    bounds = attributes["low"], attributes["high"]
    zero, residual = attributes["y_zero"], attributes["residual"]
    return Quantisation(zero, *bounds, residual, attributes["activation"])


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, w, dtype = first(types), required(types, 1), attributes["dtype"]
    if x.dtype not in CODES or w.dtype not in ((INT8, UINT8) if x.dtype == UINT8 else (INT8,)):
        raise ModelError(
            f"got codes {x} and weights {w}; expected uint8 or int8, and weights of int8, or uint8 "
            "for uint8"
        )
    if dtype not in RESULTS:
        raise ModelError(f"got results of {dtype}; expected one of {', '.join(RESULTS)}")
    result = conv_type(types[:2], attributes, dtype)
    bias, scale, residual = (given(types, index) for index in (2, 3, 4))
    for kind, what, held in ((bias, "the bias", INT32), (scale, "the scale", FLOAT32)):
        check_channels(kind, result.shape[1], what)
        if kind is not None and kind.dtype != held:
            raise ModelError(f"{what} is {kind}; expected {held}")
    if (scale is None) != (dtype == INT32):
        raise ModelError(f"got the scale {scale}; expected one, but none for results of int32")
    if residual is not None and (residual != result or dtype not in CODES):
        raise ModelError(f"the residual is {residual}; expected codes, {result}")
    _check_activation(attributes, given(types, 5), result.shape[1])
    if (residual is None) != (attributes["residual"] is None):
        raise ModelError(f"got the residual {residual} for {attributes['residual']}; expected both")
    _check_codes(x, attributes)
    return result


def _check_activation(attributes: Attributes, affine: TensorType | None, channels: int) -> None:
    """Raise unless an activation is one that a convolution of codes may have, with its numbers."""
    activation: Activation | None = attributes["activation"]
    wanted = None if activation is None else TensorType((2, channels), FLOAT32)
    if affine != wanted:
        raise ModelError(f"got {affine} for the activation {activation}; expected {wanted}")
    if activation is None:
        return
    plain = activation == Activation(activation.kind, activation.parameters)
    if attributes["dtype"] == INT32 or activation.kind == "prelu" or not plain:
        raise ModelError(
            f"got the activation {activation} of {attributes['dtype']}; expected one of codes or "
            "float32, with no numbers but its parameters"
        )


def _check_codes(x: TensorType, attributes: Attributes) -> None:
    """Raise unless zeros and bounds are codes of their tensors, in order."""
    dtype, low, high = attributes["dtype"], attributes["low"], attributes["high"]
    own = attributes["residual"]
    codes = [(attributes["x_zero"], x.dtype)]
    if dtype in CODES:
        codes += [(number, dtype) for number in (attributes["y_zero"], low, high)]
        if own is not None:
            numbers = own.own_zero, own.own_low, own.own_high, own.zero
            codes += [(number, dtype) for number in numbers]
    for number, held in codes:
        if not held.low <= number <= held.high:
            raise ModelError(f"got {number} as a code; expected {held.low} to {held.high}")
    if dtype != INT32 and (isnan(low) or isnan(high) or not low <= high):
        raise ModelError(f"clamps to {low} and {high}; expected bounds in order")


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    """Sums in float64, which are exact below 2^53."""
    x = array(arrays).astype(np.float64) - attributes["x_zero"]
    sums = sums_over_taps(x, array(arrays, 1).astype(np.float64), attributes).astype(np.int64)
    bias, scale, residual, affine = (given(arrays, index) for index in (2, 3, 4, 5))
    if bias is not None:
        sums += bias.astype(np.int64).reshape(-1, *(1,) * (sums.ndim - 2))
    wrapped = sums.astype(np.int32)
    quantisation = quantisation_of(attributes)
    if quantisation is None:
        return wrapped
    assert scale is not None, "results that are scaled have a scale"
    return requantised(wrapped, scale, quantisation, attributes["dtype"], residual, affine)


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


def _infer_product(types: Types, attributes: Attributes) -> TensorType:
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


def _evaluate_product(arrays: Arrays, attributes: Attributes) -> Array:
    x, bias = array(arrays), given(arrays, 4)
    y = np.empty((*x.shape[:-1], attributes["outputs"]), x.dtype)
    for rows, floats in _pieces(arrays, attributes):
        y[..., rows] = x @ floats.T
    return y if bias is None else y + bias.reshape(-1)


def _work_product(types: Types, attributes: Attributes, result: TensorType) -> int:
    del types
    return int(result.elements * attributes["inner"])


_WINDOW = ("strides", "pads", "dilations", "group")
_NUMBERS = ("x_zero", "y_zero", "low", "high", "dtype", "residual", "activation")
OPS: dict[str, Op] = {
    "QLinearConv": single(
        _infer,
        _evaluate,
        "x (codes), w, bias?, scale?, residual?, affine?",
        (*_WINDOW, *_NUMBERS),
        work_conv,
        dtypes=(*CODES, INT32, FLOAT32),
        shifts=True,
        of_floats="Conv",
        routes="convolution",
        convolves=True,
        single=(3, 5),
    ),
    "MatMulNBits": single(
        _infer_product,
        _evaluate_product,
        "x (..., K), codes (N rows), scales (N, blocks), zeros (N, blocks)?, bias (N,)?; inner: K; "
        "outputs: N; middle: the zero point where there are none; bytes: x may be rounded",
        ("bits", "block", "inner", "outputs", "middle", "bytes"),
        _work_product,
        dtypes=(FLOAT32, UINT8),
        halves="rounded",
        kernel="packed_matmul",
    ),
}
