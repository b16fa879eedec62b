"""col2im: exact sums of small integers in every layout; bits that depend on nothing but weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import leanconv as lc
from leanconv.algorithms.col2im import algorithm
from leanconv.algorithms.col2im.kernel import Col2Im
from leanconv.algorithms.col2im.layout import run_table
from leanconv.codegen.lowered import Lowered
from leanconv.operators import NodeContext
from leanconv.operators.convolution import CONVOLUTION
from leanconv.spec import Activation
from leanconv.types import FLOAT32, FLOAT64, DType
from support.nodes import TARGETS, integers, run_node
from support.onnx_models import model

pytestmark = pytest.mark.vectors

_CHOICE = CONVOLUTION.choice_named("col2im")

_CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    # x, w, attributes
    ((2, 5, 40), (5, 1, 20), {"strides": (10,)}),
    ((1, 17, 9), (17, 3, 64), {"strides": (16,), "pads": (24, 20)}),  # the ends are cut off
    ((1, 16, 1), (16, 16, 7), {"strides": (3,), "pads": (6, 0)}),  # one pixel
    ((2, 16, 5, 7), (16, 16, 4, 4), {"strides": (4, 2), "pads": (1, 0, 2, 1)}),
    ((1, 6, 6, 5), (6, 2, 3, 5), {"strides": (3, 4), "dilations": (2, 3), "group": 3}),
    ((1, 3, 3, 4), (3, 4, 2, 3), {"strides": (5, 70), "output_padding": (2, 3)}),  # gaps
    ((1, 32, 4, 6), (32, 16, 3, 3), {"strides": (2, 2), "pads": (1,) * 4, "group": 2}),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"strides": (2, 3, 1), "dilations": (1, 2, 2)}),
    ((1, 4, 1, 3, 5), (4, 2, 3, 2, 6), {"strides": (1, 2, 2), "pads": (1, 0, 3, 1, 0, 2)}),
    # One row, whose only tap is cut off.
    (
        (1, 5, 1, 9),
        (5, 2, 1, 16),
        {"strides": (2, 4), "pads": (1, 0, 0, 0), "output_padding": (1, 0)},
    ),
]
_EXACT = [
    pytest.param(number, blocked, FLOAT64 if number % 3 == 1 else FLOAT32, pieces)
    for number, (x, _, given) in enumerate(_CASES)
    for blocked, pieces in ((False, False), (False, True), (True, number % 2 == 1))
    if not blocked or x[1] // given.get("group", 1) >= 16
]


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    rank = len(attributes["strides"])
    usual = {
        "pads": (0,) * (2 * rank), "dilations": (1,) * rank, "group": 1,
        "output_padding": (0,) * rank, "activation": Activation("prelu"),
    }  # fmt: skip
    return {**usual, **attributes}


@pytest.mark.drawn
@pytest.mark.presets
@pytest.mark.parametrize(("number", "blocked", "dtype", "pieces"), _EXACT)
def test_sums_of_integers_are_exact(
    number: int, blocked: bool, dtype: DType, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole outputs at once, and many bands whose input is packed."""
    if pieces:
        for name in ("_CHUNK_FLOPS", "_HALOS", "_PACKED_PANELS"):
            monkeypatch.setattr(algorithm, name, 1)
    x, w, attributes = _CASES[number]
    outputs = w[1] * attributes.get("group", 1)
    slopes = (integers((outputs,), dtype, 4) / 2).astype(dtype)
    constants = {"w": integers(w, dtype, 1), "b": integers((outputs,), dtype, 2), "slope": slopes}
    for target in TARGETS:
        seen: list[Lowered] = []

        def lower(given: NodeContext, kept: list[Lowered] = seen) -> Lowered:
            kept.append(CONVOLUTION.lower(given, _CHOICE))
            return kept[-1]

        outcome = run_node(
            lower, "ConvTranspose", {"x": integers(x, dtype)}, constants,
            order=("x", "w", "b", "", "slope"), target=target, blocked=blocked,
            **_given(attributes),
        )  # fmt: skip
        assert np.array_equal(outcome.y, outcome.expected)
        (call,) = seen[0].calls
        assert isinstance(call.kernel, Col2Im)


@pytest.mark.parametrize("apart", [1, 2])
@pytest.mark.parametrize(("block", "unit", "width"), [(1, 3, 16), (1, 1, 64), (16, 2, 32)])
def test_runs_have_every_column_once(block: int, unit: int, width: int, apart: int) -> None:
    kernel, lengths = (2, 3, 10), block * (10 if apart == 1 else 1)
    bounds, runs = run_table(kernel, (1, 1, apart), block, unit, width)
    columns = unit * block * 60
    assert len(runs) == algorithm._run_count(columns, lengths, width)
    seen = np.zeros(columns, int)
    for panel, (first, stop) in enumerate(bounds):
        for start, length, *_ in runs[first:stop]:
            seen[panel * width + start : panel * width + start + length] += 1
            assert 0 < length <= min(lengths, width - start)
    assert bounds[-1, 1] == len(runs)
    assert (seen == 1).all()


def _node(**attributes: Any) -> Any:
    return helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="up", **attributes)


def test_more_phases_than_are_computed_one_by_one() -> None:
    """ONNX Runtime's results where strides leave 4096 and 65536 phases."""
    draw = np.random.default_rng(0)
    for size, taps, stride in ((3, 5, 64), (2, 5, 256), (3, 40, 40)):
        x = draw.normal(size=(1, 8, size, size)).astype("f4")
        w = draw.normal(size=(8, 3, taps, taps)).astype("f4")
        made = model([_node(strides=[stride] * 2)], {"x": x.shape}, ["y"], {"w": w})
        session = onnxruntime.InferenceSession(made.SerializeToString())
        expected = np.asarray(session.run(None, {"x": x})[0])
        found = lc.load(made, threads=1)(x)
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_bits_depend_on_no_length_batch_or_thread() -> None:
    """The frames of a long signal, alone or among others; weights that lie there once."""
    draw = np.random.default_rng(1)
    w = draw.normal(size=(70, 1, 128)).astype("f4")
    made = model([_node(strides=[32])], {"x": ("n", 70, "t")}, ["y"], {"w": w})
    net, x = lc.load(made, threads=1), draw.normal(size=(2, 70, 400)).astype("f4")
    whole = net(x)
    assert net.plan.weight_bytes < 1.1 * w.nbytes
    assert "col2im" in net.explain()
    for length in (400, 61, 30, 5):
        part = net(np.ascontiguousarray(x[1:, :, :length]))
        sure = 32 * (length - 3)
        assert np.array_equal(part[0, :, :sure], whole[1, :, :sure])
    assert np.array_equal(lc.load(made, threads=2)(x), whole)
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    assert np.abs(whole - expected).max() < 1e-5 * np.abs(expected).max()
