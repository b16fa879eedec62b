"""Float32 networks whose weights and values are stored in halves."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import BudgetError, SpecError
from support.onnx_models import reference, small_cnn

R = np.random.default_rng(0)


@pytest.mark.parametrize(("name", "share"), [("float16", 0.02), ("bfloat16", 0.12)])
def test_a_network_in_half_precision_takes_half_the_bytes(name: str, share: float) -> None:
    proto = small_cnn()
    single = lc.load(proto, threads=1)
    for shape in ((1, 3, 32, 32), (2, 3, 19, 40)):
        x = R.standard_normal(shape).astype("f4")
        exact = single(x).astype("f8")
        limit = int(0.7 * single.plan.memory_bytes)
        net = lc.load(proto, threads=1, precision=name, memory_limit=limit)
        assert (net.inputs[0].dtype, net.outputs[0].dtype) == ("float32", "float32")
        y = net(x)
        assert y.dtype == np.float32
        assert np.abs(y - exact).max() <= share * np.abs(exact).max()
        assert np.abs(y - exact).max() <= net.plan.predicted_error * np.abs(exact).max()
    assert f"values of float32 are stored in {name}" in net.explain()
    (expected,) = reference(proto, {net.inputs[0].name: x}).values()
    assert np.abs(y - expected).max() <= share * np.abs(expected).max()


def test_limits_and_refusals() -> None:
    proto = small_cnn()
    x = R.standard_normal((1, 3, 32, 32)).astype("f4")
    with pytest.raises(BudgetError, match="max_error"):
        lc.load(proto, precision="float16", max_error=1e-5)(x)
    with pytest.raises(SpecError, match="expected None, 'float16' or 'bfloat16'"):
        lc.load(proto, precision="half")
    with pytest.raises(SpecError, match="precision"):
        lc.load(proto, precision="float16", dtype="float64")


def test_a_plan_file_says_in_which_precision(tmp_path: Path) -> None:
    proto = small_cnn()
    x = R.standard_normal((1, 3, 32, 32)).astype("f4")
    net = lc.load(proto, precision="float16")
    y = net(x)
    net.plan.save(tmp_path / "plan.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = lc.load(proto, plan=tmp_path / "plan.json")
    assert np.array_equal(again(x), y)
    assert again.plan.memory_bytes == net.plan.memory_bytes
