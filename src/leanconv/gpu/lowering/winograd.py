"""Winograd F(m, r), not fused: transformed input, one product for each point, transformed back.

The matrices are the exact ones of `leanconv.winograd`, rounded once; weights are transformed in
double precision, before. The workspace is that of whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod

import numpy as np

from leanconv.algorithms.parameters import COUNT, Parameters, parameter
from leanconv.errors import SpecError
from leanconv.gpu.launch import Launch, Pointer, blocks, by_axis, divisor, make_launch
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue, Lowered, stored
from leanconv.gpu.lowering.gemm import Product, lower_product
from leanconv.gpu.lowering.windows import unfolded_windows
from leanconv.gpu.machine import Machine
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32, FLOAT64
from leanconv.winograd.error import peak_amplification
from leanconv.winograd.matrices import Matrix, Transform, transform

_DEFAULT_M = 4
_MOST_ALPHA = 16  # points along one axis, as on the CPU
_REGISTER_ALPHA = 8  # tiles of more points do not fit the registers of their transforms


@dataclass(frozen=True)
class WinogradParameters(Parameters):
    """The size of a tile, m x m outputs."""

    m: int | None = parameter(COUNT)


def winograd_rejects(problem: ConvProblem) -> str | None:
    """Why a convolution has no Winograd form here, or None."""
    spec = problem.spec
    if spec.groups > 1:
        return f"groups is {spec.groups}; expected 1"
    if max(spec.stride) > 1:
        return f"stride is {spec.stride}; expected 1"
    if any(d > 1 and k > 1 for d, k in zip(spec.dilation, spec.kernel, strict=True)):
        return f"dilation is {spec.dilation}; expected 1"
    if prod(spec.kernel) == 1 or max(spec.kernel) >= _MOST_ALPHA:
        return f"the kernel is {spec.kernel}; expected 2 to {_MOST_ALPHA - 1} taps"
    if problem.dtype not in (FLOAT32, FLOAT64):
        return f"{problem.dtype} has too few bits for the transforms"
    return None


def _floats(matrix: Matrix) -> np.ndarray:
    return np.array([[float(Fraction(v)) for v in row] for row in matrix])


def _axes(problem: ConvProblem, parameters: WinogradParameters) -> tuple[Transform, Transform]:
    axes = []
    for taps in problem.spec.kernel:
        m = parameters.m or max(2, min(_DEFAULT_M, _REGISTER_ALPHA + 1 - taps))
        if m + taps - 1 > _MOST_ALPHA:
            raise SpecError(
                f"m is {m} for {taps} taps; expected m + taps - 1 of at most {_MOST_ALPHA}"
            )
        axes.append(transform(m if taps > 1 else 1, taps))
    return axes[0], axes[1]


def lower_winograd(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: WinogradParameters
) -> Lowered:
    """V = B^T d B, M = U V and y = A^T M A: a launch each, more where k is split."""
    spec, dtype, name = problem.spec, problem.dtype, problem.name
    rows, columns = _axes(problem, parameters)
    points = rows.alpha * columns.alpha
    tiles_h, tiles_w = (
        ceil_div(spec.output_size[0], rows.m),
        ceil_div(spec.output_size[1], columns.m),
    )
    tiles = spec.batch * tiles_h * tiles_w
    # U: (points * K, C), one GEMM of K columns for each point.
    u = np.einsum("ar,kcrs,bs->abkc", _floats(rows.g), w.astype(np.float64), _floats(columns.g))
    channels, outputs = spec.in_channels, spec.out_channels
    windows = unfolded_windows(
        1, 1, tiles, (0, 0, points * channels), channels, groups=points, group_stride=channels
    )
    product = Product(
        windows, outputs, dtype, f"{name}/inputs", f"{name}/products", Epilogue(), name
    )
    segments = u.reshape(points * outputs, 1, channels)
    done = lower_product(product, segments, problem.arithmetics, machine, "winograd")
    # The product of the points decides, not the longer axis: 16 x 1 are no more than 4 x 4.
    in_registers = points <= _REGISTER_ALPHA**2
    form, each, channels_each = ("", 4, 32) if in_registers else ("_by_products", 1, 16)
    shared: dict[str, int | bool | str] = {
        "MH": rows.m,
        "MW": columns.m,
        "AH": rows.alpha,
        "AW": columns.alpha,
        "BT": each if in_registers else _MOST_ALPHA,
        "BC": channels_each,
    }
    counts = {**({"tiles": tiles} if in_registers else {}), "tiles_h": tiles_h, "tiles_w": tiles_w}
    first = make_launch(
        f"winograd.transform_input{form}",
        (blocks(tiles, each), blocks(channels, channels_each)),
        {
            "x": Pointer(problem.x, dtype),
            "bt_h": Pointer(f"{name}/bt_h", dtype),
            "bt_w": Pointer(f"{name}/bt_w", dtype),
            "y": Pointer(product.x, dtype),
            **counts,
            "height": spec.size[0],
            "width": spec.size[1],
            "channels": channels,
            **by_axis(pad=spec.pad_begin),
        },
        {**shared, "ACC": dtype.accumulator},
        writes="y",
        divisible={"channels": divisor(channels)},
    )
    ends = (blocks(tiles, each), blocks(outputs, channels_each))
    last = _last_launch(problem, product.y, form, ends, shared, counts)
    item = dtype.bytes
    workspace = {product.x: tiles * points * channels * item}
    workspace[product.y] = tiles * points * outputs * item
    tables = {
        f"{name}/{role}": stored(_floats(matrix), dtype)
        for role, matrix in (
            ("bt_h", rows.bt),
            ("bt_w", columns.bt),
            ("at_h", rows.at),
            ("at_w", columns.at),
        )
    }
    arrays = prod(spec.input_shape) + prod(spec.output_shape)
    moved = (sum(workspace.values()) + arrays * item) / machine.memory_bandwidth
    return replace(
        done,
        launches=(first, *done.launches, last),
        constants={**done.constants, **tables},
        temporaries={**workspace, **done.temporaries},
        parameters=f"{rows} x {columns}, {done.parameters}",
        # The transforms round too: as much as a few products.
        error=(done.error + _unit(problem)) * peak_amplification(rows, columns),
        estimate_s=done.estimate_s + moved + 2 * machine.launch_s,
    )


def _unit(problem: ConvProblem) -> float:
    return problem.dtype.accumulator.roundoff


def _last_launch(
    problem: ConvProblem,
    products: str,
    form: str,
    grid: tuple[int, int],
    shared: Mapping[str, int | bool | str],
    counts: Mapping[str, int],
) -> Launch:
    spec, dtype, epilogue = problem.spec, problem.dtype, problem.epilogue
    return make_launch(
        f"winograd.transform_output{form}",
        grid,
        {
            "products": Pointer(products, dtype),
            "at_h": Pointer(f"{problem.name}/at_h", dtype),
            "at_w": Pointer(f"{problem.name}/at_w", dtype),
            **epilogue.buffers(dtype),
            "y": Pointer(problem.y, dtype),
            **counts,
            **by_axis(out=spec.output_size),
            "outputs": spec.out_channels,
            **epilogue.numbers(),
        },
        {**shared, **epilogue.constants(), "ACC": dtype.accumulator},
        writes="y",
        divisible={"outputs": divisor(spec.out_channels)},
        in_place="residual",
        numbers=dtype.accumulator,
    )
