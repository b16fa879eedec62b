"""Fourier transforms, windows and mel filters: bound, and compiled, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import LeanConvError
from support.joined_cases import check_compiled, opsets
from support.onnx_models import Const, agree, imported, model, single
from support.signal_cases import CASES, REAL, whole

HELD = ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
RUN = [each for each in CASES if each.values[0] not in HELD]


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    proto, given = single(op, operands, opset, **attributes)
    if not given:  # a network has an input
        given["unread"] = np.ones(1, np.float32)
        proto.graph.input.append(helper.make_tensor_value_info("unread", 1, [1]))
    agree(proto, given, 1e-5)


@pytest.mark.parametrize("opset", opsets(RUN))
def test_all_compiled_in_one_network(opset: int) -> None:
    check_compiled(RUN, opset, 1e-3, 2e-5)


@pytest.mark.drawn
@pytest.mark.parametrize("length", [11, 12, 1031, 1500, 4096, 6561])
def test_lengths_of_all_kinds(length: int) -> None:
    """Against NumPy in double precision, in a float's precision."""
    x = np.random.default_rng(length).normal(size=(1, length, 1)).astype("f4")
    found = imported(*single("DFT", [x], 17))["out0"]
    expected = np.fft.fft(x[..., 0].astype(float))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, atol=2e-6 * scale)
    back = imported(*single("DFT", [found], 17, inverse=1))["out0"]
    np.testing.assert_allclose(back[..., 0], x[..., 0], atol=1e-5)


@pytest.mark.parametrize("length", [12, 13])
def test_real_numbers_from_half_of_a_transform(length: int) -> None:
    x = np.random.default_rng(length).normal(size=(2, length)).astype("f4")
    half = np.fft.rfft(x)
    parts = np.stack([half.real, half.imag], -1).astype("f4")
    operands = [parts, whole(length), whole(1)]
    found = imported(*single("DFT", operands, 20, inverse=1, onesided=1))["out0"]
    np.testing.assert_allclose(found[..., 0], x, atol=1e-5)


def test_signals_of_open_length() -> None:
    """Frames are counted when the network is bound."""
    each = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    held = {"step": np.array(7), "window": np.hamming(20).astype("f4")}
    proto = model([each], {"x": ["N", "L", 1]}, ["y"], held, 17)
    net = lc.load(proto.SerializeToString(), threads=1)
    for count, length in ((1, 20), (2, 26), (1, 27), (3, 200)):
        x = np.random.default_rng(length).normal(size=(count, length, 1)).astype("f4")
        frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 20, 1)[:, ::7]
        expected = np.fft.rfft(frames * held["window"])
        found = net.run({"x": x})["y"]
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "what"),
    [
        ("DFT", [REAL, whole(0)], {}, "at least 1"),
        ("DFT", [REAL, whole(1 << 40)], {}, "matrix of|budget|bytes"),
        ("DFT", [np.ones((1, 32771, 1), "f4")], {}, "matrix of .*no factors"),
        ("DFT", [REAL], {"axis": 3}, "expected one before"),
        ("DFT", [REAL[..., 0]], {}, "1 or 2"),
        ("STFT", [REAL[:, :, 0], whole(0)], {}, "got frames"),
        ("STFT", [REAL[:, :, 0], whole(2), None, whole(13)], {}, "got frames"),
        ("STFT", [REAL[:, :, 0], whole(2), Const(np.ones(4, "f4")), whole(5)], {}, "the window"),
        ("HannWindow", [whole(0)], {}, "at least 1"),
        ("HannWindow", [whole(1 << 50)], {}, "HannWindow"),
    ],
)
def test_what_is_refused(op: str, operands: Any, attributes: Any, what: str) -> None:
    proto, given = single(op, operands, 17, **attributes)
    if not given:
        proto.graph.input.append(helper.make_tensor_value_info("unread", 1, [1]))
    with pytest.raises(LeanConvError, match=what):
        lc.load(proto.SerializeToString())
