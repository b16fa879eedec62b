"""Attention and rotary embeddings against ONNX Runtime: bound, and compiled many in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import LeanConvError
from support.attention_cases import CASES, GROUPED, HEADS, PAST, K, Q, V
from support.joined_cases import check_compiled, opsets
from support.onnx_models import agree, imported, single


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


@pytest.mark.parametrize("opset", opsets(CASES))
def test_all_compiled_in_one_network(opset: int) -> None:
    check_compiled(CASES, opset, 1e-5)


@pytest.mark.parametrize("outputs", [3, 4])
def test_further_outputs(outputs: int) -> None:
    agree(*single("Attention", [Q, K, V, None, *PAST], 23, outputs))
    mask = np.linspace(-1, 1, 36, dtype="f4").reshape(3, 12)
    agree(*single("Attention", [Q, K, V, mask, *PAST], 23, outputs, is_causal=1))


def test_rows_without_keys_are_zero() -> None:
    """Of a mask that is data, and of one in the file; other rows are as ever."""
    seen = np.ones((3, 5), bool)
    seen[1] = False
    found = imported(*single("Attention", [Q, K, V, seen], 24))["out0"]
    whole = imported(*single("Attention", [Q, K, V], 24))["out0"]
    np.testing.assert_array_equal(found[:, :, 1], 0)
    np.testing.assert_allclose(found[:, :, ::2], whole[:, :, ::2], rtol=1e-6)


def test_windows_are_masks() -> None:
    """Opset 25: each query sees one key before its own, none behind; its place is its row."""
    rows, keys = np.arange(3)[:, None], np.arange(5)
    seen = (keys <= rows) & (keys >= rows - 1)
    windows = {"left_window_size": 1, "right_window_size": 0}
    found = imported(*single("Attention", [Q, K, V], 25, **windows))["out0"]
    expected = imported(*single("Attention", [Q, K, V, seen], 25))["out0"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_lengths_that_are_data() -> None:
    """Opset 24: what is padding differs between images, and so does what is causal."""
    lengths = np.array([4, 5], np.int64)
    operands = [Q, K, V, None, None, None, lengths]
    proto, given = single("Attention", operands, 24, is_causal=1)
    found = lc.load(proto.SerializeToString(), threads=1).run(given)["out0"]
    rows, keys = np.arange(3)[:, None], np.arange(5)
    seen = np.stack([(keys <= rows + n - 3) & (keys < n) for n in lengths])[:, None]
    expected = imported(*single("Attention", [Q, K, V, seen], 24))["out0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operands", "attributes", "what"),
    [
        ([Q, K[:, :3], V[:, :3]], {}, "a multiple of heads"),
        ([Q, K, V[:, :, :3]], {}, "equal batches"),
        ([Q[0], K[0], V[0]], {}, "expected numbers of heads"),
        ([Q[0], K[0], V[0]], HEADS, "expected a multiple of 3"),
        ([Q, K[0], V], {}, "rank"),
        ([Q, K, V, None, PAST[0]], {}, "expected both"),
        ([Q, K, V, np.ones((4, 5), "f4")], {}, "broadcast"),
        ([*GROUPED, np.ones((3, 6), "f4")], {}, "broadcast"),
    ],
)
def test_what_does_not_fit_is_refused(operands: Any, attributes: Any, what: str) -> None:
    proto, given = single("Attention", operands, 23, **attributes)
    with pytest.raises(LeanConvError, match=what):
        lc.load(proto.SerializeToString()).run(given)
