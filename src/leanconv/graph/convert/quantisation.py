"""Scales and zero points of a file's nodes, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.codes import Code
from leanconv.graph.convert.rule import Call
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.value import Value
from leanconv.records import dataclass, replace
from leanconv.types import FLOAT32, DType


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Scale and zero point of a tensor's codes, which stand for (code - zero) * scale.

    Attributes:
        scale: floats, or float32 where it is constant, of one number () or of one for each place
            along `axis`; of as many axes as the tensor where there is one for each block.
        zero: of the codes' type and the scale's shape, None for 0.
        axis: of the tensor.
        blocks: how many places share a number; 0 where all of a slice do.
    """

    scale: Value
    zero: Value | None
    axis: int = 0
    blocks: int = 0

    @property
    def is_known(self) -> bool:
        """True if both are constants."""
        return self.scale.array is not None and (self.zero is None or self.zero.array is not None)

    @property
    def is_constant(self) -> bool:
        """True if both are known, and are one number or one along an axis."""
        return self.is_known and not self.blocks


def read_quantisation(
    call: Call, scale: int, zero: int, x: Value, axis: int = 0, block: int = 0
) -> Quantisation:
    """The quantisation of a tensor.

    Args:
        call: the node.
        scale, zero: numbers of its inputs.
        x: the tensor, or its floats.
        axis: along which there may be several numbers.
        block: how many places of it share one; 0 for none.

    Raises:
        ModelError: scale and zero point do not fit each other or the tensor.
    """
    s, z = call.value(scale), call.optional(zero)
    if not s.type.dtype.is_float:
        raise ModelError(f"the scale (input {scale}) is {s.type}; expected floats")
    if z is not None and z.shape != s.shape and not (z.type.elements == s.type.elements == 1):
        raise ModelError(f"got a scale {s.type} and a zero point {z.type}; expected one for each")
    several = s.type.elements != 1 or bool(block)
    if several and not block and (len(s.shape) != 1 or s.shape != x.shape[axis : axis + 1]):
        raise ModelError(
            f"the scale (input {scale}) is {s.type} for {x.type}; expected one number, or one for "
            f"each place along axis {axis}"
        )
    if block:
        _check_blocks(s, x, axis, block)
    if s.array is not None:
        check_scales(np.asarray(s.numbers), scale)
    if not several:
        s, z = call.reshape(s, ()), z and call.reshape(z, ())
    return Quantisation(s, z, axis, block)


def _check_blocks(scale: Value, x: Value, axis: int, block: int) -> None:
    expected = tuple(
        math.ceil(n / block) if i == axis else n for i, n in enumerate(map(int, x.shape))
    )
    if block < 0 or tuple(map(int, scale.shape)) != expected:
        raise ModelError(
            f"the scale is {scale.type} for {x.type} in blocks of {block} along axis {axis}; "
            f"expected one number for each block"
        )


def check_scales(scales: Array, index: int, *, positive: bool = False) -> None:
    """Raise unless scales are finite, and above 0 where that is asked for.

    Raises:
        ModelError: one is not.
    """
    numbers = scales.astype(np.float64).reshape(-1)
    sound = np.isfinite(numbers) & ((numbers > 0) | (not positive))
    if not np.all(sound):
        raise ModelError(
            f"the scale (input {index}) is {numbers[~sound][0]}; expected "
            f"{'positive, ' * positive}finite numbers: quantise the network again"
        )


def single_precision(call: Call, value: Value) -> Value:
    """A constant of floats as float32, whatever the network computes in."""
    assert value.array is not None, "it is a constant"
    if value.type.dtype == FLOAT32:
        return value
    array = np.asarray(value.numbers)
    return call.fold(lambda: array.astype(np.float32), value.shape, FLOAT32)


LIFT = float(1 << 64)  # makes a subnormal number of float32 a normal one
_LEAST, _MOST = FLOAT32.least_normal, 1 / FLOAT32.least_normal


def is_subnormal(scale: Value) -> bool:
    """Return whether a constant has subnormal numbers, which kernels take for 0."""
    return bool(np.any(np.abs(np.asarray(scale.numbers, np.float64)) < _LEAST))


def lifted(call: Call, x: Value) -> Value:
    """Numbers times `LIFT`: their quotients are the same, and their products less that factor."""
    return call.emit("Mul", [x, call.number(LIFT, x)])


def lifted_codes(codes: Sequence[Code]) -> list[Code]:
    """Quantisations whose scales have the same ratios, none subnormal."""
    if all(code.scale >= _LEAST for code in codes):
        return list(codes)
    return [replace(code, scale=min(code.scale * LIFT, _MOST)) for code in codes]


def zero_of(call: Call, given: Quantisation, code: DType) -> Value:
    """The zero point as a constant of the scale's shape."""
    if given.zero is not None:
        return given.zero
    return call.fold(lambda: np.zeros(given.scale.shape, code.numpy), given.scale.shape, code)


def broadcast(call: Call, parameter: Value, x: Value, given: Quantisation) -> Value:
    """A scale or a zero point in a shape that broadcasts to the tensor."""
    if not given.blocks:
        if not parameter.shape:
            return parameter
        ones: list[int] = [1] * len(x.shape)
        ones[given.axis] = parameter.shape[0]
        return call.reshape(parameter, ones)
    axis, block = given.axis, given.blocks
    before, (places, *after) = parameter.shape[:axis], parameter.shape[axis:]
    y = call.reshape(parameter, (*before, places, 1, *after))
    y = call.emit("Expand", [y], shape=(*before, places, block, *after))
    y = call.reshape(y, (*before, places * block, *after))
    zeros, steps = (0,) * len(x.shape), (1,) * len(x.shape)
    return call.emit("Slice", [y], starts=zeros, steps=steps, sizes=x.shape)


@dataclass(frozen=True, eq=False)
class Scale:
    """The quantisation of a tensor that has one scale and zero point, constants or data.

    Attributes:
        scale: float32 ().
        zero: a number, or a value of one element.
        dtype: of the codes.
    """

    scale: Value
    zero: int | Value
    dtype: DType


def one_scale(call: Call, scale: int, zero: int, dtype: DType, *, other: bool = False) -> Scale:
    """Return scale and zero point of a whole tensor, as `scalar` does; they may be data.

    Raises:
        ModelError: scale or zero point are something else.
    """
    s, z = call.value(scale), call.optional(zero)
    if s.array is not None and (z is None or z.array is not None):
        code = scalar(call, scale, zero, dtype, other=other)
        number = np.float32(code.scale)
        return Scale(call.fold(lambda: np.asarray(number), (), FLOAT32), code.zero, code.dtype)
    if s.type.elements != 1 or not s.type.dtype.is_float or (z and z.type.elements != 1):
        raise ModelError(
            f"the scale (input {scale}) is {s.type}, with a zero point {z and z.type}; expected "
            "one float and one code for all of the tensor"
        )
    kind = dtype if z is None else z.type.dtype
    if kind not in (CODES if other else (dtype,)):
        expected = " or ".join(CODES if other else (dtype,))
        raise ModelError(f"the zero point (input {zero}) is {kind}; expected {expected}")
    if s.array is not None:
        check_scales(np.asarray(s.numbers), scale, positive=True)
    held = 0 if z is None else z if z.array is None else int(np.asarray(z.numbers).reshape(-1)[0])
    return Scale(call.cast(call.reshape(s, ()), FLOAT32), held, kind)


def scalar(call: Call, scale: int, zero: int, dtype: DType, *, other: bool = False) -> Code:
    """The quantisation of a tensor that has one scale and zero point, both constants.

    Args:
        call: the node.
        scale, zero: numbers of its inputs.
        dtype: of the codes.
        other: whether the zero point may say that they are of another type of 8 bits.

    Raises:
        ModelError: scale or zero point are something else.
        NeedsValuesError: scale or zero point are data.
    """
    s, held = call.constant(scale), call.optional(zero)
    z = np.zeros((), dtype.numpy) if held is None else call.constant(zero)
    if s.size != 1 or z.size != 1 or s.dtype.kind != "f":
        raise ModelError(
            f"the scale (input {scale}) is {call.value(scale).type}, with {z.size} zero points; "
            "expected one float and one code for all of the tensor"
        )
    code = dtype if held is None else held.type.dtype
    if code not in (CODES if other else (dtype,)):
        expected = " or ".join(CODES if other else (dtype,))
        raise ModelError(f"the zero point (input {zero}) is {code}; expected {expected}")
    check_scales(s, scale, positive=True)
    return Code(float(np.float32(s.reshape(-1)[0])), int(z.reshape(-1)[0]), code)
