"""Random small networks: valid files, onnxruntime's answers those of our own run, floats near."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import leanconv as lc
from support.networks_to_quantise import random_network


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int) -> None:
    data, samples = random_network(seed)
    made = lc.quantize(data, samples, threads=1, ranges="min-max", rounding=seed % 2 == 0)
    onnx.checker.check_model(onnx.load_from_string(made.data), full_check=True)
    session = onnxruntime.InferenceSession(made.data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": samples})
    exact = lc.load(data, threads=1)(samples)
    ours = lc.load(made.data, threads=1)(samples)
    size = np.linalg.norm(exact)
    assert np.linalg.norm(ours - found) < 0.03 * size
    assert np.linalg.norm(found - exact) < 0.25 * size
