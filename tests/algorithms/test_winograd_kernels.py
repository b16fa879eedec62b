"""Winograd's kernels alone: what they write, blocks of channels, other targets."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.spec import ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.listing import assembly
from support.packing import packed_constants
from support.problems import Problem
from support.winograd_checks import candidate_of, run_pieces


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("line", ["mb2ic20ih13iw18oc37kh3ph1", "g2ic6ih12oc10kh3sh2ph1"])
def test_stages_write_v_and_m_wholly_and_nothing_else(line: str, dtype: str) -> None:
    for lay in ("NCHW", "NHWC"):
        spec = ConvSpec.parse(line, layout=lay, dtype=dtype)
        candidate = candidate_of(spec, lay, host(), "winograd:form=stages")
        arrays = Problem(spec, 6).arrays(False)
        y = np.full(spec.output_shape, np.nan, dtype)
        values = {"x": arrays.x, **packed_constants(candidate, arrays.w), "y": y}
        run_pieces(candidate, spec, values)
        assert not any(np.isnan(values[role]).any() for role in ("V", "M", "y"))
        expected = Problem(spec, 6).expected(arrays, False)
        atol = candidate.choice.error * np.abs(expected).max()
        np.testing.assert_allclose(values["y"], expected, rtol=0, atol=atol)


def blocked(array: np.ndarray, lanes: int) -> np.ndarray:
    """An array (N, C, H, W) as (N, blocks, H, W, lanes), NaN in the unused lanes."""
    n, c, h, w = array.shape
    blocks = -(-c // lanes)
    padded = np.full((n, blocks * lanes, h, w), np.nan, array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(padded.reshape(n, blocks, lanes, h, w).transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize("text", ["winograd", "winograd:form=stages"], ids=["fused", "stages"])
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_of_channels_and_garbage_in_their_unused_lanes(text: str, stride: int) -> None:
    spec = ConvSpec.parse(f"mb2ic21ih13iw18oc37kh3sh{stride}ph1")
    lanes = host().lanes(FLOAT32)
    candidate = candidate_of(spec, "blocks", host(), text)
    arrays = Problem(spec, 7).arrays(False)
    y = blocked(np.full(spec.output_shape, np.nan, np.float32), lanes)
    values = {"x": blocked(arrays.x, lanes), **packed_constants(candidate, arrays.w), "y": y}
    run_pieces(candidate, spec, values)
    back = values["y"].transpose(0, 1, 4, 2, 3).reshape(2, -1, *spec.output_size)[:, :37]
    expected = Problem(spec, 7).expected(arrays, False)
    assert np.abs(back - expected).max() <= candidate.choice.error * np.abs(expected).max()


@pytest.mark.parametrize("name", ["haswell", "neoverse-n1", "skylake-avx512"])
def test_every_target_is_served(name: str) -> None:
    target, spec = preset(name), ConvSpec.parse("ic20ih13oc37kh3ph1", layout="NHWC")
    for text in ("winograd:form=fused", "winograd:form=stages"):
        for use in candidate_of(spec, "NHWC", target, text).kernels:
            assert "call" not in assembly(use.kernel, target)
