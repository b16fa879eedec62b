"""Tiles of the product that one program computes: the table, and the choice by estimate."""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.gpu.lowering.windows import Windows
from leanconv.gpu.machine import Arithmetic, Machine
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT64, DType

_MOST_SPLITS = 32
_LEAST_STEPS = 4  # of the loop over k in one split


@dataclass(frozen=True)
class Tile:
    """A tile of m x n outputs, k products at a time, by `warps` warps with `stages` loads ahead.

    Attributes:
        pointers, copies: share of the arithmetic's rate that a machine full of such programs
            reaches, its inputs loaded through pointers and by tensor copies. Measured on an H100
            (`docs/results/gpu.md`); those of others are guesses.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    pointers: float = 0.4
    copies: float = 0.4

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
    Tile(128, 64, 32, 8, 3, 0.47, 0.44),
    Tile(64, 64, 32, 4, 3, 0.33, 0.46),
    Tile(64, 32, 32, 4, 3, 0.33, 0.30),
)
_SPLIT_90 = (
    Tile(128, 128, 32, 8, 3, 0.49, 0.46),
    Tile(64, 128, 32, 4, 3, 0.48, 0.58),
    *_SPLIT,
)
_TF32 = (
    Tile(128, 128, 32, 8, 3, 0.6),
    Tile(128, 64, 32, 4, 3, 0.5),
    Tile(64, 64, 32, 4, 3, 0.4),
    Tile(64, 32, 32, 4, 3, 0.25),
)
_HALF = (
    Tile(128, 128, 64, 8, 3, 0.66),
    Tile(128, 64, 64, 4, 3, 0.47),
    Tile(64, 64, 64, 4, 3, 0.39),
    Tile(64, 32, 64, 4, 3, 0.25),
    Tile(64, 32, 32, 4, 3, 0.21),
)
_HALF_90 = (
    Tile(256, 64, 64, 8, 3, 0.49),
    Tile(128, 128, 32, 8, 4, 0.6),
    *_HALF,
)
_DOUBLE = (Tile(64, 64, 16, 4, 2), Tile(32, 32, 16, 4, 2))
# Of products whose operands are both copied in boxes (`lowering.pointwise`); long and short sums.
_BOXES_TF32 = (
    Tile(128, 128, 32, 8, 3, copies=0.55),
    Tile(128, 64, 32, 4, 3, copies=0.45),
    Tile(64, 128, 32, 4, 4, copies=0.5),
    Tile(64, 64, 32, 4, 4, copies=0.35),
)
_BOXES_LONG = (
    Tile(128, 128, 64, 8, 3, copies=0.6),
    Tile(128, 64, 64, 4, 3, copies=0.45),
    Tile(64, 128, 64, 4, 4, copies=0.45),
    Tile(64, 64, 64, 4, 4, copies=0.35),
    Tile(128, 32, 64, 4, 3, copies=0.3),
)
_BOXES_SHORT = (
    Tile(128, 128, 32, 8, 3, copies=0.5),
    Tile(128, 64, 32, 4, 3, copies=0.4),
    Tile(128, 32, 32, 4, 3, copies=0.3),
)
_SHORT = 192  # products of float16 of a short sum: small boxes leave room for more programs
# What is left of a tile's share where one load brings so many bytes, not 16; with eight warps.
_NARROW = {2: 0.38, 4: 0.65, 8: 0.8}
_NARROW_8 = {2: 0.27, 4: 0.45, 8: 0.7}
# The share of memory's bandwidth that programs of few steps reach; with eight warps.
_STREAM, _STREAM_8 = 0.5, 0.42
_STREAM_COPIED = 0.8  # by tensor copies of both operands


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
    if arithmetic.name == "tf32":
        return _TF32
    return _HALF_90 if arch >= 90 else _HALF


def box_tiles(arithmetic: Arithmetic, length: int) -> tuple[Tile, ...]:
    """The tiles of a product whose operands are both copied in boxes.

    Args:
        arithmetic: tf32 or native.
        length: products of a sum.
    """
    if arithmetic.name == "tf32":
        return _BOXES_TF32
    return _BOXES_SHORT if length <= _SHORT else _BOXES_LONG


@dataclass(frozen=True)
class Blocking:
    """A tile, how many parts k is split in, and the time that is expected, in seconds."""

    tile: Tile
    splits: int
    estimate_s: float


def _narrow(tile: Tile, load_bytes: int) -> float:
    """Return the part of a tile's peak that remains with loads of so many bytes."""
    left = (_NARROW_8 if tile.warps == 8 else _NARROW).get(load_bytes, 1.0)
    # Loads of two bytes go through registers, of which long steps have too few.
    return 1.2 * left if load_bytes == 2 and tile.k <= 32 else left


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
        narrow = _narrow(tile, windows.contiguous * dtype.bytes)
        splits = 1
        while True:
            expected = seconds(
                windows, columns, arithmetic, dtype, machine, tile, splits, tile.pointers * narrow
            )
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
    share: float,
    copied: bool = False,
) -> float:
    """Waves of programs times the work of one, or memory's time.

    Args:
        windows, columns: the product's rows, k, and columns of one group.
        splits: parts of k.
        share: of the arithmetic's rate, as of `Tile`.
        copied: whether both operands come by tensor copies alone.
    """
    programs = ceil_div(windows.rows, tile.m) * ceil_div(columns, tile.n) * windows.groups * splits
    # A processor needs eight warps to reach its rate.
    waves = max(ceil_div(programs, machine.processors), 8 // tile.warps)
    steps = ceil_div(windows.steps(tile.k), splits)
    flops = 2.0 * tile.m * tile.n * tile.k
    work = flops / (machine.rate(arithmetic.name, dtype) / machine.processors * share)
    busy = steps * max(waves * work, machine.least_step_s(arithmetic.name))
    item = dtype.bytes
    data = windows.rows * columns * windows.groups * item
    data += windows.images * windows.stride[0] * item
    if splits > 1:
        data += 8 * splits * windows.rows * columns * windows.groups
    launches = 1 + (splits > 1) + (arithmetic.name == "fp16x3")
    streamed = _STREAM_COPIED if copied else _STREAM_8 if tile.warps == 8 else _STREAM
    stream = machine.memory_bandwidth * streamed
    return max(busy, data / stream) + launches * machine.launch_s
