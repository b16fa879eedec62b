"""`load(samples=…)`: the error is measured on samples, and kept on them or refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.types import FLOAT64
from support.network_models import images, small_model
from support.onnx_models import model

MODEL = small_model("resnext_like")


def photo(seed: int) -> np.ndarray:
    """An image of no random sign: bright, with dark strokes, as a page of text is."""
    x = np.abs(images(MODEL, 1, seed)) * 0.05 + 2
    x[:, :, seed + 3 : seed + 6] = -2
    return x


def error(net: lc.Network, x: np.ndarray) -> float:
    """The relative error of a network, against the same one in float64."""
    exact = lc.load(MODEL, dtype="float64", threads=1)(x.astype(np.float64))
    return float(np.abs(net(x) - exact).max() / np.abs(exact).max())


def refused(max_error: float, x: np.ndarray) -> float:
    with pytest.raises(lc.BudgetError, match="on the samples") as caught:
        lc.load(MODEL, threads=1, samples=x, max_error=max_error)
    least = caught.value.smallest_error
    assert least is not None
    return least


def test_an_error_is_kept_on_the_samples_or_refused(tmp_path: Path) -> None:
    x = photo(0)
    usual = lc.load(MODEL, threads=1, samples=x)
    assert usual.plan.predicted_error == error(usual, x)
    assert "measured on samples" in usual.explain()
    least = refused(1e-12, x)
    assert 0 < least <= usual.plan.predicted_error
    best = lc.load(MODEL, threads=1, samples=x, max_error=least)
    assert best.plan.predicted_error == error(best, x) == least
    assert refused(math.nextafter(least, 0.0), x) == least
    # The plan can be saved, and says the same when it is loaded.
    file = tmp_path / "plan.json"
    best.plan.save(file)
    again = lc.load(MODEL, threads=1, plan=file)
    again.bind(x.shape)
    np.testing.assert_array_equal(again(x), best(x))
    assert again.plan.predicted_error == least


def test_several_samples_are_all_kept() -> None:
    samples = [photo(seed) for seed in range(3)]
    net = lc.load(MODEL, threads=1, samples=[{net_input(): x} for x in samples], max_error=1e-4)
    assert net.plan.predicted_error == max(error(net, x) for x in samples)


def net_input() -> str:
    return lc.load(MODEL, threads=1).inputs[0].name


def test_codes_within_a_chain_are_measured() -> None:
    held = {"w": images(MODEL, 1)[:, :3, :3, :3] * 0.1, "s": np.float32(0.05), "z": np.uint8(111)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["b"]),
        helper.make_node("DequantizeLinear", ["b", "s", "z"], ["c"]),
        helper.make_node("Mul", ["c", "s"], ["d"]),
        helper.make_node("Cast", ["d"], ["e"], to=TensorProto.INT32),
        helper.make_node("Cast", ["e"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = model(nodes, {"x": (1, 3, 9, 9)}, ["y"], held)
    net = lc.load(proto.SerializeToString(), threads=1, samples=images(MODEL, 1)[:, :3, :9, :9])
    plan: Any = net.plan
    assert [node.op for node in plan.graph.nodes] == ["Conv", "Expression"]
    assert net.plan.measured_error < 1e-6


def test_a_limit_of_bytes_is_kept_beside() -> None:
    x = photo(0)
    free = lc.load(MODEL, threads=1, samples=x)
    limit = free.plan.memory_bytes
    net = lc.load(MODEL, threads=1, samples=x, memory_limit=limit, max_error=1e-4)
    assert net.plan.memory_bytes <= limit
    assert net.plan.predicted_error == error(net, x) <= 1e-4


@pytest.mark.parametrize(
    "options", [{"tune": True}, {"dtype": FLOAT64}, {"algorithms": {"c": "direct"}}]
)
def test_samples_exclude_options_that_decide_otherwise(options: dict[str, object]) -> None:
    with pytest.raises(lc.SpecError, match="samples together with"):
        lc.load(MODEL, samples=photo(0), **options)  # type: ignore[arg-type]


def test_samples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(lc.InputError, match="of 2 shapes"):
        lc.load(MODEL, samples=[photo(0), np.concatenate([photo(0), photo(1)])])
    with pytest.raises(lc.InputError, match="of 0 shapes"):
        lc.load(MODEL, samples=[])
    with pytest.raises(lc.InputError, match="a sample holds no; expected"):
        lc.load(MODEL, samples={"no": photo(0)})


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_none_are_named(number: float) -> None:
    bad = photo(1)
    bad[0, 0, 0, 0] = number
    for max_error in (None, 1e-4):
        with pytest.raises(lc.InputError, match="sample 2 of 2: input 'input' has NaN or infinity"):
            lc.load(MODEL, samples=[photo(0), bad], max_error=max_error)


@pytest.mark.parametrize(
    ("number", "message"),
    [(2e38, "in float64 and not in float32.*dtype='float64'"), (-np.inf, "in float64 on sample 1")],
)
def test_outputs_that_are_no_numbers_are_named(number: float, message: str) -> None:
    with pytest.raises(lc.InputError, match=message):
        lc.load(MODEL, threads=1, samples=np.full_like(photo(0), number), max_error=1e-4)
