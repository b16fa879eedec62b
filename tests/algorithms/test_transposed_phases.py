"""Phases of a transposed convolution: one kernel where they differ in weights and place only."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.codegen.geometry import PhasedAccess, TapAccess
from leanconv.codegen.lowered import Lowered
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph
from leanconv.operators import NodeContext, conv_pieces, transposed
from leanconv.operators.convolution import CONVOLUTION, PHASES
from leanconv.spec import NHWC, PLAIN, Activation
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support.covering import dealt
from support.graph_builder import Builder
from support.nodes import TARGETS, integers, run_node

pytestmark = pytest.mark.vectors

TARGET = preset("znver4")


def _graph(x: tuple[int, ...], w: tuple[int, ...], **given: Any) -> Graph:
    builder = Builder(FLOAT32)
    y = builder.conv(builder.input(*x), builder.normal(*w), op="ConvTranspose", **given)
    return builder.graph(y)


def _lowered(graph: Graph, choice: str = "") -> Lowered:
    (node,) = graph.nodes
    context = NodeContext(node, graph, dict.fromkeys(graph.types, PLAIN), TARGET)
    return CONVOLUTION.lower(context, CONVOLUTION.choice_named(choice))


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    usual = {
        "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1,
        "activation": None, "output_padding": (0, 0),
    }  # fmt: skip
    return {**usual, **attributes}


def _always_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let phases be one convolution wherever they can, whatever it costs."""
    monkeypatch.setattr(
        conv_pieces,
        "_pays",
        lambda one, _, made, choice: select.refusal(choice, one, made.context.target) is None,
    )


def _phases(kernel: Any) -> int:
    """The phases that a kernel computes, as channels or one after the other."""
    y = (kernel.conv if hasattr(kernel, "conv") else kernel.shape.conv).y
    if isinstance(y, TapAccess):
        return prod(y.taps)
    if isinstance(y, PhasedAccess):
        return y.phase_count
    return kernel.phases if isinstance(kernel, DirectConv) else 0


@pytest.mark.parametrize(
    ("w", "given", "most"),
    [
        ((21, 21, 16, 16), {"strides": (8, 8)}, 1),  # 64 phases
        ((8, 8, 2, 2), {"strides": (2, 2)}, 1),
        ((8, 8, 8, 8), {"strides": (4, 4), "pads": (2, 2, 2, 2)}, 4),  # 16 phases
        ((8, 8, 32, 32), {"strides": (32, 32), "pads": (3, 3, 3, 3)}, 9),  # 1,024 phases
    ],
)
def test_phases_that_are_alike_are_one_kernel(
    w: tuple[int, ...], given: dict[str, Any], most: int
) -> None:
    lowered = _lowered(_graph((1, w[0], 9, 9), w, **given), "phases" if most > 1 else "direct")
    kernels = [call.kernel for call in lowered.calls]
    assert len(set(kernels)) == len(kernels) <= most
    assert sum(map(_phases, kernels)) == np.prod(given["strides"])


@pytest.mark.drawn
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 16, 5, 7), (16, 16, 4, 4), {"strides": (4, 2), "pads": (1, 0, 2, 1)}),
        ((1, 16, 6, 5), (16, 16, 3, 5), {"strides": (3, 4), "dilations": (2, 3)}),
        ((3, 32, 1, 1), (32, 16, 2, 2), {"strides": (2, 2)}),
        ((1, 48, 20, 20), (48, 32, 2, 2), {"strides": (2, 2)}),
        ((1, 16, 4, 4), (16, 16, 1, 2), {"strides": (3, 3)}),  # phases without a tap
    ],
)
def test_joined_phases_are_numpys(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], blocked: bool
) -> None:
    draw = np.random.default_rng(3)
    arrays = {"x": draw.normal(size=x).astype(np.float32)}
    constants = {
        "w": draw.normal(size=w).astype(np.float32),
        "b": draw.normal(size=w[1]).astype(np.float32),
    }
    outcome = run_node(
        CONVOLUTION.lower, "ConvTranspose", arrays, constants,
        order=("x", "w", "b"), blocked=blocked, **_given(attributes),
    )  # fmt: skip
    error = np.abs(outcome.y - outcome.expected).max() / np.abs(outcome.expected).max()
    assert error < 5e-6


_AS_CHANNELS = [
    # x, w, attributes
    ((2, 5, 3, 7), (5, 3, 2, 2), {"strides": (2, 2)}),
    ((1, 24, 9, 17), (24, 24, 2, 2), {"strides": (2, 2)}),
    ((1, 24, 17, 33), (24, 1, 2, 2), {"strides": (2, 2)}),
    ((2, 16, 1, 1), (16, 40, 2, 2), {"strides": (2, 2)}),
    ((1, 3, 5, 31), (3, 2, 1, 4), {"strides": (1, 4)}),
    ((1, 6, 6, 5), (6, 1, 3, 3), {"strides": (3, 3)}),
    ((1, 6, 4, 19), (6, 4, 4, 2), {"strides": (4, 2)}),
    ((1, 16, 4, 5), (16, 16, 2, 3), {"strides": (2, 3)}),
    ((1, 16, 6, 18), (16, 7, 4, 4), {"strides": (2, 2), "pads": (1,) * 4}),
    ((1, 16, 6, 6), (16, 20, 3, 3),
     {"strides": (2, 2), "pads": (1,) * 4, "output_padding": (1, 1)}),
    ((1, 16, 7, 9), (16, 16, 5, 6),
     {"strides": (2, 2), "pads": (2, 2, 2, 2), "output_padding": (1, 0)}),
    ((1, 8, 5, 17), (8, 1, 4, 4), {"strides": (2, 2), "pads": (1,) * 4, "group": 8}),
    ((1, 6, 7, 33), (6, 2, 2, 2), {"strides": (2, 2), "group": 3}),
    ((1, 20, 6, 17), (20, 1, 9, 9),
     {"strides": (3, 3), "pads": (4,) * 4, "output_padding": (2, 2)}),
]  # fmt: skip


_WAYS = [
    # algorithm, whether input and output are in blocks
    ("direct", (False, False)),
    ("direct", (True, True)),
    ("direct", (True, False)),
    ("direct", (False, True)),
    ("planar", (False, False)),
]
# Every convolution in every way; a type only makes other lanes of it.
_EXACT = [
    pytest.param(
        number, way, dtype,
        # The last one's weights are packed by code for the machine that runs it.
        marks=[pytest.mark.presets] if number < len(_AS_CHANNELS) - 1 else [],
    )
    for number, way, dtype in dealt(
        [
            (number, way)
            for number, case in enumerate(_AS_CHANNELS)
            for way in _WAYS
            if case[2].get("group", 1) == 1 or not any(way[1])  # no groups in blocks
        ],
        [FLOAT32, FLOAT64],
    )
]  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize(("number", "way", "dtype"), _EXACT)
def test_phases_as_channels_are_exact(
    number: int,
    way: tuple[str, tuple[bool, bool]],
    dtype: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All phases as one convolution: sums of small integers, slopes of halves."""
    _always_together(monkeypatch)
    (x, w, attributes), (algorithm, blocked) = _AS_CHANNELS[number], way
    choice = CONVOLUTION.choice_named(algorithm)
    outputs = w[1] * attributes.get("group", 1)
    slopes = (integers((outputs,), dtype, 4) / 2).astype(dtype)
    bias = integers((outputs,), dtype, 2)
    constants = {"w": integers(w, dtype, 1), "b": bias, "slope": slopes}
    prelu = {"activation": Activation("prelu")}
    for target in TARGETS:
        seen: list[Lowered] = []

        def lower(given: NodeContext, kept: list[Lowered] = seen) -> Lowered:
            kept.append(CONVOLUTION.lower(given, choice))
            return kept[-1]

        outcome = run_node(
            lower, "ConvTranspose", {"x": integers(x, dtype)}, constants,
            order=("x", "w", "b", "", "slope"), target=target, blocked=blocked[0],
            block_output=blocked[1], **{**_given(attributes), **prelu},
        )  # fmt: skip
        assert np.array_equal(outcome.y, outcome.expected)
        phases = int(np.prod(attributes["strides"]))
        if algorithm == "planar" or blocked[1] or target.lanes(dtype) % phases == 0:
            assert [_phases(call.kernel) for call in seen[0].calls] == [phases]


_APART = [
    # x, w, groups: windows that do not overlap
    ((2, 5, 3, 17), (5, 3, 14, 14), 1),
    ((1, 16, 2, 5), (16, 2, 3, 20), 1),  # rows of several vectors
    ((1, 6, 2, 3), (6, 2, 2, 77), 1),  # of more than tiles have, the last one not full
    ((1, 6, 4, 1), (6, 5, 5, 5), 1),  # of five rows three in a vector of 16
    ((1, 6, 4, 19), (6, 4, 4, 4), 2),
    ((3, 2, 1, 9), (2, 1, 8, 8), 1),
    ((1, 24, 2, 3), (24, 3, 2, 7), 3),
    ((1, 200, 2, 16), (200, 1, 1, 16), 1),  # partial sums
    ((1, 4, 9), (4, 3, 13), 1),
]


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize(("x", "w", "group"), _APART)
def test_windows_apart_are_a_product_stored_by_taps(
    x: tuple[int, ...],
    w: tuple[int, ...],
    group: int,
    dtype: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each output is written once, and what lies beside a row of taps never."""
    _always_together(monkeypatch)
    monkeypatch.setattr(transposed, "together", lambda *_: None)
    rank, outputs, by_taps = len(x) - 2, w[1] * group, 0
    bias, slopes = integers((outputs,), dtype, 2), integers((outputs,), dtype, 4) / 2
    constants = {"w": integers(w, dtype, 1), "b": bias, "slope": slopes.astype(dtype)}
    given = {
        "strides": w[2:], "pads": (0,) * (2 * rank), "dilations": (1,) * rank, "group": group,
        "activation": Activation("prelu"), "output_padding": (0,) * rank,
    }  # fmt: skip
    for target in TARGETS:
        seen: list[Lowered] = []

        def lower(given: NodeContext, kept: list[Lowered] = seen) -> Lowered:
            kept.append(CONVOLUTION.lower(given, CONVOLUTION.choice_named("direct")))
            return kept[-1]

        outcome = run_node(
            lower, "ConvTranspose", {"x": integers(x, dtype)}, constants,
            order=("x", "w", "b", "", "slope"), target=target, **given,
        )  # fmt: skip
        assert np.array_equal(outcome.y, outcome.expected)
        accesses = [call.kernel.conv.y for call in seen[0].calls]
        by_taps += any(isinstance(access, TapAccess) for access in accesses)
    assert by_taps or w[3:] == (77,), "vectors of no target are filled"


@pytest.mark.presets
def test_details_are_of_the_phases_as_they_are_computed() -> None:
    """Of open sizes, phases are chosen for the usual ones: what is said follows from that, too."""
    graph = _graph((2, 20, 5, 6), (20, 32, 4, 3), strides=(2, 2), pads=(1,) * 4)
    (node,), axes = graph.nodes, (2, 3)
    graph = replace(graph, open_axes={node.inputs[0]: axes, node.output: axes})
    formats = dict.fromkeys(graph.types, PLAIN) | {node.inputs[0]: NHWC, node.output: NHWC}
    context = NodeContext(node, graph, formats, preset("sapphirerapids"))
    calls = CONVOLUTION.lower(context, PHASES).calls
    by_winograd = [isinstance(call.kernel, WinogradConv) for call in calls]
    found = CONVOLUTION.details(context, PHASES)
    assert [text.startswith("F(") for text in found] == by_winograd
    assert any(by_winograd)
    assert not all(by_winograd)


@pytest.mark.drawn
@pytest.mark.presets
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 16, 11, 13), (16, 20, 6, 6), {"strides": (2, 2), "pads": (2,) * 4}),
        ((1, 32, 14, 14), (32, 16, 5, 5),
         {"strides": (2, 2), "pads": (2,) * 4, "output_padding": (1, 1)}),
        ((1, 16, 20, 9), (16, 3, 4, 4), {"strides": (2, 2), "pads": (1,) * 4}),
        ((1, 16, 9, 20), (16, 16, 3, 6), {"strides": (1, 2), "pads": (1, 2, 1, 2)}),
    ],
)  # fmt: skip
def test_phases_as_channels_by_winograd(
    x: tuple[int, ...],
    w: tuple[int, ...],
    attributes: dict[str, Any],
    blocked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _always_together(monkeypatch)
    draw = np.random.default_rng(5)
    arrays = {"x": draw.normal(size=x).astype(np.float32)}
    constants = {
        "w": draw.normal(size=w).astype(np.float32),
        "b": draw.normal(size=w[1]).astype(np.float32),
    }
    choice = CONVOLUTION.choice_named("winograd")
    for target in TARGETS:
        if not (blocked or target.runtime_masks):
            continue  # Winograd in planes needs them
        outcome = run_node(
            lambda given: CONVOLUTION.lower(given, choice),
            "ConvTranspose", arrays, constants, order=("x", "w", "b"), target=target,
            blocked=blocked, **_given(attributes),
        )  # fmt: skip
        error = np.abs(outcome.y - outcome.expected).max() / np.abs(outcome.expected).max()
        assert error < 2e-5


def test_phases_of_several_sizes_stay_apart() -> None:
    graph = _graph((1, 8, 9, 9), (8, 8, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    assert not any(isinstance(c.kernel.conv.y, PhasedAccess) for c in _lowered(graph).calls)


def test_too_many_phases_are_refused_before_they_are_made() -> None:
    graph = _graph((1, 2, 40, 40), (2, 2, 3, 3), strides=(2**20, 1), output_padding=(9, 0))
    with pytest.raises(UnsupportedError, match="phases; expected at most 1024"):
        _lowered(graph, "phases")
