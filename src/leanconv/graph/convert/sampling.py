"""Reading images between their pixels: the forms of all opsets to the normal form."""

from __future__ import annotations

import math

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.windows import grouped_product, with_bias
from leanconv.graph.ops.base import Array, check_rank
from leanconv.graph.ops.sampling import PADDINGS
from leanconv.graph.value import Value
from leanconv.types import INT64
from leanconv.units import shape_text

_RUNS = (16, 8, 4, 2, 1)  # blocks of channels
_LINE_BYTES = 32  # in which NumPy works for each cell of an axis of a grid
_OLDER = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample(call: Call) -> list[Value]:
    """The places of all images become one matrix, which no format changes."""
    x, grid = call.value(), call.value(1)
    check_rank(x.type, 3, 5)
    axes = len(x.shape) - 2
    fits = len(grid.shape) == axes + 2 and grid.shape[0] == x.shape[0]
    if not fits or grid.shape[-1] != axes:
        raise ModelError(
            f"got the grid {grid.type} of {x.type}; expected {axes} numbers for each place of each "
            "image"
        )
    mode = call.attribute("mode", "linear" if call.opset >= 20 else "bilinear")
    padding, sizes = call.attribute("padding_mode", "zeros"), grid.shape[1:-1]
    if _OLDER.get(mode, mode) not in ("nearest", "linear", "cubic") or padding not in PADDINGS:
        raise ModelError(
            f"got mode {mode!r} and padding_mode {padding!r}; expected nearest, linear or cubic, "
            f"and one of {', '.join(PADDINGS)}"
        )
    grid = call.cast(grid, x.type.dtype)
    places = call.reshape(grid, (math.prod(grid.shape[:-1]), axes))
    y = call.emit(
        "GridSample",
        [x, places],
        mode=_OLDER.get(mode, mode),
        padding_mode=padding,
        align_corners=call.flag("align_corners"),
        sizes=sizes,
    )
    return [y]


def _affine_grid(call: Call) -> list[Value]:
    """The places of a regular grid, moved by a matrix for each image."""
    theta, size = call.value(), call.integers(1)
    axes, align = len(size) - 2, call.flag("align_corners")
    if axes not in (2, 3) or theta.shape != (size[0], axes, axes + 1):
        raise ModelError(
            f"got {theta.type} for images of shape {shape_text(size)}; expected a matrix of "
            "2x3 or 3x4 for each"
        )
    out = size[2:]

    def grid() -> Array:
        made = np.ones((*out, axes + 1), theta.type.dtype)
        for axis, extent in enumerate(out):
            shape = [-1 if i == axis else 1 for i in range(axes)]
            made[..., axes - 1 - axis] = _line(int(extent), align).reshape(shape)
        return made.reshape(-1, axes + 1)

    shape, working = (math.prod(out), axes + 1), _LINE_BYTES * int(max(out))
    base = call.fold(grid, shape, theta.type.dtype, working)
    turned = call.emit("Transpose", [theta], perm=(0, 2, 1))
    return [call.reshape(call.emit("MatMul", [base, turned]), (size[0], *out, axes))]


def _line(extent: int, align: bool) -> Array:
    """The middles of cells from -1 to 1; of the outer ones, where these are aligned.

    Of one cell ONNX says nothing, ONNX Runtime has it at 1 and PyTorch at 0.
    """
    if align:
        return np.linspace(-1, 1, extent) if extent > 1 else np.ones(extent)
    return (2 * np.arange(extent) + 1) / extent - 1


def _deform_conv(call: Call) -> list[Value]:
    """Make channels of windows, in runs that blocks of channels divide; then one pixel each."""
    x, w, offset = call.value(), call.value(1), call.value(2)
    check_rank(x.type, 4, 4)
    check_rank(w.type, 4, 4, "input 1")
    group, groups = call.attribute("group", 1), call.attribute("offset_group", 1)
    kernel = tuple(call.attribute("kernel_shape", w.shape[2:]))
    channels, own = x.shape[1], w.shape[1]
    fits = group >= 1 and groups >= 1 and channels == own * group and not w.shape[0] % group
    if not fits or channels % groups or kernel != w.shape[2:] or min(w.shape) < 1:
        raise ModelError(
            f"got {x.type} and the weight {w.type} with group {group}, offset_group {groups} and "
            f"kernel_shape {kernel}; expected channels, groups and kernel to fit"
        )
    run = next(each for each in _RUNS if own % each == 0 and channels // groups % each == 0)
    window = {
        "kernel_shape": kernel,
        "strides": tuple(call.attribute("strides", (1, 1))),
        "pads": tuple(call.attribute("pads", (0,) * 4)),
        "dilations": tuple(call.attribute("dilations", (1, 1))),
    }
    places = offset.shape[2:]
    operands = [x, call.reshape(offset, (math.prod(offset.shape[:2]), math.prod(places)))]
    mask = call.optional(4)
    if mask is not None:
        operands.append(call.reshape(mask, (math.prod(mask.shape[:2]), math.prod(places))))
    columns = call.emit("DeformColumns", operands, **window, offset_group=groups, run=run)
    taps = math.prod(kernel)
    weight = call.reshape(w, (w.shape[0], own // run, run, taps))
    weight = call.emit("Transpose", [weight], perm=(0, 1, 3, 2))
    bias, held = call.optional(3), (w, call.optional(3))
    if any(each is not None and each.array is None for each in held):
        y = grouped_product(call, columns, call.reshape(weight, (w.shape[0], own * taps)), group)
        return [with_bias(call, y, bias)]
    weight = call.reshape(weight, (w.shape[0], own * taps, 1, 1))
    attributes = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": group}
    return [call.emit("Conv", [columns, weight, bias], **attributes, activation=None)]


def _roi_align(call: Call) -> list[Value]:
    x, regions, images = call.value(), call.value(1), call.value(2)
    if not images.type.dtype.is_integer:
        raise ModelError(f"input 2 is {images.type}; expected integers")
    default = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    place = call.attribute("coordinate_transformation_mode", default)
    if place not in ("half_pixel", "output_half_pixel"):
        raise ModelError(
            f"coordinate_transformation_mode is {place!r}; expected half_pixel or output_half_pixel"
        )
    regions = call.cast(regions, x.type.dtype)
    images = call.cast(images, INT64)
    y = call.emit(
        "RoiAlign",
        [x, regions, images],
        mode=call.attribute("mode", "avg"),
        half_pixel=place == "half_pixel",
        sampling_ratio=call.attribute("sampling_ratio", 0),
        spatial_scale=call.attribute("spatial_scale", 1.0),
        sizes=(call.attribute("output_height", 1), call.attribute("output_width", 1)),
    )
    return [y]


RULES: dict[str, Rule] = {
    "RoiAlign": Rule(
        _roi_align,
        {
            "mode": "string",
            "output_height": "int",
            "output_width": "int",
            "sampling_ratio": "int",
            "spatial_scale": "float",
            "coordinate_transformation_mode": "string",
        },
        3,
        3,
        running=None,
        since=10,
    ),
    "AffineGrid": Rule(_affine_grid, {"align_corners": "int"}, 2, 2, since=20),
    "DeformConv": Rule(
        _deform_conv,
        {
            "dilations": "ints",
            "group": "int",
            "kernel_shape": "ints",
            "offset_group": "int",
            "pads": "ints",
            "strides": "ints",
        },
        3,
        5,
        running=None,
        since=19,
        products=True,
    ),
    "GridSample": Rule(
        _grid_sample,
        {"mode": "string", "padding_mode": "string", "align_corners": "int"},
        2,
        2,
        running=None,
        since=16,
    ),
}
