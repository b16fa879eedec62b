"""The main kernel's launches: packed weights, tiles, split k, and the tiles to recompute."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from leanconv.gpu.launch import Launch, Pointer, blocks, by_axis, divisor, make_launch
from leanconv.gpu.lowering.conv_problem import Epilogue, Lowered, stored
from leanconv.gpu.lowering.product_tiles import Blocking, Tile, blockings
from leanconv.gpu.lowering.windows import Windows
from leanconv.gpu.machine import FP16X3, TF32X3, Arithmetic, Machine
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT16, FLOAT32, INT32, DType

PROMOTED = 256  # products after which a sum of a tensor core is added to the total
X_SCALE = 64  # fp16x3 holds inputs up to 65504 / 64 = 1023
# Below 2^-3 the low half of a scaled input loses bits: an error of 2^-25 each, times weights below
# 2^15, adds up to 2^-10 sqrt(k). Sums of at least 2^11 sqrt(k) keep 21 bits.
LEAST_SUM = 2.0**11


@dataclass(frozen=True)
class Product:
    """y = epilogue(windows of x times weights).

    Attributes:
        windows: the rows of x.
        columns: output channels of one group.
        dtype: of x, y, bias, residual and slope.
        x, y: names of buffers.
        epilogue: operations on the sums.
        name: prefix of the buffers that are made.
    """

    windows: Windows
    columns: int
    dtype: DType
    x: str
    y: str
    epilogue: Epilogue
    name: str

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return self.columns * self.windows.groups

    @property
    def products(self) -> int:
        """Products summed for one output."""
        return self.windows.segments * self.windows.length

    @property
    def flops(self) -> int:
        """Operations, two for each product."""
        return 2 * self.windows.rows * self.outputs * self.products


def pack(
    segments: np.ndarray, block: int, arithmetic: Arithmetic, dtype: DType
) -> dict[str, np.ndarray]:
    """Weights as the kernel reads them.

    Args:
        segments: (groups * columns, segments, length), any float dtype.
        block: elements of a step, to a multiple of which segments are filled with zeros.
        arithmetic: decides whether weights are split in two halves.
        dtype: of the arrays.

    Returns:
        `w`, and for split weights `w_low` and `scale`: w = (w + w_low) * scale, each row scaled by
        a power of two so that its largest weight is in [2^14, 2^15).
    """
    rows, count, length = segments.shape
    filled = ceil_div(length, block) * block
    padded = np.zeros((rows, count, filled), np.float64)
    padded[:, :, :length] = segments
    flat = padded.reshape(rows, count * filled)
    if not arithmetic.split:
        return {"w": stored(flat, dtype)}
    largest = np.abs(flat).max(axis=1, initial=0.0)
    _, exponent = np.frexp(largest)
    exponent = np.where(largest > 0, 15 - exponent, 0)
    scaled = np.ldexp(flat, exponent[:, None])
    high = scaled.astype(np.float16)
    low = (scaled - high.astype(np.float64)).astype(np.float16)
    return {"w": high, "w_low": low, "scale": np.ldexp(1.0, -exponent).astype(np.float32)}


def lower_product(
    product: Product,
    segments: np.ndarray,
    arithmetics: Sequence[Arithmetic],
    machine: Machine,
    algorithm: str,
    only: Tile | None = None,
    lean: bool = False,
) -> Lowered:
    """Choose arithmetic, tile and splits by estimate, pack the weights, and make the launches.

    Args:
        product: the one to lower.
        segments: the weights, (groups * columns, segments, length), as the windows are read.
        arithmetics: those allowed; the accuracy of all of them is enough.
        machine: the GPU to choose for.
        algorithm: the name of what this is a part of.
        only: the tile to use.
        lean: take what needs least memory, not what is fastest.
    """
    finite = bool(np.isfinite(segments).all())
    blocking, arithmetic = best_blocking(product, finite, arithmetics, machine, only, lean)
    tile, splits = blocking.tile, blocking.splits
    packed = pack(segments, tile.k, arithmetic, product.dtype)
    constants = {f"{product.name}/{role}": array for role, array in packed.items()}
    temporaries: dict[str, int] = {}
    launches = _launches(product, tile, splits, arithmetic, temporaries)
    parameters = f"tile {tile}" + (f", k in {splits} parts" if splits > 1 else "")
    return Lowered(
        launches,
        constants,
        temporaries,
        algorithm,
        arithmetic.name,
        parameters,
        sum_error(product.products, arithmetic),
        blocking.estimate_s,
    )


def best_blocking(
    product: Product,
    finite: bool,
    arithmetics: Sequence[Arithmetic],
    machine: Machine,
    only: Tile | None = None,
    lean: bool = False,
) -> tuple[Blocking, Arithmetic]:
    """The tile, splits and arithmetic that `lower_product` takes.

    Args:
        finite: whether all weights are.
        product, arithmetics, machine, only, lean: as of `lower_product`.
    """
    found: list[tuple[Blocking, Arithmetic]] = []
    for arithmetic in arithmetics:
        if arithmetic.split and not finite and len(arithmetics) > 1:
            continue  # halves of what is infinite are NaN
        options = blockings(
            product.windows, product.columns, arithmetic, product.dtype, machine, only
        )
        found += [(blocking, arithmetic) for blocking in options]
    if lean:
        found = [each for each in found if each[0].splits == 1 and each[1] is not FP16X3]
    steps = product.windows.steps
    return min(
        found,
        key=lambda each: (
            lean * (steps(each[0].tile.k) * each[0].tile.k + 4 * each[1].split),
            each[0].estimate_s,
        ),
    )


def sum_error(products: int, arithmetic: Arithmetic) -> float:
    """Expected relative error of a sum in the max norm, for data of random sign."""
    if arithmetic.split:
        return arithmetic.unit_error * (1 + sqrt(min(products, PROMOTED)) / 8)
    if arithmetic.name in ("tf32", "native") and arithmetic.unit_error > 2.0**-12:
        return arithmetic.unit_error
    return arithmetic.unit_error * sqrt(products) / 2


def _launches(
    product: Product,
    tile: Tile,
    splits: int,
    arithmetic: Arithmetic,
    temporaries: dict[str, int],
) -> tuple[Launch, ...]:
    windows = product.windows
    programs = blocks(windows.rows, tile.m) * blocks(product.columns, tile.n)
    grid = (programs, splits, windows.groups)
    if splits > 1:
        item = product.dtype.accumulator.bytes
        temporaries[f"{product.name}/sums"] = splits * windows.rows * product.outputs * item
    if arithmetic is FP16X3:
        temporaries[f"{product.name}/flags"] = 4 * programs * splits * windows.groups
        first = _gemm(product, tile, splits, grid, arithmetic, "write")
        again = _gemm(product, repair_tile(tile), splits, grid, TF32X3, "read")
        launches = [first, again]
    else:
        launches = [_gemm(product, tile, splits, grid, arithmetic, "none")]
    if splits > 1:
        launches.append(_add_splits(product, splits))
    return tuple(launches)


def repair_tile(tile: Tile) -> Tile:
    """The tile of the launch that recomputes flagged tiles: of the same extent."""
    return replace(tile, stages=1) if tile.m * tile.n > 128 * 64 else tile


def _gemm(
    product: Product,
    tile: Tile,
    splits: int,
    grid: tuple[int, int, int],
    arithmetic: Arithmetic,
    flags: str,
) -> Launch:
    windows, dtype, split = product.windows, product.dtype, arithmetic.split
    kept = FLOAT16 if split else dtype
    epilogue = product.epilogue if splits == 1 else Epilogue()
    target = f"{product.name}/sums" if splits > 1 else product.y
    steps = windows.steps(tile.k)
    x_divisor = divisor(
        *windows.x_strides, windows.depth.x_stride, windows.channels, windows.length
    )
    arguments: dict[str, Pointer | int | float] = {
        "x": Pointer(product.x, dtype),
        "w": Pointer(f"{product.name}/w", kept),
        "w_low": Pointer(f"{product.name}/w_low" if split else "", FLOAT16),
        "scale": Pointer(f"{product.name}/scale" if split else "", FLOAT32),
        **epilogue.buffers(dtype),
        "flags": Pointer(f"{product.name}/flags" if flags != "none" else "", INT32),
        "y": Pointer(target, dtype.accumulator if splits > 1 else dtype),
        "rows": windows.rows,
        "columns": product.columns,
        "height": windows.height,
        "width": windows.width,
        "out_area": windows.out_h * windows.out_w,
        "out_width": windows.out_w,
        "depth": windows.depth.extent,
        "out_depth": windows.depth.outputs,
        "stride_d": windows.depth.stride,
        "pad_d": windows.depth.pad,
        "dilation_d": windows.depth.dilation,
        "x_stride_d": windows.depth.x_stride,
        "window_h": windows.depth.window_h,
        **by_axis(stride=windows.stride, pad=windows.pad, dilation=windows.dilation),
        "x_stride_n": windows.x_strides[0],
        "x_stride_h": windows.x_strides[1],
        "x_stride_w": windows.x_strides[2],
        "channels": windows.channels,
        "length": windows.length,
        "taps": windows.taps,
        "blocks": steps,
        "blocks_each": ceil_div(steps, splits),
        "least": LEAST_SUM * sqrt(product.products / splits),
        **epilogue.numbers(),
    }
    return make_launch(
        "gemm.segment_gemm",
        grid,
        arguments,
        {
            "BM": tile.m,
            "BN": tile.n,
            "BK": tile.k,
            "X_SCALE": X_SCALE,
            "PROMOTED": PROMOTED,
            "MODE": arithmetic.mode,
            "HAS_DEPTH": windows.has_depth,
            "BY_ROW": windows.by_row,
            "RUN": windows.run,
            "CHECKED": windows.checked,
            "EVEN": windows.length % tile.k == 0,
            "SPLIT": splits > 1,
            "FLAGS": flags,
            **epilogue.constants(),
            "ACC": dtype.accumulator,
        },
        writes="y",
        warps=tile.warps,
        stages=tile.stages,
        divisible={
            **dict.fromkeys(
                ("x_stride_n", "x_stride_d", "x_stride_h", "x_stride_w", "channels", "length"),
                x_divisor,
            ),
            "columns": divisor(product.columns),
        },
        # A tile reads its residual just before it writes the same elements. Recomputed tiles
        # would read what the first launch has written.
        in_place="residual" if flags == "none" else "",
        flops=0 if flags == "read" else product.flops,
        numbers=dtype.accumulator,
    )


def _add_splits(product: Product, splits: int) -> Launch:
    windows, dtype, epilogue = product.windows, product.dtype, product.epilogue
    tile_m, tile_n = 16, 64
    return make_launch(
        "gemm.add_splits",
        (blocks(windows.rows, tile_m), blocks(product.outputs, tile_n)),
        {
            "sums": Pointer(f"{product.name}/sums", dtype.accumulator),
            **epilogue.buffers(dtype),
            "y": Pointer(product.y, dtype),
            "rows": windows.rows,
            "columns": product.outputs,
            "splits": splits,
            **epilogue.numbers(),
        },
        {"BM": tile_m, "BN": tile_n, **epilogue.constants(), "ACC": dtype.accumulator},
        writes="y",
        divisible={"columns": divisor(product.outputs)},
        in_place="residual",
        flops=splits * windows.rows * product.outputs,
        numbers=dtype.accumulator,
    )
