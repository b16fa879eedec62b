"""Which tile of the product one program computes: the table, and the choice by estimate."""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.gpu.arithmetic import Arithmetic
from leanconv.gpu.lowering.windows import Windows
from leanconv.gpu.machine import Machine
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT64, DType

_MOST_SPLITS = 32
_LEAST_STEPS = 4  # of the loop over k in one split


@dataclass(frozen=True)
class Tile:
    """A tile of m x n outputs, k products at a time, by `warps` warps with `stages` loads ahead."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}"


# Every tile here is compiled ahead of time in the tests, for sm_80 and sm_90, and must not spill.
_FMA = (
    Tile(128, 64, 16, 8, 3),
    Tile(64, 64, 16, 4, 3),
    Tile(32, 64, 16, 4, 3),
    Tile(32, 32, 32, 4, 3),
    Tile(16, 32, 32, 2, 3),
)
_FMA_80 = (Tile(128, 64, 16, 8, 2), *_FMA[1:])  # Triton 3.6 spills with three stages
_SPLIT = (
    Tile(128, 64, 32, 8, 3),
    Tile(64, 64, 32, 4, 3),
    Tile(64, 32, 32, 4, 3),
)
_SPLIT_90 = (Tile(128, 128, 32, 8, 3), *_SPLIT)
_TF32 = (
    Tile(128, 128, 32, 8, 3),
    Tile(128, 64, 32, 4, 3),
    Tile(64, 64, 32, 4, 3),
    Tile(64, 32, 32, 4, 3),
)
_HALF = (
    Tile(128, 128, 64, 8, 3),
    Tile(128, 64, 64, 4, 3),
    Tile(64, 64, 64, 4, 3),
    Tile(64, 32, 64, 4, 3),
    Tile(64, 32, 32, 4, 3),
)
_DOUBLE = (Tile(64, 64, 16, 4, 2), Tile(32, 32, 16, 4, 2))


def tiles(arithmetic: Arithmetic, dtype: DType, arch: int) -> tuple[Tile, ...]:
    """All tiles that may be chosen, the largest first."""
    if dtype == FLOAT64:
        return _DOUBLE
    if arithmetic.name == "ieee":
        return _FMA if arch >= 90 else _FMA_80
    if arithmetic.name == "fp16x3":
        return _SPLIT_90 if arch >= 90 else _SPLIT
    if arithmetic.name == "tf32x3":
        return _SPLIT
    return _TF32 if arithmetic.name == "tf32" else _HALF


@dataclass(frozen=True)
class Blocking:
    """A tile, how many parts k is split in, and the time that is expected, in seconds."""

    tile: Tile
    splits: int
    estimate_s: float


def blockings(
    windows: Windows,
    columns: int,
    arithmetic: Arithmetic,
    dtype: DType,
    machine: Machine,
    only: Tile | None = None,
) -> Iterator[Blocking]:
    """Every tile with every number of splits that might pay, with its estimated time.

    Args:
        windows, columns: the product's rows, k, and columns of one group.
        only: the tile to use.
    """
    for tile in (only,) if only else tiles(arithmetic, dtype, machine.arch):
        programs = ceil_div(windows.rows, tile.m) * ceil_div(columns, tile.n) * windows.groups
        steps = windows.steps(tile.k)
        splits = 1
        while True:
            expected = seconds(windows, columns, arithmetic, dtype, machine, tile, splits)
            yield Blocking(tile, splits, expected)
            splits *= 2
            full = programs * splits > 2 * machine.processors
            if full or splits > _MOST_SPLITS or steps < splits * _LEAST_STEPS:
                break


def seconds(
    windows: Windows,
    columns: int,
    arithmetic: Arithmetic,
    dtype: DType,
    machine: Machine,
    tile: Tile,
    splits: int,
) -> float:
    """Waves of programs times the slower of arithmetic and the way from L2, or memory's time."""
    programs = ceil_div(windows.rows, tile.m) * ceil_div(columns, tile.n) * windows.groups * splits
    waves = ceil_div(programs, machine.processors)
    steps = ceil_div(windows.steps(tile.k), splits)
    # One program alone does not fill a processor: small tiles get the share of their warps.
    share = min(1.0, tile.warps * min(programs / machine.processors, 4.0) / 8)
    flops = 2.0 * tile.m * tile.n * tile.k
    work = flops / (machine.rate(arithmetic.name, dtype) / machine.processors * share)
    item = dtype.bytes
    moved = (tile.m + tile.n) * tile.k * item / (machine.cache_bandwidth / machine.processors)
    busy = waves * steps * max(work, moved)
    data = windows.rows * columns * windows.groups * item
    data += windows.images * windows.stride[0] * item
    if splits > 1:
        data += 8 * splits * windows.rows * columns * windows.groups
    launches = 1 + (splits > 1) + (arithmetic.name == "fp16x3")
    return max(busy, data / machine.memory_bandwidth) + launches * machine.launch_s
