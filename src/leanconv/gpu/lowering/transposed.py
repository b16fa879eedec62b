"""Transposed convolutions: all products and a gather, or a convolution for each phase."""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.codegen.geometry import Access, Window
from leanconv.gpu import launch
from leanconv.gpu.lowering.conv_problem import Epilogue, Lowered, joined
from leanconv.gpu.lowering.gemm import Product, lower_product
from leanconv.gpu.lowering.lowering_context import Handlers, LoweringContext
from leanconv.gpu.lowering.windows import Depth, Windows, unfolded_windows
from leanconv.graph.ir import Node
from leanconv.operators.conv_node import transposed_problem
from leanconv.operators.transposed import by_output, grouped, phases
from leanconv.records import replace
from leanconv.spec import NHWC

HANDLERS = Handlers()


@HANDLERS.of("ConvTranspose")
def lower_transposed(context: LoweringContext, node: Node) -> None:
    """Lower a ConvTranspose by the form that is estimated faster, or that needs less memory."""
    w = context.given(node, 1)
    assert w is not None
    names = []
    for index, role in ((2, "bias"), (4, "slope")):
        array = context.given(node, index)
        names.append("" if array is None else context.constant(f"{node.output}/{role}", array))
    epilogue = Epilogue(names[0], "", names[1], node.attributes["activation"])
    x = context.read(node.inputs[0], NHWC)
    y = context.define(node.output, NHWC)
    made = [_by_phases(context, node, w, x, y, epilogue)]
    if w.ndim < 5:
        made.append(_by_products(context, node, w, x, y, epilogue))

    def key(lowered: Lowered) -> float:
        return lowered.workspace_bytes if context.lean else lowered.estimate_s

    context.add(node, min(made, key=key))


def _by_phases(
    context: LoweringContext, node: Node, w: np.ndarray, x: str, y: str, epilogue: Epilogue
) -> Lowered:
    """Outputs at one position modulo the stride are an ordinary convolution of stride 1."""
    dtype, machine = context.dtype, context.machine
    in_shape, out_shape = context.shape(node.inputs[0]), context.shape(node.output)
    groups, outputs = node.attributes["group"], out_shape[1]
    of, to = (Access.of_format(shape, NHWC) for shape in (in_shape, out_shape))
    whole = transposed_problem(node, context.graph, of, to, None)
    pieces = phases(node, whole, by_output(grouped(w, whole)))
    parts: list[Lowered] = []
    for number, (problem, taps) in enumerate(pieces):
        windows = _windows(in_shape, problem.conv.window, groups)
        alone = len(pieces) == 1
        target = y if alone else context.fresh(f"{y}/phase{number}")
        name = context.fresh(f"{y}/{number}/")
        columns = outputs // groups
        product = Product(windows, columns, dtype, x, target, epilogue, name)
        segments = np.moveaxis(taps, 1, -1).reshape(outputs, windows.segments, windows.length)
        done = lower_product(
            product, segments, context.arithmetics, machine, "phases", lean=context.lean
        )
        if not alone:
            box = (in_shape[0], *problem.conv.window.out, outputs)
            strides = (problem.conv.y.image, *problem.conv.y.spatial, 1)
            place = launch.copy_box(
                target, y, dtype, box, launch.dense_strides(box), strides, 0, problem.conv.y_offset
            )
            size = prod(box) * dtype.bytes
            done = replace(
                done,
                launches=(*done.launches, place),
                temporaries={target: size, **done.temporaries},
                estimate_s=done.estimate_s + 2 * size / machine.memory_bandwidth + machine.launch_s,
            )
        parts.append(done)
    first = parts[0]
    parameters = f"{len(parts)} phase(s), {first.parameters}"
    return joined(parts, first.algorithm, first.arithmetic, parameters)


def _windows(shape: tuple[int, ...], window: Window, groups: int) -> Windows:
    """The windows of one phase, tap by tap; paddings may be negative."""
    (depth, height, width), channels = window.size, shape[1]
    depth_axis = Depth(
        extent=depth,
        outputs=window.out[0],
        window_h=window.kernel[1],
        pad=window.pad[0],
        dilation=window.dilation[0],
        x_stride=height * width * channels,
    )
    return Windows(
        images=shape[0],
        out_h=window.out[1],
        out_w=window.out[2],
        height=height,
        width=width,
        stride=(1, 1),
        pad=(window.pad[1], window.pad[2]),
        dilation=(window.dilation[1], window.dilation[2]),
        x_strides=(depth * height * width * channels, width * channels, channels),
        channels=channels // groups,
        groups=groups,
        segments=prod(window.kernel),
        length=channels // groups,
        taps=window.kernel[2],
        checked=True,
        by_row=False,
        depth=depth_axis if len(shape) > 4 else Depth(),
    )


def _by_products(
    context: LoweringContext, node: Node, w: np.ndarray, x: str, y: str, epilogue: Epilogue
) -> Lowered:
    """One GEMM makes all products, a gather adds those that meet; along one or two axes."""
    shape, attributes, dtype = context.shape(node.inputs[0]), node.attributes, context.dtype
    rank, groups = len(shape) - 2, attributes["group"]
    w = w if w.ndim > 3 else w[:, :, None]
    each, (kernel_h, kernel_w) = w.shape[1], w.shape[2:]
    height, width = (*(1,) * (2 - rank), *shape[2:])
    cells, inner = shape[0] * height * width, shape[1] // groups
    columns, products = kernel_h * kernel_w * each, context.fresh(f"{y}/products")
    size = cells * groups * columns * dtype.bytes
    windows = unfolded_windows(
        1, 1, cells, (0, 0, shape[1]), inner, groups=groups, group_stride=inner
    )
    # (g, C/g, K/g, R, S) -> (g, R, S, K/g, C/g)
    grouped = w.reshape(groups, inner, each, kernel_h, kernel_w).transpose(0, 3, 4, 2, 1)
    segments = grouped.reshape(groups * columns, 1, inner)
    product = Product(windows, columns, dtype, x, products, Epilogue(), context.fresh(f"{y}/"))
    done = lower_product(
        product, segments, context.arithmetics, context.machine, "products", lean=context.lean
    )
    last = _gather(context, node, products, (kernel_h, kernel_w), each, y, epilogue)
    moved = size + context.bytes[y]
    return replace(
        done,
        launches=(*done.launches, last),
        temporaries={products: size, **done.temporaries},
        estimate_s=done.estimate_s
        + moved / context.machine.memory_bandwidth
        + context.machine.launch_s,
    )


def _gather(
    context: LoweringContext,
    node: Node,
    products: str,
    kernel: tuple[int, int],
    each: int,
    y: str,
    epilogue: Epilogue,
) -> launch.Launch:
    shape, attributes, dtype = context.shape(node.inputs[0]), node.attributes, context.dtype
    rank, outputs = len(shape) - 2, attributes["group"] * each
    one, zero = (1,) * (2 - rank), (0,) * (2 - rank)
    stride, dilation = (*one, *attributes["strides"]), (*one, *attributes["dilations"])
    pad = (*zero, *attributes["pads"][:rank])
    height, width = (*one, *shape[2:])
    out_h, out_w = (*one, *context.shape(node.output)[2:])
    positions = shape[0] * out_h * out_w
    constants = epilogue.constants()
    del constants["HAS_RESIDUAL"]
    buffers = epilogue.buffers(dtype)
    return launch.make_launch(
        "data_movement.gather_products",
        (launch.blocks(positions, 16), launch.blocks(outputs, 64)),
        {
            "products": launch.Pointer(products, dtype),
            "bias": buffers["bias"],
            "slope": buffers["slope"],
            "y": launch.Pointer(y, dtype),
            "positions": positions,
            "height": height,
            "width": width,
            **launch.by_axis(out=(out_h, out_w)),
            "outputs": outputs,
            "each": each,
            **launch.by_axis(kernel=kernel, stride=stride, pad=pad, dilation=dilation),
            **epilogue.numbers(),
        },
        {"BM": 16, "BC": 64, **constants, "ACC": dtype.accumulator},
        writes="y",
        divisible={"outputs": launch.divisor(outputs)},
        numbers=dtype.accumulator,
    )
