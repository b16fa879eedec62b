"""One, two and more partial sums: of many channels, and of many taps of a row."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.host import host
from leanconv.codegen.partial_sums import LENGTH
from leanconv.spec import Activation, Format
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.kernel_runner import run_kernel
from support.listing import assembly, multiply_loops
from support.nodes import from_memory, to_memory
from support.packing import packed_constants
from support.small_kernels import candidate, conv_kernel, problem, with_tile

TARGET = host()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [LENGTH, LENGTH + 16, 2 * LENGTH, 2 * LENGTH + 48, 5 * LENGTH])
def test_every_number_of_parts_is_exact(channels: int, stride: int) -> None:
    text = f"ic{channels}ih14oc48oh{14 // stride}kh1sh{stride}"
    lanes = TARGET.lanes(FLOAT32)
    chosen = candidate(text, TARGET, True, bias=True, residual=True)
    kernel = chosen.kernels[0].kernel
    random = np.random.default_rng(channels)
    size = 14 // stride
    x = random.integers(-3, 4, (1, channels, 14, 14)).astype("f4")
    w = random.integers(-3, 4, (48, channels, 1, 1)).astype("f4")
    bias = random.integers(-9, 9, 48).astype("f4")
    residual = random.integers(-9, 9, (1, 48, size, size)).astype("f4")
    packed = packed_constants(chosen, w, {"bias": bias})
    form = Format(lanes)
    operands = {"x": to_memory(x, form), "residual": to_memory(residual, form), **packed}
    y = np.full(form.elements(residual.shape), np.nan, "f4")
    got = run_kernel(kernel, *(operands[r] for r in chosen.kernels[0].roles[:-1]), y)
    expected = np.einsum("kc,nchw->nkhw", w[:, :, 0, 0], x[:, :, ::stride, ::stride])
    expected += bias.reshape(1, -1, 1, 1) + residual
    np.testing.assert_array_equal(from_memory(got, residual.shape, form), expected)


@pytest.mark.parametrize(("channels", "taps", "width"), [(48, 31, 40), (20, 61, 50), (3, 401, 90)])
def test_rows_of_taps_in_many_parts_are_exact_at_borders(
    channels: int, taps: int, width: int
) -> None:
    """Parts are of some taps each; columns at both ends have some of these, or none."""
    random = np.random.default_rng(taps)
    x = random.integers(-3, 4, (1, channels, 1, width)).astype("f4")
    w = random.integers(-3, 4, (16, channels, 1, taps)).astype("f4")
    pad = taps // 2
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=3)
    expected = np.einsum("nchwt,kct->nkhw", windows, w[:, :, 0])
    found = lc.conv2d(x, w, padding=(0, pad), algorithm="direct", threads=1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("channels", [LENGTH, 2 * LENGTH, 5 * LENGTH, 5 * LENGTH + 16])
def test_all_parts_have_one_code(channels: int) -> None:
    target = preset("znver4")
    kernel = with_tile(conv_kernel(f"ic{channels}ih14oc64oh14kh1", target, True, bias=True), 7, 2)
    loops = multiply_loops(assembly(kernel, target))
    assert [loop.fmas for loop in loops] == [14]
    assert not any(loop.vector_spills for loop in loops)


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(("rows", "written"), [(2, 4), (7, 2), (14, 4)])
def test_long_activations_are_written_for_few_rows_of_a_tile(
    rows: int, written: int, blocked: bool
) -> None:
    """Up to four of them, beside each other in a loop."""
    target = preset("znver4")
    kernel = conv_kernel("ic16ih14oc32oh14kh1", target, blocked, activation=Activation("silu"))
    text = with_tile(kernel, rows, 2).emit(target)
    assert text.count(" fdiv ") == written


def test_partial_sums_of_a_winograd_tile_have_one_code_where_its_total_is_in_memory() -> None:
    target, choice, bodies = preset("haswell"), choice_named("winograd:m=2"), set()
    for channels in (64, 512):
        one = problem(f"ic{channels}ih14oc32oh14kh3", target, True)
        (use,) = choose(one, target, choice).kernels
        bodies.add(len(multiply_loops(assembly(use.kernel, target))))
    assert len(bodies) == 1
