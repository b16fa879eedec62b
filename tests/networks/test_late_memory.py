"""Memory behind the compiled part of a network: what plans state, and limits, hold in runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import leanconv as lc
from leanconv.errors import BudgetError, LeanConvError
from support.control_flow import node
from support.late_memory import taken, taken_by
from support.late_networks import LateNetwork
from support.onnx_models import Array, model, reference

R = np.random.default_rng(3)
X = R.standard_normal((64, 64)).astype("f4")


def compiled_behind() -> onnx.ModelProto:
    """Rows that are kept, with products behind them: both are compiled before what is first."""
    nodes = [
        node("ReduceSum", "x one", "sums", keepdims=0),
        node("Greater", "sums zero", "flags"),
        node("Compress", "x flags", "m", axis=0),
        node("MatMul", "m w", "p"),
        node("NonZero", "p", "places"),
        node("ReduceMax", "places", "last", keepdims=0),
        node("Cast", "last", "y", to=1),
        node("MatMul", "m v", "z"),
    ]
    held = {
        "one": np.array([1]),
        "zero": np.float32(-1e9),
        "w": R.standard_normal((64, 64)).astype("f4"),
        "v": R.standard_normal((64, 512)).astype("f4"),
    }
    whole = helper.make_graph(
        nodes,
        "late",
        [helper.make_tensor_value_info("x", 1, ["n", 64])],
        [helper.make_tensor_value_info(name, 1, None) for name in "yz"],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, 1e-4, 1e-4, err_msg=name)


LINE = {"x": (1, 100_000)}
BEHIND = {
    "nothing": [node("NonZero", "x", "y")],
    "in place": [node("Relu", "x", "r"), node("NonZero", "r", "y")],
    "a buffer": [node("Expand", "x shape", "r"), node("Exp", "r", "e"), node("NonZero", "e", "y")],
}


@pytest.mark.parametrize("behind", BEHIND)
def test_arrays_beyond_the_limit_are_refused(behind: str) -> None:
    """Whatever is compiled before them needs, no memory of its own above all."""
    data = model(BEHIND[behind], LINE, ["y"], {"shape": np.array([3, 1])}).SerializeToString()
    with pytest.raises(BudgetError) as caught:
        lc.load(data, threads=1, memory_limit="8 KiB")
    least = caught.value.smallest_bytes
    assert f"the limit is 8192 bytes (8 KiB); the smallest plan needs {least} bytes" in str(
        caught.value
    )
    assert f"give memory_limit={least} or more" in str(caught.value)
    with pytest.raises(BudgetError, match=f"the limit is {least - 1} bytes") as again:
        lc.load(data, threads=1, memory_limit=least - 1)
    assert again.value.smallest_bytes == least
    network = lc.load(data, threads=1, memory_limit=least)
    assert network.plan.memory_bytes == network.used_bytes == least
    ones = {"x": np.ones(LINE["x"], "f4")}
    assert taken_by(network, ones).together <= network.plan.late_bytes


def test_a_plan_states_what_its_runs_have_compiled() -> None:
    network = lc.load(compiled_behind(), threads=1)
    network.bind(X.shape)
    before = network.plan.memory_bytes
    assert before == network.used_bytes
    network.run({"x": X})
    compiled = network.plan.segment_bytes
    assert compiled > 64 * 512 * 4
    assert network.plan.memory_bytes == network.used_bytes == before + compiled
    assert f"compiled in runs {compiled} bytes" in network.explain()


def test_what_is_compiled_in_a_run_keeps_the_limit() -> None:
    proto = compiled_behind()
    expected = reference(proto, {"x": X})
    free = lc.load(proto, threads=1)
    needed = taken_by(free, {"x": X}).together
    assert "nothing bounds its arrays but the run" in free.explain()
    fixed = free.plan.memory_bytes - free.plan.segment_bytes
    done, refused = [], []
    for left in (needed + 4096, needed * 3 // 4, needed // 2, needed // 4):
        limited = lc.load(proto, threads=1, memory_limit=fixed + left)
        with taken() as found:
            try:
                same(limited.run({"x": X}), expected)
                same(limited.run({"x": X}), expected)
                done.append(left)
            except LeanConvError as error:
                refused.append(str(error))
        assert found.together <= left
    assert 0 < len(done) < 4
    assert all("in this run" in text for text in refused)


def test_a_small_part_keeps_no_large_array() -> None:
    """Views of what is not read any more would."""
    nodes = [
        node("ReduceSum", "x one", "sums", keepdims=0),
        node("Greater", "sums zero", "flags"),
        node("Compress", "x flags", "m", axis=0),
        node("Slice", "m first one", "row"),
        node("SplitToSequence", "m count", "rows", axis=0),
        node("SequenceAt", "rows zeroth", "again"),
        node("Compress", "x flags", "k", axis=0),
        node("Exp", "k", "a"),
        node("Exp", "a", "b"),
        node("Neg", "b", "y"),
        node("Add", "row again", "z"),
    ]
    held = {
        "zero": np.float32(-1e9),
        "zeroth": np.array(0),
        "count": np.array(1),
        "first": np.array([0]),
        "one": np.array([1]),
    }
    network = lc.load(model(nodes, {"x": X.shape}, ["y", "z"], held), threads=1)
    assert taken_by(network, {"x": X}).arrays <= network.plan.late_bytes


def test_the_network_leaves_memory_for_what_is_compiled_in_a_run() -> None:
    """Its fastest plan would take what the limit allows."""
    nodes = [
        node("Conv", "x f", "c", pads=[1] * 4),
        node("Reshape", "c rows", "r"),
        node("ReduceSum", "r one", "sums", keepdims=0),
        node("Greater", "sums zero", "flags"),
        node("Compress", "r flags", "m", axis=0),
        node("MatMul", "m w", "y"),
    ]
    held = {
        "f": R.standard_normal((64, 64, 3, 3)).astype("f4") / 24,
        "rows": np.array([64, 400]),
        "one": np.array([1]),
        "zero": np.float32(0),
        "w": R.standard_normal((400, 64)).astype("f4") / 20,
    }
    proto = model(nodes, {"x": (1, 64, 20, 20)}, ["y"], held)
    feed = {"x": R.standard_normal((1, 64, 20, 20)).astype("f4")}
    free = lc.load(proto, threads=1)
    needed = taken_by(free, feed).together
    fixed = free.plan.memory_bytes - free.plan.segment_bytes
    limited = lc.load(proto, threads=1, memory_limit=fixed + needed // 2)
    assert limited.plan.memory_bytes < fixed
    same(limited.run(feed), reference(proto, feed))


def test_networks_of_other_sizes_make_room() -> None:
    proto = compiled_behind()
    free = lc.load(proto, threads=1)
    needed = taken_by(free, {"x": X}).together
    fixed = free.plan.memory_bytes - free.plan.segment_bytes
    limit = fixed + needed + 4096
    limited = lc.load(proto, threads=1, memory_limit=limit)
    for rows in (64, 63, 64, 17, 1, 64):
        feed = {"x": X[:rows]}
        with taken() as found:
            same(limited.run(feed), reference(proto, feed))
        others = limited.plan.memory_bytes - limited.plan.segment_bytes
        assert found.together + others <= limit


@pytest.mark.parametrize("seed", [1, 2, 8, 10, 11, 121])
def test_random_networks_keep_limits_or_are_refused(seed: int) -> None:
    case = LateNetwork(seed)
    data = case.proto.SerializeToString()
    free, most = lc.load(data, threads=1), 0
    for feed in case.feeds:
        needed = taken_by(free, feed).together
        most = max(most, free.plan.memory_bytes - free.plan.segment_bytes + needed)
        if free.plan.late_bounded:
            assert needed <= free.plan.late_bytes
    refused = []
    for limit in (2 * most, most, most // 2):
        network = None
        for feed, expected in zip(case.feeds, case.expected, strict=True):
            with taken() as found:
                try:
                    network = network or lc.load(data, threads=1, memory_limit=max(1, limit))
                    same(network.run(feed), expected)
                except LeanConvError as error:
                    refused.append(str(error))
            if found.together and network:
                plan = network.plan
                assert plan.memory_bytes == network.used_bytes <= limit
                others = plan.memory_bytes - plan.segment_bytes
                others -= plan.late_bytes * plan.late_bounded
                assert others + found.together <= limit
    assert all("memory" in text for text in refused)
