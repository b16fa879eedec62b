"""The memory layout of windows: rows, and segments of contiguous elements."""

from __future__ import annotations

from math import prod

from leanconv.gpu.launch import divisor
from leanconv.records import dataclass, replace
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div


@dataclass(frozen=True)
class Depth:
    """A third axis in front of the two of `Windows`.

    Attributes:
        extent, outputs: planes of the input and of the output.
        window_h: rows of a window in one plane.
        stride, pad, dilation: in planes.
        x_stride: elements from one plane to the next.
    """

    extent: int = 1
    outputs: int = 1
    window_h: int = 1
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    x_stride: int = 0


_FLAT = Depth()
_WORTH = 0.9  # of the steps, that the divisions for windows without gaps are worth


@dataclass(frozen=True)
class Windows:
    """The input of an implicit GEMM; see `kernels.gemm`.

    Attributes:
        images, out_h, out_w: rows are numbered over these, the last one fastest.
        height, width: of the input, for the padding.
        stride, pad, dilation: in cells, (h, w).
        x_strides: of an image, a row and a cell of the input, in elements.
        channels: elements from one group to the next.
        groups: GEMMs side by side.
        segments, length, taps: runs of contiguous elements, their length, and how many of them
            belong to one row of the window.
        checked: whether a window may reach outside the input.
        by_row: whether a segment is a whole row of the window, or several.
        depth: the third axis.
        run: contiguous elements of a segment of several rows of the window, 0 for one row.
    """

    images: int
    out_h: int
    out_w: int
    height: int
    width: int
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    x_strides: tuple[int, int, int]
    channels: int
    groups: int
    segments: int
    length: int
    taps: int
    checked: bool
    by_row: bool
    depth: Depth = _FLAT
    run: int = 0

    @property
    def rows(self) -> int:
        """Output positions."""
        return self.images * self.depth.outputs * self.out_h * self.out_w

    @property
    def has_depth(self) -> bool:
        """True if windows have a third axis."""
        return self.depth != _FLAT

    @property
    def contiguous(self) -> int:
        """Elements that one load may bring: the divisor of all places where a run begins."""
        return divisor(*self.x_strides, self.depth.x_stride, self.channels, self.run or self.length)

    def steps(self, block: int) -> int:
        """Steps of the loop over k, `block` elements each."""
        return self.segments * ceil_div(self.length, block)


def at_least_2d(spec: ConvSpec) -> ConvSpec:
    """A convolution with two spatial axes or more: the first of extent 1 if it had one."""
    if len(spec.size) > 1:
        return spec
    return replace(
        spec,
        size=(1, *spec.size),
        kernel=(1, *spec.kernel),
        stride=(1, *spec.stride),
        dilation=(1, *spec.dilation),
        pad_begin=(0, *spec.pad_begin),
        pad_end=(0, *spec.pad_end),
    )


def conv_windows(spec: ConvSpec, block: int) -> Windows:
    """The windows of a convolution of a channels-last input, read in place.

    Args:
        spec: with one to three spatial axes.
        block: elements of one step, by which the shorter of both forms is chosen.
    """
    spec = at_least_2d(spec)
    height, width = spec.size[-2:]
    kernel_w = spec.kernel[-1]
    channels, each = spec.in_channels, spec.in_channels // spec.groups
    out_h, out_w = spec.output_size[-2:]
    ends = ((o - 1) * s + (k - 1) * d + 1 - b for o, s, k, d, b in _axes(spec))
    checked = any(spec.pad_begin) or any(e > i for e, i in zip(ends, spec.size, strict=True))
    by_tap = Windows(
        images=spec.batch,
        out_h=out_h,
        out_w=out_w,
        height=height,
        width=width,
        stride=(spec.stride[-2], spec.stride[-1]),
        pad=(spec.pad_begin[-2], spec.pad_begin[-1]),
        dilation=(spec.dilation[-2], spec.dilation[-1]),
        x_strides=(prod(spec.size) * channels, width * channels, channels),
        channels=each,
        groups=spec.groups,
        segments=prod(spec.kernel),
        length=each,
        taps=kernel_w,
        checked=checked,
        by_row=False,
        depth=_depth(spec),
    )
    if spec.groups > 1 or (spec.dilation[-1] > 1 and kernel_w > 1):
        return by_tap
    by_row = replace(
        by_tap, segments=prod(spec.kernel[:-1]), length=kernel_w * channels, taps=1, by_row=True
    )
    best = by_row if by_row.steps(block) < by_tap.steps(block) or not checked else by_tap
    whole = replace(by_row, segments=1, length=prod(spec.kernel) * channels, run=by_row.length)
    # Few channels: rows of windows filled up to whole steps would be zeros for the most part.
    fewer = whole.steps(block) <= _WORTH * best.steps(block)
    return whole if fewer and not best.has_depth and spec.kernel[0] > 1 else best


def _depth(spec: ConvSpec) -> Depth:
    if len(spec.size) == 2:
        return _FLAT
    return Depth(
        extent=spec.size[0],
        outputs=spec.output_size[0],
        window_h=spec.kernel[1],
        stride=spec.stride[0],
        pad=spec.pad_begin[0],
        dilation=spec.dilation[0],
        x_stride=prod(spec.size[1:]) * spec.in_channels,
    )


def _axes(spec: ConvSpec) -> list[tuple[int, int, int, int, int]]:
    columns = (spec.output_size, spec.stride, spec.kernel, spec.dilation, spec.pad_begin)
    return list(zip(*columns, strict=True))


def unfolded_windows(
    images: int,
    out_h: int,
    out_w: int,
    strides: tuple[int, int, int],
    length: int,
    groups: int = 1,
    group_stride: int = 0,
) -> Windows:
    """Windows that are contiguous in an unfolded tensor, one segment each.

    Args:
        images, out_h, out_w: rows.
        strides: elements from one image, output row and output column to the next.
        length: elements of a window.
        groups, group_stride: GEMMs side by side, and elements from one to the next.
    """
    return Windows(
        images=images,
        out_h=out_h,
        out_w=out_w,
        height=out_h,
        width=out_w,
        stride=(1, 1),
        pad=(0, 0),
        dilation=(1, 1),
        x_strides=strides,
        channels=group_stride,
        groups=groups,
        segments=1,
        length=length,
        taps=1,
        checked=False,
        by_row=False,
    )


def in_place_windows(spec: ConvSpec) -> bool:
    """Return whether a convolution is a matrix product with its input: 1x1, not padded."""
    return prod(spec.kernel) == 1 and not any((*spec.pad_begin, *spec.pad_end))
