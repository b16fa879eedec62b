"""Float32 networks whose weights and values are stored in halves."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import BudgetError, SpecError
from support.onnx_models import model, reference, small_cnn

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


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("how", ["fused", "softmax", "exponentials"])
@pytest.mark.parametrize("masked", [-1e4, -3.4e38])
def test_masks_leave_scores_their_digits(name: str, how: str, masked: float) -> None:
    """A row that is masked as a whole: its scores differ, however large what is added is."""
    heads, steps, size = 4, 96, 32
    weights = [R.standard_normal((heads, size, size)).astype("f4") / size**0.5 for _ in range(3)]
    held = dict(zip("abc", weights, strict=True)) | {"one": np.float32(1)}
    held |= {"mask": np.float32(masked), "size": np.float32(size**-0.5)}
    nodes = [
        *(helper.make_node("MatMul", ["x", w], [f"x{w}"]) for w in "abc"),
        helper.make_node("Transpose", ["xb"], ["k"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["xa", "k"], ["product"]),
        helper.make_node("Mul", ["product", "size"], ["scaled"]),
        helper.make_node("Sub", ["one", "seen"], ["unseen"]),
        helper.make_node("Mul", ["unseen", "mask"], ["added"]),
        helper.make_node("Add", ["scaled", "added"], ["scores"]),
    ]
    if how == "exponentials":
        nodes += [
            helper.make_node("ReduceMax", ["scores"], ["most"], axes=[3]),
            helper.make_node("Sub", ["scores", "most"], ["less"]),
            helper.make_node("Exp", ["less"], ["powers"]),
            helper.make_node("ReduceSum", ["powers", "axes"], ["total"]),
            helper.make_node("Div", ["powers", "total"], ["shares"]),
        ]
        held["axes"] = np.array([3])
    else:
        nodes.append(helper.make_node("Softmax", ["scores"], ["shares"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["shares", "xc"], ["y"]))
    outputs = ["y"] if how == "fused" else ["y", "shares"]
    proto = model(
        nodes, {"x": (1, heads, steps, size), "seen": (1, 1, steps, steps)}, outputs, held, 13
    )
    x = R.standard_normal((1, heads, steps, size)).astype("f4")
    seen = np.ones((1, 1, steps, steps), np.float32)
    seen[:, :, ::3] = 0  # whole rows
    net = lc.load(proto, threads=1, precision=name)
    found = net.run({"x": x, "seen": seen})
    exact = lc.load(proto, threads=1, dtype="float64")
    arrays = {"x": x.astype("f8"), "seen": seen.astype("f8")}
    for output, wanted in exact.run(arrays).items():
        assert np.isfinite(found[output]).all()
        if masked < -1e30:  # in float32, too, nothing is left of scores that so much is added to
            each = slice(None, None, 3)
            wanted = np.delete(wanted, np.s_[each], axis=2)
            found[output] = np.delete(found[output], np.s_[each], axis=2)
        error = np.abs(found[output] - wanted).max() / np.abs(wanted).max()
        assert error <= min(net.plan.predicted_error, 0.03), output
