"""Extents of the sliding windows that `spec` does not know: rounded up, transposed, SAME."""

from __future__ import annotations

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes
from leanconv.spec.conv import effective_extent, output_extent, transposed_reach


def window_steps(attributes: Attributes) -> list[tuple[int, int, int, int]]:
    """Stride, dilation, padding before and after of each spatial axis; see `check_window`."""
    pads, spatial = attributes["pads"], len(attributes["strides"])
    ends = (pads[:spatial], pads[spatial:])
    return list(zip(attributes["strides"], attributes["dilations"], *ends, strict=True))


def window_extent(
    extent: int, kernel: int, stride: int, dilation: int, before: int, after: int, ceil: bool
) -> int:
    """How many windows fit along one axis.

    With `ceil` a last, partly empty window counts as well, be it the only one, unless it would
    begin in the padding behind the input (the rule of PyTorch and of ONNX since opset 22).

    Raises:
        ModelError: not even one window fits.
    """
    count = output_extent(extent, kernel, stride, dilation, before + after)
    if ceil:
        covered = (count - 1) * stride + effective_extent(kernel, dilation)
        if covered < extent + before + after and count * stride < extent + before:
            count += 1
    if count < 1:
        raise ModelError(
            f"a kernel of extent {kernel} (dilation {dilation}) does not fit an input of extent "
            f"{extent} padded by {before} and {after}; bind a larger input"
        )
    return count


def transposed_extent(
    extent: int, kernel: int, stride: int, dilation: int, before: int, after: int, extra: int
) -> int:
    """The output extent of a transposed convolution along one axis.

    Raises:
        ModelError: the padding leaves nothing.
    """
    count = transposed_reach(extent, kernel, stride, dilation, extra) - before - after
    if count < 1:
        raise ModelError(
            f"a transposed convolution of an input of extent {extent} (kernel {kernel}, stride "
            f"{stride}) cut by {before} and {after} leaves an extent of {count}; expected at "
            "least 1; bind a larger input"
        )
    return count


def same_padding(
    extent: int, kernel: int, stride: int, dilation: int, upper: bool
) -> tuple[int, int]:
    """The padding before and after that makes ceil(extent / stride) windows.

    With `upper` the odd one comes after the input (SAME_UPPER), otherwise before it.
    """
    windows = -(-extent // stride)
    total = max((windows - 1) * stride + effective_extent(kernel, dilation) - extent, 0)
    small = total // 2
    return (small, total - small) if upper else (total - small, small)
