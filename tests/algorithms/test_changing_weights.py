"""Weights that each run packs: as NumPy packs them, however they lie in memory.

What is only moved is equal bit by bit. What Winograd transforms errs by roundings of its type, and
is zero where it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.common.weight_runs import RunPacking, runs_of
from leanconv.algorithms.parameters import parse_choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.algorithm import best_shape
from leanconv.algorithms.winograd.sizes import WinogradParameters
from leanconv.algorithms.winograd.weight_tiles import WeightTiles
from leanconv.codegen.host import host
from leanconv.spec import ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support import packers
from support.packing import packed_constants
from support.small_kernels import problem

pytestmark = pytest.mark.vectors
MACHINES = ["haswell", "znver4", "neoverse-n1"]
ROUNDINGS = 4  # of the largest transformed weight


def numbers(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(dtype.numpy)


def lying(w: np.ndarray) -> Iterator[np.ndarray]:
    """The same weights in other orders of memory: as they are, channels last, turned, both."""
    yield w
    yield np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 1, -1)), -1, 1)
    back = (..., *(slice(None, None, -1) for _ in w.shape[2:]))
    yield np.ascontiguousarray(w.swapaxes(0, 1)[back]).swapaxes(0, 1)[back]
    turned = np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 0, -1)[..., ::-1, :]), -1, 0)
    yield turned[..., ::-1]


TRANSFORMED = [
    ("ic32ih14oc48oh14kh3ph1", "winograd", True),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=4", True),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=2", False),
    ("ic70ih13oc33oh13kh3ph1", "winograd:m=6x7,edges=narrow", True),
    ("ic32ih14oc40oh7kh3sh2ph1", "winograd:m=2", True),
    ("ic20ih14oc40oh7kh3sh2ph1", "winograd:m=2", False),
    ("ic3ih28oc33oh14kh7sh2ph3", "winograd:m=2", False),
    ("ic16ih14oc24oh7kh5sh2ph2", "winograd:m=2", True),
    ("ic17ih14iw14oc9oh14ow14kh5kw2ph2pw1", "winograd:m=2x3", True),
    ("g2ic64ih14oc192oh14kh3ph1", "winograd:m=3", True),
    ("ic20ih14oc36oh14kh3ph1", "winograd:form=stages,m=4", False),
    ("g2ic32ih14oc64oh7kh3sh2ph1", "winograd:form=stages", False),
]


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("text", "algorithm", "blocked"), TRANSFORMED)
def test_transformed_weights(
    text: str, algorithm: str, blocked: bool, machine: str, dtype: DType
) -> None:
    target = preset(machine)
    blocked = blocked or not target.runtime_masks
    given = replace(problem(text, target, blocked, dtype=dtype), weights_change=True)
    found = select.choose(given, target, parse_choice(algorithm, select.PARAMETERS))
    w = numbers(ConvSpec.parse(text).weight_shape, dtype)
    (wanted,) = packers.constants(found, given, w, {}).values()
    fast = 0
    for each in (*lying(w), *sparse(w)):
        assert np.array_equal(each, w)
        (calls,) = found.packing(each, {}).values()
        fast += isinstance(calls[0].kernel, WeightTiles)
        (made,) = packed_constants(found, each, threads=2).values()
        bound = ROUNDINGS * np.finfo(dtype.numpy).eps * np.abs(wanted).max()
        assert np.abs(made - wanted).max() <= bound
        assert not made[wanted == 0].any()
    assert fast >= 3


def test_a_layer_at_hand() -> None:
    """As compiled for this machine, in pieces that several threads take."""
    for text in ("ic130ih14oc310oh14kh3ph1", "ic64ih14oc100oh7kh3sh2ph1"):
        given = replace(problem(text, host(), True), weights_change=True)
        found = select.choose(given, host(), select.choice_named("winograd:m=4"))
        w = numbers(ConvSpec.parse(text).weight_shape, FLOAT32)
        wanted = packers.constants(found, given, w, {})["w"]
        for each in lying(w):
            made = packed_constants(found, each, threads=3, target=host())["w"]
            assert np.abs(made - wanted).max() <= 4e-7 * np.abs(wanted).max()


@pytest.mark.parametrize("text", ["ic130ih14oc310oh14kh3ph1", "ic64ih14oc100oh7kh3sh2ph1"])
@pytest.mark.parametrize("algorithm", ["winograd:m=4", "winograd:form=stages,m=3"])
def test_weights_that_caches_do_not_hold_are_written_past_them(text: str, algorithm: str) -> None:
    given = replace(problem(text, host(), True), weights_change=True)
    found = select.choose(given, host(), parse_choice(algorithm, select.PARAMETERS))
    small, large = (replace(host(), l2_bytes=n, l3_bytes=n) for n in (1 << 12, 1 << 28))
    w = numbers(ConvSpec.parse(text).weight_shape, FLOAT32)
    for each in lying(w):
        (call,) = found.packing(each, {})["w"]
        assert isinstance(call.kernel, WeightTiles)
        assert call.kernel.is_streamed(small)
        assert not call.kernel.is_streamed(large)
        assert "!nontemporal" in call.kernel.emit(small)
        assert "!nontemporal" not in call.kernel.emit(large)
        made = [packed_constants(found, each, threads=2, target=t)["w"] for t in (large, small)]
        assert np.array_equal(*made)


def test_tiles_are_chosen_with_the_time_of_transforming_changing_weights() -> None:
    once = problem("ic256ih14oc256oh14kh3ph1", host(), True)
    shapes = [
        best_shape(replace(once, weights_change=change), host(), WinogradParameters())[1]
        for change in (False, True)
    ]
    assert shapes[0].points > shapes[1].points


def test_the_stated_error_counts_the_roundings_of_changing_weights() -> None:
    given = problem("ic64ih14oc64oh14kh3ph1", host(), True)
    choice = select.choice_named("winograd:m=4")
    once = select.choose(given, host(), choice).choice.error
    each = select.choose(replace(given, weights_change=True), host(), choice).choice.error
    assert once < each < 1.3 * once


MOVED = [
    ("ic64ih7oc96oh7kh1", "direct", True),
    ("ic67ih5iw9oc45oh5ow9kh1", "direct", True),
    ("ic33ih9oc50oh9kh3ph1", "direct", True),
    ("ic70ih9oc70oh9kh3ph1", "direct", False),
    ("ic20ih9iw9oc35oh9ow7kh3kw5ph1pw1", "direct", True),
    ("g2ic20ih9oc28oh9kh3ph1", "direct", False),
    ("ic1ih9oc37kh3oh9ph1", "direct", True),
    ("ic8id5oc16od3kd3oh5", "direct", False),
    ("g37ic37ih9oc37oh9kh3ph1", "depthwise", True),
    ("g70ic70ih9oc70oh9kh5ph2", "depthwise", True),
    ("g64ic128ih9oc64oh9kh3ph1", "depthwise", True),
]


def sparse(w: np.ndarray) -> Iterator[np.ndarray]:
    """The same weights as every other tap of larger ones, as phases of a stride are; others."""
    for each in lying(np.repeat(np.repeat(w, 2, -1), 2, -2)):
        yield each[..., ::2, 1::2]
    yield np.repeat(w, 2, 1)[:, ::2]
    yield w[::-1].copy()[::-1]


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("text", "algorithm", "blocked"), MOVED)
def test_weights_that_are_only_moved(
    text: str, algorithm: str, blocked: bool, machine: str, dtype: DType
) -> None:
    target = preset(machine)
    given = replace(problem(text, target, blocked, dtype=dtype), weights_change=True)
    found = select.choose(given, target, parse_choice(algorithm, select.PARAMETERS))
    w = numbers(ConvSpec.parse(text).weight_shape, dtype)
    wanted, kinds = packers.constants(found, given, w, {})["w"], set[type]()
    for each in (*lying(w), *sparse(w)):
        assert np.array_equal(each, w)
        calls = found.packing(each, {})
        kinds |= {type(call.kernel) for call in calls["w"]}
        made = packed_constants(found, each, threads=2)["w"]
        assert made.tobytes() == wanted.tobytes()
    assert RunPacking in kinds


def test_what_packing_takes_follows_what_it_does() -> None:
    """More points take longer, and so do more channels; what is moved takes least."""
    target = preset("znver4")
    given = replace(problem("ic256ih14oc256oh14kh3ph1", target, True), weights_change=True)
    small = replace(problem("ic32ih14oc64oh14kh3ph1", target, True), weights_change=True)

    def cycles(which: Problem, algorithm: str) -> float:
        choice = parse_choice(algorithm, select.PARAMETERS)
        return select.choose(which, target, choice).packing_cycles(which, target)

    assert cycles(small, "winograd:m=2") < cycles(given, "winograd:m=2") / 8
    assert cycles(given, "direct") < cycles(given, "winograd:m=2") < cycles(given, "winograd:m=4")
    once = replace(given, weights_change=False)
    assert cycles(given, "winograd:m=4") < cycles(once, "winograd:m=4")
    for algorithm in ("fft", "im2col", "mec", "im2win", "naive", "winograd:form=stages"):
        assert cycles(given, algorithm) > 0


def test_small_maps_take_smaller_tiles_where_packing_counts() -> None:
    target = preset("znver4")
    given = problem("mb8ic512ih4oc512oh4kh3ph1", target, False)
    constant, *_ = select.choices(given, target)
    changing = replace(given, weights_change=True)
    found = select.choices(changing, target)
    best = min(found, key=lambda each: each[0].cycles + each[1].packing_cycles(changing, target))
    weights = [sum(each[1].constant_bytes.values()) for each in (constant, best)]
    assert weights[1] <= weights[0]


@pytest.mark.parametrize("rows", [slice(0, None, 2), slice(1, 2)])
@pytest.mark.parametrize("columns", [slice(0, None, 2), slice(1, 2)])
def test_phases_of_a_stride_are_read_as_runs(rows: slice, columns: slice) -> None:
    w = numbers((32, 24, 3, 3), FLOAT32).swapaxes(0, 1)[:, :, rows, columns][:, :, ::-1, ::-1]
    found = runs_of(w, 16)
    assert found is not None
    runs, order = found
    assert runs.way == "turned"
    assert min(order) == 0
    assert len(set(order)) == w.shape[2] * w.shape[3]
