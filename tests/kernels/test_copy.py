"""Copies are exact: every operation that moves elements, and the reorders, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.codegen.lowered import View
from leanconv.errors import SpecError, UnsupportedError
from leanconv.kernels import layout
from leanconv.kernels.copy import Copy, CopyTask
from leanconv.kernels.copy_plan import reorder, reorder_call, to_format
from leanconv.kernels.index_maps import IndexRun, channel_blocks, padded, runs_of
from leanconv.spec.format import NHWC, PLAIN, Format
from leanconv.target import Target, preset
from leanconv.types import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT16,
    UINT32,
    DType,
)
from support.covering import pairwise
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.nodes import DTYPES, TARGETS, Case, distinct, from_memory, to_memory

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
Lanes = tuple[Target, DType]
LANES = [(target, dtype) for target in TARGETS for dtype in DTYPES]


def named(value: object) -> str:
    """A parameter in a test's name."""
    return f"{value[0].name}-{value[1]}" if value in LANES else str(value)


def check(case: Case, target: Target, blocked: bool | None = None) -> None:
    """Compare bit by bit in plain format and, where it is accepted (or expected), in blocks."""
    assert np.array_equal(case.run(target, False), case.expected())
    accepted = case.accepts(target)
    assert blocked is None or accepted == blocked
    if accepted:
        assert np.array_equal(case.run(target, True), case.expected())


# -- reorders ------------------------------------------------------------------------------
# Lanes, which follow from target and type, meet the channels that they are filled with and the
# pixels that are transposed by as many; channels meet pixels.
REORDERS = pairwise(
    LANES,
    [1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64],
    [(1, 1), (1, 2), (3,), (5, 3), (7, 7), (2, 3, 6), (33, 31)],
)


@pytest.mark.drawn
@pytest.mark.parametrize(("lanes", "channels", "spatial"), REORDERS, ids=named)
def test_reorder(lanes: Lanes, channels: int, spatial: tuple[int, ...]) -> None:
    target, dtype = lanes
    shape = (2, channels, *spatial)
    block = Format(target.lanes(dtype))
    x = distinct(shape, dtype, 1)
    there, back = reorder(shape, dtype, PLAIN, block), reorder(shape, dtype, block, PLAIN)
    result = np.full(block.physical_shape(shape), np.nan, dtype)
    y = run_kernel(there, x, result, target=target, parts=[there.chunks // 2])
    assert np.array_equal(y, to_format(x, block)), "unused lanes must be zero"
    blocked = to_memory(x, block)
    assert np.array_equal(from_memory(blocked, shape, block), x)
    again = run_kernel(back, blocked, np.full(shape, np.nan, dtype), target=target)
    assert np.array_equal(again, x)


@pytest.mark.parametrize("channels", [1, 5, 16, 17, 33, 64])
@pytest.mark.parametrize("spatial", [(1, 1), (3, 5)])
def test_channels_that_lie_last_are_brought_into_blocks(
    channels: int, spatial: tuple[int, int]
) -> None:
    shape, block = (2, channels, *spatial), Format(16)
    x = distinct(shape, FLOAT32, 1)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    result = np.full(block.physical_shape(shape), np.nan, FLOAT32)
    y = run_kernel(reorder(shape, FLOAT32, NHWC, block), last, result)
    assert np.array_equal(y, to_format(x, block)), "unused lanes must be zero"
    blocked, again = to_memory(x, block), np.full(last.shape, np.nan, FLOAT32)
    assert np.array_equal(run_kernel(reorder(shape, FLOAT32, block, NHWC), blocked, again), last)
    plain = run_kernel(reorder(shape, FLOAT32, NHWC, PLAIN), last, np.full_like(x, np.nan))
    assert np.array_equal(plain, x)
    assert np.array_equal(to_format(x, NHWC), last)
    assert np.array_equal(
        run_kernel(reorder(shape, FLOAT32, PLAIN, NHWC), x, np.full_like(last, np.nan)), last
    )


@pytest.mark.drawn
@pytest.mark.pairs
@targets
@pytest.mark.parametrize("dtype", [BOOL, INT8, UINT16, INT32, INT64, FLOAT16])
@pytest.mark.parametrize("channels", [1, 5, 16, 33, 64])
def test_elements_of_all_widths_are_moved(target: Target, dtype: DType, channels: int) -> None:
    shape, block = (2, channels, 5, 7), Format(target.channel_block(dtype))
    x = np.random.default_rng(4).integers(0, 2 if dtype is BOOL else 100, shape).astype(dtype)
    there, back = reorder(shape, dtype, PLAIN, block), reorder(shape, dtype, block, PLAIN)
    result = np.full(block.physical_shape(shape), 1, dtype)
    assert np.array_equal(run_kernel(there, x, result, target=target), to_format(x, block))
    again = run_kernel(back, to_format(x, block), np.full(shape, 1, dtype), target=target)
    assert np.array_equal(again, x)


def test_types_of_one_width_are_moved_by_one_code() -> None:
    block = Format(16)
    texts = {
        reorder((1, 20, 6, 6), dtype, PLAIN, block).emit(preset("znver4"))
        for dtype in (FLOAT32, INT32, UINT32)
    }
    assert len(texts) == 1


def test_numbers_are_written_in_the_type_of_the_elements() -> None:
    fill = CopyTask("fill", (37,), (), ((1,),), (0,), value=-7, parts=(37,))
    y = run_kernel(Copy(INT32, 0, (fill,)), np.zeros(37, np.int32))
    assert (y == -7).all()


def test_reorder_of_many_chunks() -> None:
    shape, block = (1, 40, 130, 129), Format(TARGETS[0].lanes(FLOAT32))
    x = distinct(shape, FLOAT32)
    there = reorder(shape, FLOAT32, PLAIN, block)
    assert there.chunks >= 40 * 130 * 129 * 4 // (256 * 1024)
    y = run_kernel(there, x, np.full(block.physical_shape(shape), np.nan, "float32"), parts=[5, 9])
    assert np.array_equal(y, to_format(x, block))
    back = reorder(shape, FLOAT32, block, PLAIN)
    assert np.array_equal(run_kernel(back, y, np.full(shape, np.nan, "float32")), x)


def test_reorder_names_what_it_cannot_do() -> None:
    with pytest.raises(SpecError, match="go through the plain format"):
        reorder((1, 16, 4), FLOAT32, Format(8), Format(16))


def test_reorder_call_and_same_format() -> None:
    call = reorder_call((1, 3, 4), FLOAT32, "a", "b", PLAIN, PLAIN)
    assert call.values == ("a", "b")
    x = distinct((1, 3, 4), FLOAT32)
    assert np.array_equal(run_kernel(call.kernel, x, np.full_like(x, np.nan)), x)


def test_transposes_in_registers_and_without_masks() -> None:
    kernel = reorder((1, 64, 28, 28), FLOAT32, PLAIN, Format(16))
    text = assembly(kernel, preset("skylake-avx512"))
    shuffles = sum(text.count(op) for op in ("vunpck", "vshuf", "vperm", "vinsertf"))
    assert 48 <= shuffles <= 64, "at most sixteen vectors times four stages, in one loop"
    assert "vmaskmov" not in assembly(
        reorder((1, 20, 5, 5), FLOAT32, Format(8), PLAIN), preset("haswell")
    )


# -- index maps ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "indices", [[0, 1, 2], [5, 3, 1], [2, 2, 2, 0, 1], [-1, -1, 4, 3, -1], [7]]
)
def test_runs_spell_the_indices(indices: list[int]) -> None:
    assert spelt(runs_of((index, 0, 1) for index in indices)) == indices


def spelt(runs: list[IndexRun]) -> list[int]:
    """The indices that runs stand for, -1 for a filled one."""
    every = [-1 if r.source < 0 else r.source + i * r.step for r in runs for i in range(r.count)]
    assert [r.result for r in runs] == [sum(r.count for r in runs[:i]) for i in range(len(runs))]
    return every


@pytest.mark.parametrize(
    "segments",
    [
        [(0, 1, 9), (8, 0, 5)],
        [(3, 0, 4), (3, 1, 1), (4, 1, 6)],
        [(-1, 0, 7), (0, 2, 5), (10, 2, 4), (3, -1, 4)],
        [(6, -1, 6), (0, 1, 7), (5, -1, 2), (3, -1, 4)],
    ],
)
def test_sequences_make_the_runs_of_their_indices(segments: list[tuple[int, int, int]]) -> None:
    one_by_one = [
        (source + i * step, 0, 1) if source >= 0 else (-1, 0, 1)
        for source, step, count in segments
        for i in range(count)
    ]
    assert runs_of(segments) == runs_of(one_by_one)


@pytest.mark.parametrize(
    ("extent", "before", "after"), [(1, 0, 0), (2, 1, 1), (5, 4, 2), (5, 0, 3)]
)
def test_reflection_is_numpys(extent: int, before: int, after: int) -> None:
    wanted = np.pad(np.arange(extent), (before, after), mode="reflect").tolist()
    runs = padded(extent, before, after, "reflect")
    assert spelt(runs) == wanted


def test_reflecting_too_often_says_how_often() -> None:
    with pytest.raises(UnsupportedError, match="reflects an axis of 2 1000000 times.*at most"):
        padded(2, 1_000_000, 0, "reflect")


def test_aligned_channels_stay_whole_blocks() -> None:
    groups = channel_blocks([(0, IndexRun(0, 0, 1, 32)), (1, IndexRun(32, 0, 1, 20))], 16)
    assert [(g.count, g.picks) for g in groups] == [(2, ()), (2, ())]
    groups = channel_blocks([(0, IndexRun(0, 0, 1, 24)), (1, IndexRun(24, 0, 1, 64))], 16)
    assert [g.count for g in groups] == [1, 1, 3, 1]


@pytest.mark.parametrize("step", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("first", [5, 16, 200])
def test_blocks_of_a_run_are_those_of_its_channels(step: int, first: int) -> None:
    source = 900 if step < 0 else 7
    runs = [
        (1, IndexRun(0, 3, 1, first)),
        (0, IndexRun(first, source, step, 300)),
        (0, IndexRun(0, -1, 0, 90)),
    ]
    one_by_one = [
        (o, IndexRun(0, r.source + i * r.step if r.source >= 0 else -1, 1, 1))
        for o, r in runs
        for i in range(r.count)
    ]
    assert channel_blocks(runs, 16) == channel_blocks(one_by_one, 16)


# -- operations ----------------------------------------------------------------------------
SHAPES = [(2, 3, 4), (1, 16, 5, 7), (2, 17, 3, 3), (1, 33, 9, 1), (2, 9, 2, 3, 5), (1, 8, 20, 18)]


@pytest.mark.drawn
@pytest.mark.pairs
@targets
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transpose(target: Target, dtype: str, shape: tuple[int, ...]) -> None:
    x = distinct(shape, dtype)
    rank = len(shape)
    perms = [(0, *range(2, rank), 1), tuple(reversed(range(rank))), (1, 0, *range(2, rank))]
    perms += [(0, 1, *reversed(range(2, rank)))]
    for perm in perms:
        check(Case(layout, "Transpose", [x], {"perm": perm}), target, perm[1] == 1)


@targets
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 33), (15, 17), (16, 16), (33, 70), (300, 700)], ids=str
)
def test_transpose_of_a_matrix(target: Target, shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        check(Case(layout, "Transpose", [distinct(shape, dtype)], {"perm": (1, 0)}), target, False)


def _sliced(shape: tuple[int, ...], *slices: tuple[int, int, int]) -> dict[str, Any]:
    """Attributes of a Slice: (start, step, size) of the first axes, the others whole."""
    full = [*slices, *((0, 1, n) for n in shape[len(slices) :])]
    starts, steps, sizes = zip(*full, strict=True)
    return {"starts": starts, "steps": steps, "sizes": sizes}


@pytest.mark.pairs
@targets
@dtypes
@pytest.mark.parametrize(
    "slices",
    [
        [(0, 1, 2), (16, 1, 16)],
        [(1, 1, 1), (5, 1, 40)],
        [(0, 1, 2), (0, 2, 30)],
        [(0, 1, 2), (58, -1, 59)],
        [(1, -1, 2), (0, 1, 59), (1, 2, 3), (0, 1, 6)],
        [(0, 1, 2), (8, 1, 8), (6, -2, 4), (5, -1, 5)],
        [(0, 1, 2), (3, 1, 1), (2, 1, 0)],
        [(0, 1, 2), (7, 17, 3)],
    ],
    ids=str,
)
def test_slice(target: Target, dtype: str, slices: list[tuple[int, int, int]]) -> None:
    shape = (2, 59, 7, 6)
    check(Case(layout, "Slice", [distinct(shape, dtype)], _sliced(shape, *slices)), target, True)


def test_slice_of_everything_is_a_view() -> None:
    shape = (2, 20, 3, 3)
    case = Case(layout, "Slice", [distinct(shape, FLOAT32)], _sliced(shape))
    assert all(case.lower(TARGETS[0], b).views == {"y": View("x0")} for b in (True, False))


@pytest.mark.drawn
@pytest.mark.pairs
@targets
@dtypes
@pytest.mark.parametrize(
    "channels",
    [(16, 32), (3, 4), (17, 16, 33), (24, 24, 24, 24), (1, 1, 1), (64, 12, 12), (58, 58)],
)
def test_concat_of_channels(target: Target, dtype: str, channels: tuple[int, ...]) -> None:
    for spatial in [(5,), (3, 4)]:
        arrays = [distinct((2, c, *spatial), dtype, 1000 * i) for i, c in enumerate(channels)]
        check(Case(layout, "Concat", arrays, {"axis": 1}), target, True)


@targets
@pytest.mark.parametrize("axis", [0, 2, 3])
def test_concat_of_other_axes(target: Target, axis: int) -> None:
    arrays = []
    for i in range(3):
        shape = [2, 19, 3, 4]
        shape[axis] += i
        arrays.append(distinct(tuple(shape), FLOAT32, 2000 * i))
    check(Case(layout, "Concat", arrays, {"axis": axis}), target, True)


@targets
def test_concat_with_a_constant(target: Target) -> None:
    arrays = [distinct((1, c, 3, 3), FLOAT32, 500 * c) for c in (5, 20)]
    check(Case(layout, "Concat", arrays, {"axis": 1}, constants=[1]), target, True)


# A mode only says which indices are read; how runs of them are moved follows from the lanes.
PADS = pairwise(
    LANES,
    ["constant", "reflect", "edge"],
    [
        (0, 0, 1, 2, 0, 0, 3, 0),
        (0, 2, 0, 1, 0, 3, 0, 1),
        (1, 0, 0, 0, 0, 0, 0, 5),
        (0, 16, 2, 2, 0, 0, 2, 2),
        (0, 0, 0, 0, 0, 0, 0, 0),
    ],
)


@pytest.mark.drawn
@pytest.mark.parametrize(("lanes", "mode", "pads"), PADS, ids=named)
def test_pad(lanes: Lanes, mode: str, pads: tuple[int, ...]) -> None:
    target, dtype = lanes
    for channels in (17, 32):
        x = distinct((2, channels, 4, 6), dtype)
        attributes = {"pads": pads, "mode": mode, "value": -1.5}
        check(Case(layout, "Pad", [x], attributes), target, True)


@targets
@dtypes
def test_pad_of_a_vector_and_a_volume(target: Target, dtype: str) -> None:
    for shape, pads in [((5,), (3, 4)), ((2, 3, 2, 4, 3), (0, 0, 1, 0, 2, 0, 0, 0, 3, 1))]:
        for mode in ("constant", "edge"):
            attributes = {"pads": pads, "mode": mode, "value": 2.0}
            check(Case(layout, "Pad", [distinct(shape, dtype)], attributes), target)


@pytest.mark.pairs
@targets
@dtypes
@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ((2, 17, 1, 1), (2, 17, 3, 5)),
        ((1, 33, 4, 1), (3, 33, 4, 6)),
        ((2, 1, 3, 3), (2, 20, 3, 3)),
        ((5, 1), (2, 5, 7)),
        ((), (2, 3)),
        ((1, 16, 4), (1, 16, 4)),
    ],
    ids=str,
)
def test_expand(
    target: Target, dtype: str, shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    x = distinct(shape, dtype)
    check(Case(layout, "Expand", [x], {"shape": result}), target)


@targets
@pytest.mark.parametrize(
    ("shape", "result", "blocked"),
    [
        ((2, 32, 1, 1), (2, 32), True),
        ((2, 17, 1, 1), (2, 17), False),
        ((1, 17, 1, 1), (1, 17), True),
        ((1, 17), (1, 17, 1, 1), False),
        ((3, 64), (3, 64, 1), True),
        ((2, 17, 4, 5), (2, 17, 20), True),
        ((2, 32, 2, 2), (2, 128), False),
        ((2, 32, 4), (64, 4), False),
        ((6, 4), (24,), False),
    ],
    ids=str,
)
def test_reshape(
    target: Target, shape: tuple[int, ...], result: tuple[int, ...], blocked: bool
) -> None:
    case = Case(layout, "Reshape", [distinct(shape, FLOAT32)], {"shape": result})
    check(case, target, blocked)
    assert not case.lower(target, False).calls


def test_every_body_is_emitted_for_neon() -> None:
    neon = preset("neoverse-n1")
    x = distinct((2, 19, 6, 5), FLOAT32)
    cases = [
        Case(layout, "Transpose", [x], {"perm": (0, 2, 3, 1)}),
        Case(layout, "Slice", [x], _sliced(x.shape, (0, 1, 2), (18, -1, 19), (5, -2, 3))),
        Case(layout, "Concat", [x, x], {"axis": 1}),
        Case(layout, "Pad", [x], {"pads": (0, 1, 1, 1, 0, 0, 1, 1), "mode": "edge", "value": 0.0}),
    ]
    for case in cases:
        assert case.assembles(neon, False)
        if case.accepts(neon):
            assert case.assembles(neon, True)
    assert assembly(reorder((1, 19, 5, 5), FLOAT64, PLAIN, Format(2)), neon)
