"""Transposed convolutions: the gradients of convolutions, in PyTorch's conventions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from leanconv.errors import SpecError, short
from leanconv.records import dataclass
from leanconv.spec.arguments import (
    Padding,
    Steps,
    checked_groups,
    extents_of,
    is_plain,
    numbers_of,
    paddings,
    steps_per_axis,
)
from leanconv.spec.conv import transposed_reach
from leanconv.types import FLOAT32, DType
from leanconv.units import shape_text


class TransposedArguments(NamedTuple):
    """Arguments of a transposed convolution besides arrays, in PyTorch's conventions.

    Attributes:
        stride, dilation: one number, or one for each spatial axis; dilation 1 is dense.
        padding: elements cut off the output: one number, one for each axis, or all begins and then
            all ends.
        output_padding: elements added to the output's ends: one number, or one for each axis.
        groups: channel groups.
    """

    stride: Steps = 1
    padding: Padding = 0
    output_padding: Steps = 0
    groups: int = 1
    dilation: Steps = 1


@dataclass(frozen=True)
class TransposedSpec:
    """One transposed convolution: y[o] = bias + sum of x[i]·w[k] over o + pad = i·s + k·d.

    Attributes:
        input_shape: (N, C, spatial…).
        weight_shape: (C, K / groups, kernel…).
        output_shape: (N, K, spatial…).
        stride, dilation, output_padding: for each spatial axis.
        pads: elements cut off the output, all begins and then all ends.
        groups, dtype, bias: as in `ConvSpec`.
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int
    dtype: DType
    bias: bool

    def __str__(self) -> str:
        kernel = shape_text(self.weight_shape[2:])
        shapes = f"{shape_text(self.input_shape)} to {shape_text(self.output_shape)}"
        return f"transposed convolution {shapes} by {kernel}"


def transposed_spec(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    arguments: TransposedArguments,
    dtype: DType = FLOAT32,
    bias: bool = False,
) -> TransposedSpec:
    """Build the spec of a transposed convolution.

    Args:
        x_shape: (N, C, spatial…), 1 to 3 spatial axes.
        w_shape: (C, K / groups, kernel…).
        arguments: all other arguments of the user.
        dtype, bias: as in `TransposedSpec`.

    Raises:
        SpecError: an argument makes no sense; the message says what was expected.
    """
    make = _known if all(map(is_plain, (x_shape, w_shape, *arguments))) else _spec
    return make(x_shape, w_shape, arguments, dtype, bias)


def _spec(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    arguments: TransposedArguments,
    dtype: DType,
    bias: bool,
) -> TransposedSpec:
    stride, padding, output_padding, given_groups, dilation = arguments
    shape, weights = extents_of("x", x_shape), extents_of("w", w_shape)
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or len(weights) != len(shape):
        raise SpecError(
            f"x has shape {shape_text(shape)} and w {shape_text(weights)}; expected "
            "(N, C, spatial…) and (C, K/groups, kernel…) with the same 1 to 3 spatial axes"
        )
    if min(*shape, *weights) < 1:
        raise SpecError(
            f"x has shape {shape_text(shape)} and w {shape_text(weights)}; expected extents of at "
            "least 1"
        )
    groups = checked_groups(given_groups)
    if shape[1] != weights[0] or shape[1] % groups:
        raise SpecError(
            f"x has {shape[1]} channels and w takes {weights[0]} with groups={groups}; expected w "
            f"of shape ({shape[1]}, K/groups, …) and groups that divide {shape[1]}"
            + _mend(shape, weights)
        )
    steps = steps_per_axis("stride", stride, rank)
    spread = steps_per_axis("dilation", dilation, rank)
    begin, end = paddings(padding, rank)
    more = numbers_of(output_padding, rank)
    if len(more) != rank or any(
        not 0 <= n < max(s, d) for n, s, d in zip(more, steps, spread, strict=True)
    ):
        raise SpecError(
            f"output_padding is {short(output_padding)}; expected {rank} integer(s) of at least 0 "
            f"and less than stride {steps} or dilation {spread}"
        )
    axes = zip(shape[2:], weights[2:], steps, spread, more, strict=True)
    full = [transposed_reach(*axis) for axis in axes]
    size = tuple(n - b - e for n, b, e in zip(full, begin, end, strict=True))
    if min(size) < 1:
        raise SpecError(
            f"padding is {short(padding)}; expected less: of {shape_text(full)} outputs it leaves "
            f"{shape_text(size)}"
        )
    return TransposedSpec(
        input_shape=shape,
        weight_shape=weights,
        output_shape=(shape[0], weights[1] * groups, *size),
        stride=steps,
        dilation=spread,
        output_padding=more,
        pads=(*begin, *end),
        groups=groups,
        dtype=dtype,
        bias=bias,
    )


def _mend(shape: tuple[int, ...], weights: tuple[int, ...]) -> str:
    if shape[1] == weights[1] != weights[0]:
        return "; w seems to be that of a convolution, (K, C, kernel…): give w.swapaxes(0, 1)"
    return ""


_known = functools.lru_cache(maxsize=256)(_spec)
