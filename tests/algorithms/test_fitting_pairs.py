"""Products of bytes whose sums of two fit int16: known from the weights, and exact to the last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.magnitudes import PairTraits
from leanconv.algorithms.problem import Excess
from leanconv.codegen.dot import fitting_lanes
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.planner import decisions
from leanconv.spec import ConvSpec
from leanconv.target import Target, preset
from leanconv.types import INT32
from support.integer_conv import (
    EXCEEDING,
    EXCEEDING_FOURS,
    FITTING,
    FITTING_FOURS,
    SHAPES,
    U8S8,
    candidate,
    check,
    fitting_pairs,
    runnable,
    some_exceeding,
    some_fours_exceeding,
)
from support.onnx_models import model

NAMES = ("haswell", "skylake-avx512")
machines = [each.values[0] for each in runnable() if fitting_lanes(each.values[0])]
targets = pytest.mark.parametrize("target", machines, ids=lambda target: target.name)


@pytest.mark.parametrize("name", NAMES)
def test_some_machines_ask_which_pairs_fit(name: str) -> None:
    target = preset(name)
    assert fitting_lanes(target) == target.vector_bytes // 4
    assert fitting_lanes(replace(target, extensions=("avx_vnni", "vnni"))) is None
    assert fitting_lanes(preset("sapphirerapids")) is None


def test_what_is_known_of_fours_tells_layers_apart() -> None:
    """Fours that all fit, and too many to count: what is chosen for one is not the other's."""

    def known(size: int) -> tuple[int, ...]:
        w = np.full((16, 16, 1, 1), size, np.int8)
        constants = {"w": w, "s": np.float32(0.1), "u": np.uint8(128), "z": np.int8(0)}
        nodes = [helper.make_node("QLinearConv", ["x", "s", "u", "w", "s", "z", "s", "u"], ["y"])]
        proto = model(nodes, {"x": (1, 16, 4, 4)}, ["y"], constants, elem_type=TensorProto.UINT8)
        graph = run_passes(read_model(proto.SerializeToString()).bind({}))
        found = [decisions.fitting_pairs(n, graph, preset("haswell")) for n in graph.nodes]
        return max(found, key=len)

    assert PairTraits.of(np.full((16, 16, 1, 1), 64, np.int8), 8).excess == Excess(0, None)
    assert len(known(64)) == len(known(32)) > 0
    assert known(64) != known(32)


@pytest.mark.parametrize("pair", FITTING + EXCEEDING)
def test_the_largest_sums_decide(pair: tuple[int, int]) -> None:
    x = np.array([[255, 255], [255, 0], [0, 255]])
    sums = x @ np.array(pair)
    fits = bool(sums.min() >= -(2**15) and sums.max() < 2**15)
    assert fits == (pair in FITTING)
    w = np.zeros((3, 5, 2), np.int8)
    w[1, 2:4, 1] = pair
    found = PairTraits.of(w, 8)
    assert found == PairTraits(Excess(0, 0) if fits else Excess(1), fits, False) or found.narrow
    w[1, 3:5, 0] = pair  # of two groups
    found = PairTraits.of(w, 8)
    assert found.excess.twos == (0 if fits else 1)
    assert found.neighbours == fits


def test_vectors_of_groups_are_counted() -> None:
    w = np.zeros((19, 9, 3, 3), np.int8)
    for output, channel in ((0, 0), (7, 2), (8, 0), (18, 6)):
        w[output, channel : channel + 2, 1, 2] = 100
    assert [PairTraits.of(w, lanes).excess for lanes in (8, 16)] == [Excess(3), Excess(2)]
    assert not PairTraits.of(w, 8).neighbours
    assert PairTraits.of(np.clip(w, -64, 64), 8) == PairTraits(Excess(0, 0), True, True)


@targets
def test_groups_need_pairs_that_fit_wherever_they_begin(target: Target) -> None:
    w = np.zeros((4, 4, 1, 1), np.int8)
    w[:, 1:3] = 100
    found = PairTraits.of(w, 8)
    assert found.excess_in(1, 4) == Excess(0, 0)
    assert found.excess_in(4, 4) is None
    for groups in (1, 4):
        assert PairTraits.of(w[:, :1] + np.int8(64), 8).excess_in(groups, 1) == Excess(0)
        assert PairTraits.of(w[:, :1] + np.int8(65), 8).excess_in(groups, 1) is None


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("text", SHAPES[1:-1])
def test_sums_at_the_limits_are_exact(text: str, target: Target) -> None:
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    w, random = fitting_pairs(spec.weight_shape), np.random.default_rng(2)
    (use,) = candidate(spec, target, w=w).kernels
    assert isinstance(use.kernel, DirectConv)
    assert use.kernel.way == "bytes"
    bias = random.integers(-1000, 1000, spec.out_channels, np.int32)
    for codes in ([255], [0, 255], range(256)):
        x = random.choice(np.array(codes, np.uint8), spec.input_shape)
        check(spec, target, x, w, bias)


@targets
def test_depthwise_sums_of_narrow_weights_are_exact(target: Target) -> None:
    for text in ("g19ic19ih5iw3oc19oh5ow3kh3ph1pw1", "g16ic16ih14iw15oc16oh7ow8kh3sh2sw2ph1pw1"):
        spec = ConvSpec.parse(text, precision=U8S8, bias=True)
        random = np.random.default_rng(2)
        w = random.choice(np.array([-64, 64, 3], np.int8), spec.weight_shape)
        (use,) = candidate(spec, target, "depthwise", w=w).kernels
        assert use.kernel.way == "bytes"
        x = random.choice(np.array([0, 255, 254], np.uint8), spec.input_shape)
        check(spec, target, x, w, np.zeros(spec.out_channels, np.int32), choice="depthwise")


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("text", SHAPES[1:-1])
def test_what_exceeds_is_added_exactly(text: str, target: Target) -> None:
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    w, random = some_exceeding(spec.weight_shape), np.random.default_rng(8)
    (use,) = candidate(spec, target, w=w).kernels
    assert isinstance(use.kernel, DirectConv)
    found = PairTraits.of(w, target.lanes(INT32)).excess.twos
    assert found
    rare = found * 32 <= 0.2 * w.size  # where outputs and channels fill vectors
    assert use.kernel.excess == found or not rare
    assert use.kernel.way == "bytes" or not rare
    bias = random.integers(-1000, 1000, spec.out_channels, np.int32)
    for codes in ([255], [0, 255], range(256)):
        x = random.choice(np.array(codes, np.uint8), spec.input_shape)
        check(spec, target, x, w, bias)


@pytest.mark.parametrize("four", FITTING_FOURS + EXCEEDING_FOURS)
def test_the_largest_sums_of_four_decide(four: tuple[int, ...]) -> None:
    up, down = 255 * sum(w for w in four if w > 0), 255 * sum(w for w in four if w < 0)
    fits = down >= -(2**15) and up < 2**15
    assert fits == (four in FITTING_FOURS)
    w = np.zeros((3, 21, 2), np.int8)
    w[1, [10, 11, 14, 15], 1] = four
    assert PairTraits.of(w, 8).excess == Excess(0, 0 if fits else 1)
    w[2, [16, 17, 20], 1] = four[:3]  # of two groups, the second one not whole
    w[0, [4, 5, 8, 9], 0] = four  # of two groups that are not added up together
    assert PairTraits.of(w, 8).excess.fours == (0 if fits else 1 + (sum(map(abs, four[:3])) > 128))


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("share", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("text", SHAPES[1:-1])
def test_sums_of_four_are_exact(text: str, share: float, target: Target) -> None:
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    w, random = some_fours_exceeding(spec.weight_shape, 4, share), np.random.default_rng(8)
    (use,) = candidate(spec, target, w=w).kernels
    assert isinstance(use.kernel, DirectConv)
    found = PairTraits.of(w, target.lanes(INT32)).excess
    assert found.twos == 0
    fours = spec.groups == 1 and w.shape[1] > 4 and (not share or use.kernel.way == "fours")
    assert use.kernel.way == ("fours" if fours else "bytes")
    assert use.kernel.excess == (found.fours if fours else 0)
    bias = random.integers(-1000, 1000, spec.out_channels, np.int32)
    for codes in ([255], [0, 255], range(256)):
        x = random.choice(np.array(codes, np.uint8), spec.input_shape)
        check(spec, target, x, w, bias)


@targets
@pytest.mark.parametrize(
    ("pair", "share", "way", "apart"),
    [
        ((32, 32), 1.0, "fours", False),
        ((64, 64), 0.05, "fours", True),
        ((64, 64), 0.9, "bytes", False),
        ((127, 127), 0.05, "bytes", True),
        ((127, 127), 0.9, "pairs", False),
    ],
)
def test_how_many_exceed_decides(
    pair: tuple[int, int], share: float, way: str, apart: bool, target: Target
) -> None:
    """Products by fours or by twos, with some beside them or none, or widened."""
    spec = ConvSpec.parse("ic64ih5iw7oc64oh5ow7kh1", precision=U8S8, bias=True)
    w, lanes = np.full(spec.weight_shape, 32, np.int8), target.lanes(INT32)
    for vector, group in np.argwhere(np.random.default_rng(3).random((64 // lanes, 16)) < share):
        w[vector * lanes, 4 * group : 4 * group + 2, 0, 0] = pair
    (use,) = candidate(spec, target, w=w).kernels
    assert isinstance(use.kernel, DirectConv)
    assert (use.kernel.way, use.kernel.excess > 0) == (way, apart)
    x = np.full(spec.input_shape, 255, np.uint8)
    check(spec, target, x, w, np.zeros(spec.out_channels, np.int32))
