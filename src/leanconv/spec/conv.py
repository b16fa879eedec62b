"""`ConvSpec`: one convolution, and the only place for its sizes, operations and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from math import prod

from leanconv.errors import SpecError, short
from leanconv.records import dataclass, replace
from leanconv.spec.activation import Activation
from leanconv.spec.format import NHWC, PLAIN, Format, ceil_div
from leanconv.spec.requantise import Requantise
from leanconv.types import FLOAT32, INT8, INT32, SINGLE, UINT8, DType, Precision
from leanconv.units import shape_text

LAYOUTS = (PLAIN.order, NHWC.order)
_AXES = "dhw"
# Elements of one tensor, and what a stride, a dilation or a padding may be: offsets of elements,
# and of taps in the padding, stay inside 64 bits.
_LIMIT, _MOST_STEP = 2**48, 2**32


def effective_extent(kernel: int, dilation: int) -> int:
    """Input elements that a kernel spans along one axis (dilation 1 is dense)."""
    return (kernel - 1) * dilation + 1


def output_extent(size: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    """Outputs along one axis; `pad` is the sum of both ends. Zero or less means none fit."""
    return (size + pad - effective_extent(kernel, dilation)) // stride + 1


def reduction_length(group_inputs: int, kernel: Iterable[int]) -> int:
    """Products summed for one output, padding counted: C / groups by the taps of the kernel."""
    return group_inputs * prod(kernel)


def sum_flops(batch: int, out_channels: int, out: Iterable[int], reduction: int) -> int:
    """Floating point operations of the plain sum: two for each product, padding counted."""
    return 2 * batch * out_channels * prod(out) * reduction


def tensor_bytes(shape: Iterable[int], dtype: DType) -> int:
    """Bytes of the elements of a dense tensor."""
    return prod(shape) * dtype.bytes


def transposed_reach(size: int, kernel: int, stride: int, dilation: int, extra: int) -> int:
    """Outputs of a transposed convolution along one axis, `extra` added, none cut off."""
    return stride * (size - 1) + effective_extent(kernel, dilation) + extra


class Propagation(Enum):
    """What is computed of a convolution y = conv(x, w): y itself, or the gradient of its weights.

        forward    y  from x and w
        weights    dw from x and dy:  dw[k, c, t] = sum of dy[n, k, o] x[n, c, o·s + t·d - pad]

    The gradient of a convolution's data, dx from dy and w, is a transposed convolution by the same
    weights; that of a transposed convolution's data is a convolution: each goes forward. The
    gradient of a transposed convolution's weights is that of the convolution which leads from its
    output to its input.
    """

    FORWARD = "forward"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class ConvSpec:
    """One convolution with its epilogue: y = activation(conv(x, w) + bias + residual).

    Spatial tuples run over the axes in order (w), (h, w) or (d, h, w).

    Attributes:
        batch: images N.
        in_channels, out_channels: C and K.
        size: input extents.
        kernel: kernel extents.
        stride: steps between windows.
        dilation: steps between taps; 1 is dense.
        pad_begin, pad_end: zeros of padding before and after each axis.
        groups: channel groups; both channel counts are multiples of it.
        precision: the element types of operands and sums; float32 or float64 for all of them, on a
            GPU float16 and bfloat16 too.
        layout: `"NCHW"` or `"NHWC"`, of input, residual and output alike, whatever the rank.
        bias, residual: whether they are added.
        activation: applied last, or None.
        requantise: how sums of products of codes become codes or float32; None: they stay sums.
    """

    batch: int
    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]
    groups: int = 1
    precision: Precision = SINGLE
    layout: str = "NCHW"
    bias: bool = False
    residual: bool = False
    activation: Activation | None = None
    requantise: Requantise | None = None

    def __post_init__(self) -> None:
        self.__dict__["precision"] = Precision.of(self.precision)
        rank = len(self.size)
        if not 1 <= rank <= 3:
            raise _wrong(f"1 to 3 spatial axes, got {rank}")
        for label in ("kernel", "stride", "dilation", "pad_begin", "pad_end"):
            self._check_steps(label, getattr(self, label))
        for label in ("batch", "in_channels", "out_channels", "groups"):
            count = getattr(self, label)
            if count < 1:
                raise _wrong(f"{label} of at least 1, got {short(count)}")
            if count >= _LIMIT:
                raise _wrong(f"{label} below 2^48, got {short(count)}")
        if any(extent < 1 for extent in self.size):
            raise _wrong(f"input extents of at least 1, got {short(self.size)}")
        if any(extent >= _LIMIT for extent in self.size):
            raise _wrong(f"input extents below 2^48, got {short(self.size)}")
        for label in ("in_channels", "out_channels"):
            count = getattr(self, label)
            if count % self.groups:
                raise _wrong(f"{label} divisible by {self.groups} groups, got {count}")
        if self.layout not in LAYOUTS:
            raise _wrong(f"layout NCHW or NHWC, got {self.layout!r}")
        self._check_windows()
        self._check_requantise()
        for shape in (self.input_shape, self.weight_shape, self.output_shape):
            if prod(shape) >= _LIMIT:
                raise _wrong(f"tensors of fewer than 2^48 elements, got {shape_text(shape)}")

    def _check_steps(self, label: str, values: tuple[int, ...]) -> None:
        rank, least = len(self.size), 0 if label.startswith("pad") else 1
        if len(values) != rank:
            raise _wrong(f"{label} with {rank} value(s), got {short(values)}")
        if min(values) < least:
            raise _wrong(f"{label} of at least {least}, got {short(values)}")
        if max(values) > _MOST_STEP:
            raise _wrong(f"{label} of at most 2^32, got {short(values)}")

    def _check_windows(self) -> None:
        for axis, extent in enumerate(self.output_size):
            if extent < 1:
                span = effective_extent(self.kernel[axis], self.dilation[axis])
                padded = self.size[axis] + self.pad_begin[axis] + self.pad_end[axis]
                raise _wrong(
                    f"a kernel that fits the padded input, got {span} over {padded} on axis {axis}"
                )

    def _check_requantise(self) -> None:
        if self.requantise is None:
            return
        types = self.precision
        if types.accumulate != INT32 or types.y not in (INT8, UINT8, FLOAT32) or self.activation:
            raise _wrong(
                "sums in int32 that become int8, uint8 or float32, without an activation, got "
                f"{types} and {self.activation or 'none'}"
            )
        if self.residual and types.y == FLOAT32:
            raise _wrong("codes where a residual of codes is added, got float32")

    # -- shapes ----------------------------------------------------------------------------
    @property
    def format(self) -> Format:
        """Memory layout of input, residual and output."""
        return Format.of_layout(self.layout)

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output extents."""
        axes = zip(
            self.size,
            self.kernel,
            self.stride,
            self.dilation,
            self.pad_begin,
            self.pad_end,
            strict=True,
        )
        return tuple(output_extent(i, k, s, d, b + e) for i, k, s, d, b, e in axes)

    def _shape(self, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
        return self.format.physical_shape((self.batch, channels, *spatial))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of x in the spec's layout."""
        return self._shape(self.in_channels, self.size)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of y in the spec's layout."""
        return self._shape(self.out_channels, self.output_size)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of w: (K, C / groups, kernel…), whatever the layout."""
        return (self.out_channels, self.in_channels // self.groups, *self.kernel)

    # -- amounts ---------------------------------------------------------------------------
    @property
    def dtype(self) -> DType:
        """The one element type of everything.

        Raises:
            SpecError: operands have types of their own.
        """
        return self.precision.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element of everything."""
        return self.dtype.bytes

    @property
    def reduction(self) -> int:
        """Products summed for one output, padding counted."""
        return reduction_length(self.in_channels // self.groups, self.kernel)

    @property
    def flops(self) -> int:
        """Floating point operations of the plain sum: two for each product, padding counted."""
        return sum_flops(self.batch, self.out_channels, self.output_size, self.reduction)

    @property
    def input_bytes(self) -> int:
        """Bytes of x."""
        return tensor_bytes(self.input_shape, self.precision.x)

    @property
    def weight_bytes(self) -> int:
        """Bytes of w as given."""
        return tensor_bytes(self.weight_shape, self.precision.w)

    @property
    def output_bytes(self) -> int:
        """Bytes of y."""
        return tensor_bytes(self.output_shape, self.precision.y)

    # -- the problem as one line -----------------------------------------------------------
    def __str__(self) -> str:
        parts = []
        if self.groups != 1:
            parts.append(f"g{self.groups}")
        parts.append(f"mb{self.batch}ic{self.in_channels}")
        axes = _AXES[-len(self.size) :]
        parts += [f"i{a}{v}" for a, v in zip(axes, self.size, strict=True)]
        parts.append(f"oc{self.out_channels}")
        parts += [f"o{a}{v}" for a, v in zip(axes, self.output_size, strict=True)]
        for letter, values, usual in (
            ("k", self.kernel, None),
            ("s", self.stride, 1),
            ("p", self.pad_begin, None if self._pads_unevenly else 0),
            ("d", tuple(d - 1 for d in self.dilation), 0),
        ):
            if usual is None or any(v != usual for v in values):
                parts += [f"{letter}{a}{v}" for a, v in zip(axes, values, strict=True)]
        return "".join(parts)

    @property
    def padding_text(self) -> str:
        """The padding as people read it: `padding 1x1`; both sides where they differ."""
        begin, end = shape_text(self.pad_begin), shape_text(self.pad_end)
        if not any((*self.pad_begin, *self.pad_end)):
            return "no padding"
        return f"padding {begin}" + ("" if begin == end else f" before, {end} after")

    @property
    def _pads_unevenly(self) -> bool:
        """True if a problem's line without padding would be read as padded."""
        columns = (self.output_size, self.stride, self.kernel, self.dilation, self.size)
        axes = zip(*columns, strict=True)
        return any((o - 1) * s + effective_extent(k, d) - i > 0 for o, s, k, d, i in axes)

    @staticmethod
    def parse(problem: str, **changes: object) -> ConvSpec:
        """Read a problem in oneDNN's form, such as `ic64ih56oc64oh54kh3`.

        `mb` and `g` default to 1, strides to 1, dilations to 0 (oneDNN's dense); a missing width
        is the height, a missing depth leaves the problem two-dimensional. Padding that is not
        given follows from the output's size, split evenly; a trailing `n…` names the problem.

        Args:
            problem: the line.
            changes: other fields of the spec, and `dtype`: that of everything, or its name.

        Raises:
            SpecError: the line cannot be read or describes no convolution.
        """
        if "dtype" in changes:
            changes["precision"] = Precision.of(changes.pop("dtype"))
        return replace(_parse(problem), **changes)  # type: ignore[arg-type]


def _wrong(expected: str) -> SpecError:
    return SpecError(f"not a convolution: expected {expected}")


_TOKEN = re.compile(r"(mb|g|ic|oc|[ioksdp][dhw])(\d{1,15})(?!\d)")


def _parse(problem: str) -> ConvSpec:
    found = _tokens(problem)
    for key in ("ic", "oc"):
        if key not in found:
            raise SpecError(f"problem {problem!r} lacks {key}; expected {key} and a number")
    present = {a for a in _AXES if f"i{a}" in found or f"k{a}" in found or f"o{a}" in found}
    if "h" in present:
        present.add("w")
    if "d" in present:
        present |= {"h", "w"}
    if not present:
        raise SpecError(f"problem {problem!r} lacks spatial sizes; expected some, such as ih56kh3")
    axes = [_axis(problem, found, axis) for axis in _AXES if axis in present]
    size, kernel, stride, dilation, begin, end = (tuple(c) for c in zip(*axes, strict=True))
    return ConvSpec(
        batch=found.get("mb", 1),
        in_channels=found["ic"],
        out_channels=found["oc"],
        size=size,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pad_begin=begin,
        pad_end=end,
        groups=found.get("g", 1),
    )


def _tokens(problem: str) -> dict[str, int]:
    """The numbers of a line by their keys: `{"ic": 64, "ih": 56, …}`."""
    found: dict[str, int] = {}
    position, text = 0, problem.strip()
    while position < len(text) and text[position] != "n":
        if text[position] == "_":
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            raise SpecError(
                f"problem {short(problem)} cannot be read at {short(text[position:])}; "
                "expected a line such as ic64ih56oc64oh54kh3"
            )
        if match[1] in found:
            raise SpecError(f"problem {problem!r} gives {match[1]} twice; expected it once")
        found[match[1]] = int(match[2])
        position = match.end()
    return found


def _axis(problem: str, found: Mapping[str, int], axis: str) -> tuple[int, int, int, int, int, int]:
    """Size, kernel, stride, dilation, and padding at both ends of one axis.

    What is not given for an axis is taken from the height, then the depth, then the width.
    """

    def get(letter: str) -> int | None:
        keys = (f"{letter}{source}" for source in (axis, "h", "d", "w"))
        return next((found[key] for key in keys if key in found), None)

    size, out, kernel, pad = get("i"), get("o"), get("k"), get("p")
    stride, extra = get("s"), get("d")
    stride, dilation = 1 if stride is None else stride, (extra or 0) + 1
    if kernel is None or (size is None and out is None):
        raise SpecError(
            f"problem {problem!r} lacks k{axis} or i{axis}; expected k{axis} with i{axis} or "
            f"o{axis}"
        )
    if stride < 1:
        raise SpecError(f"problem {problem!r} has a stride of 0; expected s{axis} of at least 1")
    span = effective_extent(kernel, dilation)
    if size is None:
        assert out is not None
        size = (out - 1) * stride + span - 2 * (pad or 0)
    needed = 0 if out is None else (out - 1) * stride + span - size
    begin = pad if pad is not None else max(0, needed) // 2
    end = begin if out is None else max(0, needed - begin)
    follows = output_extent(size, kernel, stride, dilation, begin + end)
    if out is not None and follows != out:
        raise SpecError(
            f"problem {problem!r}: o{axis}{out} does not follow from the rest; expected "
            f"o{axis}{follows}, or leave it out"
        )
    return size, kernel, stride, dilation, begin, end


__all__ = ["ConvSpec", "ceil_div", "effective_extent", "output_extent"]
