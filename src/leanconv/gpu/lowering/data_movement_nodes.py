"""Operations that move elements, and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from leanconv.gpu.launch import (
    Launch,
    Pointer,
    blocks,
    by_axis,
    copy_box,
    dense_strides,
    divisor,
    fill,
    is_wide,
    make_launch,
    permute,
)
from leanconv.gpu.lowering.lowering_context import Handlers, LoweringContext, strides_in
from leanconv.graph.edit import part_nodes
from leanconv.graph.ir import Node
from leanconv.graph.ops import resample
from leanconv.graph.ops.resize import linear_cells, nearest_cells
from leanconv.spec import NHWC, PLAIN
from leanconv.types import INT32

_BLOCK = 512
HANDLERS = Handlers()


@HANDLERS.of("Reshape")
def lower_reshape(context: LoweringContext, node: Node) -> None:
    """A view of the same bytes."""
    context.view(node.output, context.read(node.inputs[0], PLAIN), PLAIN)


@HANDLERS.of("Transpose")
def lower_transpose(context: LoweringContext, node: Node) -> None:
    """Lower a Transpose."""
    x, y = context.read(node.inputs[0], PLAIN), context.define(node.output, PLAIN)
    shape = context.shape(node.inputs[0])
    context.launch(node, "copy", permute(x, y, context.dtype, shape, node.attributes["perm"]))


@HANDLERS.of("Expand")
def lower_expand(context: LoweringContext, node: Node) -> None:
    """Lower an Expand: strides of zero."""
    shape = context.shape(node.output)
    x, y = context.read(node.inputs[0], PLAIN), context.define(node.output, PLAIN)
    steps = strides_in(context.shape(node.inputs[0]), shape)
    launch = copy_box(x, y, context.dtype, shape, steps, dense_strides(shape))
    context.launch(node, "copy", launch)


@HANDLERS.of("Concat")
def lower_concat(context: LoweringContext, node: Node) -> None:
    """Every part is copied to its place."""
    result = node.output
    forms = [context.form(n) for n in node.inputs if not context.is_constant(n)]
    form = NHWC if NHWC in forms else PLAIN
    shape = context.physical(result, form)
    axis = form.axes(len(shape)).index(node.attributes["axis"])
    target = dense_strides(shape)
    sources = [context.read(name, form) for name in node.inputs]
    y = context.define(result, form)
    launches, start = [], 0
    for name, x in zip(node.inputs, sources, strict=True):
        part = context.physical(name, form)
        if prod(part):
            steps = dense_strides(part)
            launches.append(copy_box(x, y, context.dtype, part, steps, target, 0, start))
        start += part[axis] * target[axis]
    context.launch(node, "copy", *launches)


@HANDLERS.of("Slice")
def lower_slice(context: LoweringContext, node: Node) -> None:
    """A box of the source, with steps that may be negative."""
    source = node.inputs[0]
    form = context.form(source)
    strides = dense_strides(context.physical(source, form))
    x, y = context.read(source, form), context.define(node.output, form)
    box = context.physical(node.output, form)
    rank, start, steps = len(box), 0, [0] * len(box)
    for axis, (first, step) in enumerate(
        zip(node.attributes["starts"], node.attributes["steps"], strict=True)
    ):
        place = form.axes(rank).index(axis)
        start += first * strides[place]
        steps[place] = step * strides[place]
    context.launch(
        node, "copy", copy_box(x, y, context.dtype, box, steps, dense_strides(box), start)
    )


@HANDLERS.of("Split")
def lower_split(context: LoweringContext, node: Node) -> None:
    """A copy for each part."""
    for part in part_nodes(node, context.shape(node.inputs[0])):
        lower_slice(context, part)


def mix_cells(
    context: LoweringContext,
    x: str,
    y: str,
    shape: Sequence[int],
    axis: int,
    cells: np.ndarray,
    weights: np.ndarray,
) -> Launch:
    """One launch that mixes cells (size, taps) along an axis of a dense tensor."""
    dtype, (size, taps) = context.dtype, cells.shape
    inner, outer = prod(shape[axis + 1 :]), prod(shape[:axis])
    table = context.fresh(f"{y}/cells{axis}")
    context.constants[table] = np.ascontiguousarray(cells, np.int32)
    shares = context.constant(f"{y}/weights{axis}", weights)
    count = outer * size * inner
    return make_launch(
        "data_movement.mix_cells",
        (blocks(count, _BLOCK),),
        {
            "x": Pointer(x, dtype),
            "cells": Pointer(table, INT32),
            "weights": Pointer(shares, dtype),
            "y": Pointer(y, dtype),
            "count": count,
            "extent": shape[axis],
            "size": size,
            "inner": inner,
        },
        {
            "TAPS": taps,
            "BLOCK": _BLOCK,
            "WIDE": is_wide(count, prod(shape)),
            "ACC": dtype.accumulator,
        },
        writes="y",
        flops=2 * taps * count,
    )


def _along_axes(
    context: LoweringContext,
    node: Node,
    tables: Mapping[int, tuple[np.ndarray, np.ndarray]],
    name: str,
) -> None:
    """Mix cells along one axis after the other; `tables` by logical axis."""
    source, result = node.inputs[0], node.output
    form = context.form(source)
    shape = list(context.physical(source, form))
    x, y = context.read(source, form), context.define(result, form)
    if not tables:
        count = (prod(shape),)
        context.launch(node, "copy", copy_box(x, y, context.dtype, count, (1,), (1,)))
        return
    launches = []
    for number, (axis, (cells, weights)) in enumerate(tables.items()):
        place = form.axes(len(shape)).index(axis)
        grown = [*shape[:place], len(cells), *shape[place + 1 :]]
        size = prod(grown) * context.dtype.bytes
        to = y if number == len(tables) - 1 else context.buffer(f"{y}/part{number}", size)
        launches.append(mix_cells(context, x, to, shape, place, cells, weights))
        x, shape = to, grown
    context.launch(node, name, *launches)


@HANDLERS.of("Resize")
def lower_resize(context: LoweringContext, node: Node) -> None:
    """Both modes are separable: one axis after the other, as the graph's own interpreter."""
    attributes, tables = node.attributes, {}
    mode = attributes["coordinate_transformation_mode"]
    extents = context.shape(node.inputs[0])
    axes = zip(extents, attributes["sizes"], attributes["scales"], strict=True)
    for axis, (extent, size, scale) in enumerate(axes):
        if size == extent and scale == 1:
            continue
        if attributes["mode"] == "nearest":
            cells = nearest_cells(extent, size, scale, mode, attributes["nearest_mode"])[:, None]
            tables[axis] = cells, np.ones(cells.shape)
        else:
            tables[axis] = linear_cells(extent, size, scale, mode)
    _along_axes(context, node, tables, "resize")


@HANDLERS.of("Resample")
def lower_resample(context: LoweringContext, node: Node) -> None:
    """The windows of one axis after the other."""
    tables, shape = {}, context.shape(node.inputs[0])
    for axis in resample.order(node.attributes):
        first, weights = resample.window(node.attributes, axis, shape[axis])
        tables[axis] = first[:, None] + np.arange(weights.shape[1]), weights
    _along_axes(context, node, tables, "resample")


@HANDLERS.of("Pad")
def lower_pad(context: LoweringContext, node: Node) -> None:
    """Constant padding fills and copies; reflection and the edge read other cells."""
    source, result, attributes = node.inputs[0], node.output, node.attributes
    shape, rank = context.shape(source), len(context.shape(source))
    pads = list(zip(attributes["pads"][:rank], attributes["pads"][rank:], strict=True))
    if attributes["mode"] != "constant":
        tables = {}
        for axis, (extent, (before, after)) in enumerate(zip(shape, pads, strict=True)):
            if before or after:
                cells = np.pad(np.arange(extent), (before, after), mode=attributes["mode"])
                tables[axis] = cells[:, None], np.ones((cells.size, 1))
        _along_axes(context, node, tables, "pad")
        return
    form = context.form(source)
    x, y = context.read(source, form), context.define(result, form)
    box, whole = context.physical(source, form), context.physical(result, form)
    target = dense_strides(whole)
    start = sum(
        before * target[form.axes(rank).index(axis)] for axis, (before, _) in enumerate(pads)
    )
    dtype = context.dtype
    launches = [fill(y, dtype, prod(whole), attributes["value"])]
    if prod(box):
        launches.append(copy_box(x, y, dtype, box, dense_strides(box), target, 0, start))
    context.launch(node, "copy", *launches)


@HANDLERS.of("MaxPool", "AveragePool")
def lower_pool(context: LoweringContext, node: Node) -> None:
    """One launch over (h, w); with a third axis the others first, then that one alone."""
    source, result, attributes = node.inputs[0], node.output, node.attributes
    images, channels, *size = context.shape(source)
    out = list(context.shape(result)[2:])
    rank = len(size)
    window = [
        (
            attributes["kernel_shape"][i],
            attributes["strides"][i],
            attributes["pads"][i],
            attributes["pads"][rank + i],
            attributes["dilations"][i],
        )
        for i in range(rank)
    ]
    none = (1, 1, 0, 0, 1)
    x, y = context.read(source, NHWC), context.define(result, NHWC)
    pool = partial(_pool, context, node, channels)
    if rank == 1:
        window, size, out = [none, *window], [1, *size], [1, *out]
    if rank <= 2:
        launches = [pool(x, y, images, size, out, window)]
    else:
        held = images * size[0] * out[1] * out[2] * channels * context.dtype.bytes
        part = context.buffer(f"{y}/part", held)
        planes, area = images * size[0], out[1] * out[2]
        launches = [
            pool(x, part, planes, size[1:], out[1:], window[1:]),
            pool(part, y, images, (size[0], area), (out[0], area), (window[0], none)),
        ]
    context.launch(node, "pool", *launches)


def _pool(
    context: LoweringContext,
    node: Node,
    channels: int,
    x: str,
    y: str,
    images: int,
    size: Sequence[int],
    out: Sequence[int],
    window: Sequence[tuple[int, int, int, int, int]],
) -> Launch:
    kernel, stride, begin, end, dilation = zip(*window, strict=True)
    padded = bool(node.attributes["count_include_pad"])
    positions, dtype = images * out[0] * out[1], context.dtype
    tile_c = 64 if channels >= 64 else 32
    return make_launch(
        "data_movement.pool",
        (blocks(positions, 16), blocks(channels, tile_c)),
        {
            "x": Pointer(x, dtype),
            "y": Pointer(y, dtype),
            "positions": positions,
            "height": size[0],
            "width": size[1],
            **by_axis(out=out),
            "channels": channels,
            **by_axis(kernel=kernel, stride=stride, pad=begin, dilation=dilation),
            "low_h": -begin[0] if padded else 0,
            "high_h": size[0] + (end[0] if padded else 0),
            "low_w": -begin[1] if padded else 0,
            "high_w": size[1] + (end[1] if padded else 0),
        },
        {"BM": 16, "BC": tile_c, "IS_MAX": node.op == "MaxPool", "ACC": dtype.accumulator},
        writes="y",
        divisible={"channels": divisor(channels)},
        flops=positions * channels * prod(kernel),
    )
