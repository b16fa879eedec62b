"""Nodes that compute: elementwise, reductions, normalisations, matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.gpu.launch import (
    Launch,
    Pointer,
    blocks,
    box_arguments,
    dense_strides,
    divisor,
    is_wide,
    make_launch,
    merged,
)
from leanconv.gpu.lowering.lowering_context import Handlers, LoweringContext, strides_in
from leanconv.graph.ir import Node
from leanconv.graph.ops import BINARY, OPS, UNARY, label
from leanconv.graph.ops.pointwise import CIRCULAR, HYPERBOLIC, activation_of
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.types import FLOAT32, FLOAT64, DType
from leanconv.units import shape_text

# Of which `arithmetic.compute` has no code.
_LACKING = frozenset(("Sign", "Floor", "Ceil", "Round", *CIRCULAR, *HYPERBOLIC))
# How `arithmetic.reduce_axis` combines.
_REDUCED = [(how, "") for how in ("mean", "sum", "max", "min")]
_BLOCK = 512
HANDLERS = Handlers()


def elementwise(
    context: LoweringContext,
    op: str,
    a: str,
    b: str,
    y: str,
    shape: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
    kind: str = "",
    numbers: tuple[float, float] = (0.0, 0.0),
) -> Launch:
    """One launch over a box whose operands may be broadcast."""
    dense = dense_strides(shape)
    flat = all(
        all(e == 1 or s == d for e, s, d in zip(shape, given, dense, strict=True))
        for given in strides
    )
    extents, of_a, of_b = merged(shape, *strides)
    dtype = context.dtype
    return make_launch(
        "arithmetic.elementwise",
        (blocks(prod(shape), _BLOCK),),
        {
            "a": Pointer(a, dtype),
            "b": Pointer(b or a, dtype),
            "y": Pointer(y, dtype),
            "count": prod(shape),
            **box_arguments(extents, of_a, of_b),
            "a0": float(numbers[0]),
            "a1": float(numbers[1]),
        },
        {
            "OP": op,
            "ACT": kind,
            "BINARY": bool(b),
            "DENSE": flat,
            "BLOCK": _BLOCK,
            "WIDE": is_wide(prod(shape)),
            "ACC": dtype.accumulator,
        },
        writes="y",
        in_place="a" if flat else "",
        flops=prod(shape),
        numbers=dtype.accumulator,
    )


@HANDLERS.of(*(op for op in UNARY if op not in _LACKING))
def lower_unary(context: LoweringContext, node: Node) -> None:
    """Lower an operation of one tensor, in the format that its input has."""
    source, result = node.inputs[0], node.output
    form = context.form(source)
    activation = activation_of(node)
    kind = activation.kind if activation else ""
    first, second = (*(activation.parameters if activation else ()), 0.0, 0.0)[:2]
    a, shape = context.read(source, form), context.physical(source, form)
    y = context.define(result, form)
    strides = (dense_strides(shape), dense_strides(shape))
    launch = elementwise(
        context, "Activation" if kind else node.op, a, "", y, shape, strides, kind, (first, second)
    )
    context.launch(node, "elementwise", launch)


def _common_form(context: LoweringContext, names: Sequence[str], result: str) -> Format:
    """Channels last if any operand of full rank was made so."""
    rank = len(context.shape(result))
    computed = [name for name in names if not context.is_constant(name)]
    made = [context.form(name) for name in computed if len(context.shape(name)) == rank]
    return NHWC if rank >= 3 and NHWC in made else PLAIN


@HANDLERS.of(*BINARY, "PRelu")
def lower_binary(context: LoweringContext, node: Node) -> None:
    """Lower an operation of two tensors, broadcast as NumPy does."""
    result = node.output
    shape = context.shape(result)
    form = _common_form(context, node.inputs, result)
    operands, strides = [], []
    target = context.physical(result, form)
    for name in node.inputs[:2]:
        given = context.shape(name)
        if form == PLAIN or len(given) == len(shape):
            operands.append(context.read(name, form))
            strides.append(strides_in(context.physical(name, form), target))
            continue
        # Of lower rank: read row-major, with its strides permuted to the output's order.
        operands.append(context.read(name, PLAIN))
        plain = strides_in(given, shape)
        order = [form.axes(len(shape)).index(axis) for axis in range(len(shape))]
        strides.append(tuple(plain[order.index(place)] for place in range(len(shape))))
    y = context.define(result, form)
    launch = elementwise(
        context, node.op, operands[0], operands[1], y, target, (strides[0], strides[1])
    )
    context.launch(node, "elementwise", launch)


def _along(shape: Sequence[int], axis: int, last: int | None = None) -> tuple[int, int, int]:
    """(outer, count, inner) of the axes from `axis` to `last`."""
    end = (axis if last is None else last) + 1
    return prod(shape[:axis]), prod(shape[axis:end]), prod(shape[end:])


def _tile(count: int, inner: int) -> tuple[int, int]:
    """Rows and columns of the tile of a program that goes along an axis."""
    if inner >= 32:
        return (16, 64) if count > 4 else (4, 128)
    return (256, 4) if inner > 1 else (512, 1)


@HANDLERS.of(*(op for op, each in OPS.items() if each.reduces in _REDUCED))
def lower_reduction(context: LoweringContext, node: Node) -> None:
    """Reduce one run of neighbouring axes after the other."""
    source, result = node.inputs[0], node.output
    shape, keep = context.shape(source), node.attributes["keepdims"]
    rank = len(shape)
    axes = node.attributes["axes"] or ()
    left = [axis for axis in range(rank) if axis not in axes]
    # Without the reduced axes, what is left must be in the order that the result is read in.
    form = context.form(source)
    images = len(context.shape(result)) >= 3
    if not keep and form == NHWC and (0 in axes or (1 in axes) == images or not images):
        made_plain = [a for a in (0, *range(2, rank), 1) if a in left] == left
        form = NHWC if made_plain else PLAIN
        result_form = PLAIN
    else:
        result_form = form if images else PLAIN
    extents = list(context.physical(source, form))
    places = sorted(form.axes(rank).index(axis) for axis in axes)
    x = context.read(source, form)
    y = context.define(result, result_form)
    kind, _ = OPS[node.op].reduces or ("", "")
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    runs = runs or [(0, -1)]
    launches = []
    for number, (first, last) in enumerate(runs):
        outer, count, inner = _along(extents, first, last)
        extents[first : last + 1] = [1] * (last + 1 - first)
        size = outer * inner * context.dtype.bytes
        to = y if number == len(runs) - 1 else context.buffer(f"{y}/part{number}", size)
        launches.append(_reduce(context.dtype, x, to, (outer, count, inner), kind))
        x = to
    context.launch(node, "reduction", *launches)


def _reduce(dtype: DType, x: str, y: str, box: tuple[int, int, int], kind: str) -> Launch:
    outer, count, inner = box
    rows, columns = _tile(count, inner)
    return make_launch(
        "arithmetic.reduce_axis",
        (outer, blocks(inner, columns)),
        {"x": Pointer(x, dtype), "y": Pointer(y, dtype), "count": count, "inner": inner},
        {"BR": rows, "BI": columns, "KIND": kind, "ACC": dtype.accumulator},
        writes="y",
        divisible={"inner": divisor(inner)},
        flops=prod(box),
    )


@HANDLERS.of("Softmax", "LogSoftmax")
def lower_softmax(context: LoweringContext, node: Node) -> None:
    """Lower a Softmax or LogSoftmax along one axis."""
    source = node.inputs[0]
    form = context.form(source)
    shape = context.physical(source, form)
    axis = form.axes(len(shape)).index(node.attributes["axis"])
    outer, count, inner = _along(shape, axis)
    rows, columns = _tile(count, inner)
    dtype = context.dtype
    x, y = context.read(source, form), context.define(node.output, form)
    launch = make_launch(
        "arithmetic.softmax",
        (outer, blocks(inner, columns)),
        {"x": Pointer(x, dtype), "y": Pointer(y, dtype), "count": count, "inner": inner},
        {
            "BR": rows,
            "BI": columns,
            "LOGARITHM": node.op == "LogSoftmax",
            "ACC": dtype.accumulator,
        },
        writes="y",
        divisible={"inner": divisor(inner)},
        flops=4 * prod(shape),
    )
    context.launch(node, "softmax", launch)


@HANDLERS.of("LRN")
def lower_lrn(context: LoweringContext, node: Node) -> None:
    """Lower a local response normalisation over channels."""
    source, attributes, dtype = node.inputs[0], node.attributes, context.dtype
    shape = context.shape(source)
    form = NHWC if len(shape) >= 3 else PLAIN
    x, y = context.read(source, form), context.define(node.output, form)
    size, channels = attributes["size"], shape[1]
    positions = prod(shape) // channels
    launch = make_launch(
        "arithmetic.normalise_locally",
        (blocks(positions, 16), blocks(channels, 64)),
        {
            "x": Pointer(x, dtype),
            "y": Pointer(y, dtype),
            "positions": positions,
            "channels": channels,
            "before": min((size - 1) // 2, channels - 1),
            "after": min(size // 2, channels - 1),
            "bias": float(attributes["bias"]),
            "share": float(attributes["alpha"]) / size,
            "beta": float(attributes["beta"]),
        },
        {"BM": 16, "BC": 64, "ACC": dtype.accumulator},
        writes="y",
        flops=prod(shape) * (2 * size + 4),
        numbers=dtype.accumulator,
    )
    context.launch(node, "lrn", launch)


@HANDLERS.of("MatMul", "Gemm")
def lower_matmul(context: LoweringContext, node: Node) -> None:
    """Lower a MatMul, NumPy's rules, or a Gemm with its addend."""
    if node.op == "Gemm":
        _lower_gemm(context, node)
        return
    a_name, b_name, result = node.inputs[0], node.inputs[1], node.output
    a_shape, b_shape = context.shape(a_name), context.shape(b_name)
    a_full = a_shape if len(a_shape) > 1 else (1, *a_shape)
    b_full = b_shape if len(b_shape) > 1 else (*b_shape, 1)
    rows, inner, columns = a_full[-2], a_full[-1], b_full[-1]
    batch = np.broadcast_shapes(a_full[:-2], b_full[:-2])
    a_steps = strides_in(a_full[:-2], batch)
    b_steps = strides_in(b_full[:-2], batch)
    a_steps = tuple(s * rows * inner for s in a_steps)
    b_steps = tuple(s * inner * columns for s in b_steps)
    extents, a_steps, b_steps = merged(batch, a_steps, b_steps)
    if any(extent > 1 for extent in extents[:-2]):
        raise UnsupportedError(
            f"{label(node)}: batches of shapes {shape_text(a_shape)} and {shape_text(b_shape)} are "
            "broadcast along more than two axes; expected at most two on a GPU; use device='cpu'"
        )
    a, b = context.read(a_name, PLAIN), context.read(b_name, PLAIN)
    y = context.define(result, PLAIN)
    launch = _matmul(
        context,
        (a, b, y),
        (rows, columns, inner),
        (prod(batch), extents[-1]),
        ((a_steps[-2], a_steps[-1], inner, 1), (b_steps[-2], b_steps[-1], columns, 1)),
    )
    context.launch(node, "matmul", launch)


def _matmul(
    context: LoweringContext,
    names: tuple[str, str, str],
    extents: tuple[int, int, int],
    batch: tuple[int, int],
    strides: tuple[tuple[int, int, int, int], tuple[int, int, int, int]],
    alpha: float = 1.0,
) -> Launch:
    """One launch; strides are (outer batch, inner batch, row, column) of either operand."""
    dtype, (rows, columns, inner) = context.dtype, extents
    tile = 16 if dtype == FLOAT64 else 32
    (a, b, y), (of_a, of_b) = names, strides
    parts = ("outer", "inner", "row", "column")
    return make_launch(
        "gemm.matmul",
        (blocks(rows, tile) * blocks(columns, 32), batch[0]),
        {
            "a": Pointer(a, dtype),
            "c": Pointer(b, dtype),
            "y": Pointer(y, dtype),
            "rows": rows,
            "columns": columns,
            "inner": inner,
            "batch_columns": max(1, batch[1]),
            **{f"a_{part}": step for part, step in zip(parts, of_a, strict=True)},
            **{f"c_{part}": step for part, step in zip(parts, of_b, strict=True)},
            "y_batch": rows * columns,
            "alpha": float(alpha),
        },
        {
            "BM": tile,
            "BN": 32,
            "BK": 32 if dtype != FLOAT64 else 16,
            # Both operands are computed, of unknown range: fused multiply-adds.
            "MODE": "ieee" if dtype == FLOAT32 else "native",
            "ACC": dtype.accumulator,
        },
        writes="y",
        stages=2,
        flops=2 * batch[0] * rows * columns * inner,
        numbers=dtype.accumulator,
    )


def _lower_gemm(context: LoweringContext, node: Node) -> None:
    attributes, result = node.attributes, node.output
    rows, columns = context.shape(result)
    a_shape = context.shape(node.inputs[0])
    inner = a_shape[0] if attributes["transA"] else a_shape[1]
    of_a = (1, rows) if attributes["transA"] else (inner, 1)
    of_b = (1, inner) if attributes["transB"] else (columns, 1)
    a, b = context.read(node.inputs[0], PLAIN), context.read(node.inputs[1], PLAIN)
    addend = node.input(2)
    c = context.read(addend, PLAIN)
    y = context.define(result, PLAIN)
    product = context.buffer(f"{y}/product", context.bytes[y]) if addend else y
    launches = [
        _matmul(
            context,
            (a, b, product),
            (rows, columns, inner),
            (1, 1),
            ((0, 0, *of_a), (0, 0, *of_b)),
            attributes["alpha"],
        )
    ]
    if addend:
        if attributes["beta"] != 1.0:
            shape = context.shape(addend)
            scaled = context.buffer(f"{y}/addend", max(1, prod(shape)) * context.dtype.bytes)
            beta = context.constant(f"{y}/beta", np.array([attributes["beta"]]))
            flat = (prod(shape),)
            launches.append(elementwise(context, "Mul", c, beta, scaled, flat, ((1,), (0,))))
            c = scaled
        shape = (rows, columns)
        steps = (dense_strides(shape), strides_in(context.shape(addend), shape))
        launches.append(elementwise(context, "Add", product, c, y, shape, steps))
    context.launch(node, "matmul", *launches)
