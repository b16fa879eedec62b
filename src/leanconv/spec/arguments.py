"""Conversion of a convolution's public arguments, in PyTorch's conventions, to a spec.

A message about an array of the wrong axes says how to make it one of the right ones (`mended`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from operator import index
from typing import NamedTuple

from leanconv.errors import InputError, SpecError, short
from leanconv.spec.activation import Activation
from leanconv.spec.conv import LAYOUTS, ConvSpec, effective_extent
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32, DType, Precision
from leanconv.units import shape_text

Extents = Sequence[int | str | None]


def mended(label: str, shape: Sequence[int], wanted: Extents | None) -> str:
    """An expression that brings an array's axes into the order that is wanted.

    Channels that are last instead of second, or second instead of last, are moved, and axes of
    extent 1 are added in front, or taken away.

    Args:
        label: the array's name, such as `x`.
        shape: its shape.
        wanted: numbers, and None or names for extents that are open; None for any rank.

    Returns:
        An expression such as `x.transpose(0, 3, 1, 2)`, empty if there is none.
    """
    if wanted is None or fits(shape, wanted):
        return ""
    ways = ((label + text, found) for text, found in _ways(tuple(shape), len(wanted)))
    return next((text for text, found in ways if fits(found, wanted)), "")


def resized(label: str, shape: Sequence[int], wanted: Extents | None) -> str:
    """Return an expression as `mended` does, for an image that has to be resized as well.

    Args:
        label, shape, wanted: as of `mended`; channels are the axis of at most four.

    Returns:
        Such as `x.transpose(2, 0, 1)[None]`, or `x` if only the size is wrong; empty if unknown.
    """
    if wanted is None or len(wanted) != 4:
        return ""
    channels = next((a for a in (1, 3) if wanted[a] in (1, 3, 4)), None)
    if channels is None:
        return ""
    open_size = [extent if axis in (0, channels) else None for axis, extent in enumerate(wanted)]
    return label if fits(shape, open_size) else mended(label, shape, open_size)


def fits(shape: Sequence[int], wanted: Extents) -> bool:
    """Return whether a shape is the wanted one, in all extents that are not open."""
    return len(wanted) == len(shape) and all(
        not isinstance(want, int) or want == have for want, have in zip(wanted, shape, strict=True)
    )


def _ways(shape: tuple[int, ...], rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield what may have been meant: text that follows the array's name, and the new shape."""
    lacking = rank - len(shape)
    if lacking == 0 and rank >= 3:
        yield from _turned(shape, 1)
    elif lacking == 1 and rank >= 3:
        yield "[None]", (1, *shape)
        for text, found in _turned(shape, 0):
            yield f"{text}[None]", (1, *found)
    elif lacking == 2 and rank >= 4:
        yield "[None, None]", (1, 1, *shape)
        yield "[None, ..., None]", (1, *shape, 1)
    elif lacking == -1 and shape[0] == 1:
        yield "[0]", shape[1:]


def _turned(shape: tuple[int, ...], first: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The last axis moved to the place `first`, and the other way round."""
    rank = len(shape)
    kept, rest = tuple(range(first)), tuple(range(first, rank))
    for moved in ((*rest[-1:], *rest[:-1]), (*rest[1:], *rest[:1])):
        perm = (*kept, *moved)
        yield f".transpose({', '.join(map(str, perm))})", tuple(shape[axis] for axis in perm)


def convolution_mend(
    shape: tuple[int, ...], weights: tuple[int, ...], groups: int, layout: str
) -> str:
    """Return advice where x and w of a convolution have different channels, empty if unknown.

    Args:
        shape: of x, whose rank is that of w.
        weights: the shape of w, meant to be (K, C / groups, kernel…).
        groups, layout: of the convolution.
    """
    rank = len(shape)
    if rank == 3 and shape[0] == groups == 1 and layout == "NCHW" and weights[1] == weights[2]:
        return "for a picture and filters of two axes give x[None] and w[:, None]"
    last, second = shape[-1] == weights[1] * groups, shape[1] == weights[1] * groups
    if layout == "NCHW" and last and not second:
        ((text, _), _) = _turned(shape, 1)
        return f"x seems to be NHWC: say layout='NHWC', or give x{text}"
    if layout == "NHWC" and second and not last:
        return "x seems to be NCHW: say layout='NCHW'"
    channels = shape[1] if layout == "NCHW" else shape[-1]
    fitting = channels // weights[1] if weights[1] and channels % weights[1] == 0 else 0
    if fitting and weights[0] % fitting == 0:
        return f"with this w, groups={fitting} fits"
    back = f"{', '.join(map(str, range(rank - 2)))})"
    if weights[-2] == channels == groups > 1 and _kernel_at(
        0, weights
    ):  # depthwise, as in TensorFlow
        outs = weights[-1] * channels
        kernel = ", ".join(map(str, weights[:-2]))
        return (
            "w seems to be (kernel…, C, multiplier): give "
            f"w.transpose({rank - 2}, {rank - 1}, {back}.reshape({outs}, 1, {kernel})"
        )
    if weights[-2] * groups == channels and weights[-1] % groups == 0 and _kernel_at(0, weights):
        return (
            f"w seems to be (kernel…, C/groups, K): give w.transpose({rank - 1}, {rank - 2}, {back}"
        )
    if weights[-1] * groups == channels and weights[0] % groups == 0 and _kernel_at(1, weights):
        ((text, _), _) = _turned(weights, 1)
        return f"w seems to be (K, kernel…, C/groups): give w{text}"
    return ""


def _kernel_at(first: int, weights: tuple[int, ...]) -> bool:
    """Return whether the kernel may begin at this axis: it is square, or the third axis' is not."""
    kernel = weights[first : first + len(weights) - 2]
    return len(set(kernel)) == 1 or len(set(weights[2:])) > 1


Steps = int | Sequence[int]
Padding = int | str | Sequence[int]

_HASHABLE = (str, Activation, type(None))


class ConvArguments(NamedTuple):
    """Arguments of a convolution besides arrays, in PyTorch's conventions.

    Attributes:
        stride, dilation: one number, or one for each spatial axis; dilation 1 is dense.
        padding: one number, one for each axis, all begins and then all ends, "same" or "valid".
        groups, activation, layout: as in `ConvSpec`.
    """

    stride: Steps = 1
    padding: Padding = 0
    dilation: Steps = 1
    groups: int = 1
    activation: str | Activation | None = None
    layout: str = "NCHW"


def spec_of(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    arguments: ConvArguments,
    dtype: DType | Precision = FLOAT32,
    bias: bool = False,
    residual: bool = False,
) -> ConvSpec:
    """Build the spec of a convolution.

    Args:
        x_shape: (N, C, spatial…), or (N, spatial…, C) for layout "NHWC"; 1 to 3 spatial axes.
        w_shape: (K, C / groups, kernel…).
        arguments: all other arguments of the user.
        dtype: of everything, or the precision; `ConvSpec` says more, and of bias and residual.

    Raises:
        SpecError: an argument makes no sense; the message says what was expected.
    """
    window = (x_shape, w_shape, *arguments[:4], arguments.layout)
    plain = all(map(is_plain, window)) and isinstance(arguments.activation, _HASHABLE)
    make = _known_spec if plain else _spec
    return make(x_shape, w_shape, arguments, dtype, bias, residual)


def is_plain(value: object) -> bool:
    """Return whether a value is an int, text, or a tuple of ints; not True, which equals 1."""
    return type(value) in (int, str) or (
        type(value) is tuple and all(type(each) is int for each in value)
    )


def _spec(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    arguments: ConvArguments,
    dtype: DType | Precision,
    bias: bool,
    residual: bool,
) -> ConvSpec:
    stride, padding, dilation, groups, activation, layout = arguments
    shape, weights = extents_of("x", x_shape), extents_of("w", w_shape)
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or len(weights) != len(shape):
        raise SpecError(
            f"x has shape {shape_text(shape)} and w {shape_text(weights)}; expected "
            "(N, C, spatial…) and (K, C/groups, kernel…) with the same 1 to 3 spatial axes"
            + _rank_mend(shape, weights)
        )
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise SpecError(f"layout is {short(layout)}; expected 'NCHW' or 'NHWC'")
    if layout == "NCHW":
        batch, channels, size = shape[0], shape[1], shape[2:]
    else:
        batch, channels, size = shape[0], shape[-1], shape[1:-1]
    groups = checked_groups(groups)
    if channels != weights[1] * groups:
        mend = convolution_mend(shape, weights, groups, layout)
        raise SpecError(
            f"x has {channels} channels and w takes {weights[1]} in each of {groups} group(s); "
            f"expected w of shape ({weights[0]}, {channels}/groups, …) and groups that divide "
            f"{channels} (layout is {layout}: the {'last' if layout == 'NHWC' else 'second'} "
            "axis of x is the channels)" + (f"; {mend}" if mend else "")
        )
    steps = steps_per_axis("stride", stride, rank)
    spread = steps_per_axis("dilation", dilation, rank)
    begin, end = _padding(padding, size, weights[2:], steps, spread)
    return ConvSpec(
        batch=batch,
        in_channels=channels,
        out_channels=weights[0],
        size=size,
        kernel=weights[2:],
        stride=steps,
        dilation=spread,
        pad_begin=begin,
        pad_end=end,
        groups=groups,
        precision=Precision.of(dtype),
        layout=layout,
        bias=bias,
        residual=residual,
        activation=Activation.parse(activation),
    )


def _rank_mend(shape: tuple[int, ...], weights: tuple[int, ...]) -> str:
    if len(shape) == len(weights) and len(shape) < 3:
        return "; give arrays without channels as x[None, None] and w[None, None]"
    return "; give a single image as x[None]" if len(shape) == len(weights) - 1 else ""


# Checking takes 60 us; a program convolves with the same arguments again and again.
_known_spec = functools.lru_cache(maxsize=256)(_spec)


def check_slope(activation: Activation | None, given: bool) -> None:
    """Check that slopes are given for "prelu", and for nothing else.

    Raises:
        SpecError: they are missing, or not wanted.
    """
    wanted = activation is not None and activation.kind == "prelu"
    if wanted != given:
        raise SpecError(
            "activation is 'prelu' and slope is None; expected slope, an array (K,)"
            if wanted
            else f"slope is given, but the activation is {activation}; expected 'prelu'"
        )


def check_residual(planned: bool, given: bool) -> None:
    """Check that a run is given a residual if its plan adds one, and only then.

    Raises:
        InputError: it is missing, or not wanted.
    """
    if planned != given:
        raise InputError(
            "residual is None; expected an array, which the plan adds: plan(x, residual=…)"
            if planned
            else "residual is given; expected None, as the plan adds none: plan with residual=True"
        )


def extents_of(label: str, shape: object) -> tuple[int, ...]:
    """A shape as integers.

    Raises:
        SpecError: it is no shape.
    """
    if not isinstance(shape, str | bytes | Set | Mapping) and isinstance(shape, Iterable):
        try:
            return tuple(index(extent) for extent in shape)
        except TypeError:
            pass
    got = type(shape).__name__ if hasattr(shape, "dtype") else short(shape)
    raise SpecError(f"the shape of {label} is {got}; expected integers, such as {label}.shape")


def checked_groups(groups: int) -> int:
    """Return the number of groups of channels, checked.

    Raises:
        SpecError: it is no number of at least 1.
    """
    if isinstance(groups, Iterable) or min(numbers_of(groups, 1), default=0) < 1:
        raise SpecError(f"groups is {short(groups)}; expected an integer of at least 1")
    return index(groups)


def steps_per_axis(label: str, value: Steps, rank: int) -> tuple[int, ...]:
    """A number of at least 1 for each axis.

    Raises:
        SpecError: it is neither one, nor one for each.
    """
    values = numbers_of(value, rank)
    if len(values) != rank or min(values) < 1:
        raise SpecError(f"{label} is {short(value)}; expected {rank} integer(s) of at least 1")
    return values


def numbers_of(value: object, rank: int) -> tuple[int, ...]:
    """One integer repeated, or a sequence of them; empty if it is neither."""
    if isinstance(value, bool | bytes | Set | Mapping):  # without an order, or no numbers
        return ()
    try:
        if isinstance(value, Iterable):
            return tuple(index(v) for v in value)
        return (index(value),) * rank  # type: ignore[arg-type]
    except TypeError:
        return ()


def _padding(
    padding: Padding,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank = len(size)
    if isinstance(padding, str) and padding == "valid":
        return (0,) * rank, (0,) * rank
    if isinstance(padding, str) and padding == "same":
        totals = [
            max(0, (ceil_div(i, s) - 1) * s + effective_extent(k, d) - i)
            for i, k, s, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        begin = tuple(t // 2 for t in totals)
        return begin, tuple(t - b for t, b in zip(totals, begin, strict=True))
    if isinstance(padding, str):
        raise SpecError(f"padding is {padding!r}; expected 'same', 'valid' or integers")
    return paddings(padding, rank)


def paddings(padding: Padding, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding in numbers: at the begin and at the end of each axis.

    Raises:
        SpecError: it is none of the forms that are taken.
    """
    values = numbers_of(padding, rank)
    if len(values) == rank:
        values = values * 2
    if len(values) != 2 * rank or min(values) < 0:
        raise SpecError(
            f"padding is {short(padding)}; expected one integer of at least 0, {rank} (one for "
            f"each axis) or {2 * rank} (all begins, then all ends)"
        )
    return values[:rank], values[rank:]
