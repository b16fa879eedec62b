"""Plans of loops whose body a node holds: memory, limits, files, what is said of them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import BudgetError, SpecError, UnsupportedError
from leanconv.gpu.lowering import lower_graph as lower_on_gpu
from leanconv.gpu.machine import PRESETS
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, run_passes
from leanconv.planner.formats import format_rules
from leanconv.planner.storage import place
from leanconv.spec import PLAIN
from leanconv.target import preset
from leanconv.types import FLOAT32
from support.control_flow import node
from support.loops import (
    IMAGE,
    NESTED,
    X,
    hold,
    loop,
    made,
    scratch_model,
)
from support.onnx_models import reference
from support.storage_check import check_loops, lowered_network


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more than two iterations be held."""
    hold(monkeypatch)


@pytest.mark.usefixtures("few")
def test_what_a_loop_reads_and_writes_is_plain() -> None:
    graph = run_passes(read_model(scratch_model(5).SerializeToString()).bind({}))
    rules = format_rules(graph, preset("skylake-avx512"))
    (found,) = (each for each in graph.nodes if each.op == "Loop")
    assert len(graph.types[found.inputs[0]].shape) == 4
    for reads, writes in rules.possible(found):
        assert {writes, *reads.values()} == {PLAIN}


@pytest.mark.usefixtures("few")
def test_scratch_of_a_call_spares_what_other_iterations_read() -> None:
    for count in (5, 6):
        proto = scratch_model(count)
        wanted = reference(proto, {"x": IMAGE})
        net = lc.load(proto.SerializeToString(), threads=2)
        assert net.plan.scratch_bytes > 0
        for _ in range(2):
            for name, array in net.run({"x": IMAGE}).items():
                np.testing.assert_allclose(array, wanted[name], rtol=0, atol=1e-4)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("threads", [1, 3])
def test_what_iterations_read_and_write_is_apart_in_memory(threads: int) -> None:
    nested = [node("Relu", "x", "outer"), loop("n true x", "y z u k", NESTED)]
    for count in (5, 6):
        many = made(nested, count, "y z u k", X.shape, many=np.int64(count))
        for proto in (scratch_model(count), many):
            lowered = lowered_network(proto.SerializeToString(), preset("haswell"))
            assert check_loops(lowered, place(lowered, threads), threads) > 4


@pytest.mark.usefixtures("few")
def test_a_limit_of_memory_is_kept_to_the_byte() -> None:
    proto = scratch_model(7)
    net = lc.load(proto.SerializeToString(), threads=2)
    wanted = net.run({"x": IMAGE})
    with pytest.raises(BudgetError) as caught:
        lc.load(proto.SerializeToString(), threads=2, memory_limit=1)
    least = caught.value.smallest_bytes
    tight = lc.load(proto.SerializeToString(), threads=2, memory_limit=least)
    assert tight.plan.memory_bytes <= least
    for name, array in tight.run({"x": IMAGE}).items():
        np.testing.assert_allclose(array, wanted[name], rtol=0, atol=1e-4)
    with pytest.raises(BudgetError):
        lc.load(proto.SerializeToString(), threads=2, memory_limit=least - 1)


@pytest.mark.usefixtures("few")
def test_a_limit_of_the_error_chooses_another_body() -> None:
    proto = scratch_model(7).SerializeToString()
    plans = [lc.load(proto, threads=1, max_error=error).plan for error in (1e-3, 1e-5)]
    assert plans[0].predicted_ns < plans[1].predicted_ns
    for plan, most in zip(plans, (1e-3, 1e-5), strict=True):
        assert plan.predicted_error <= most
    with pytest.raises(BudgetError, match="max_error"):
        lc.load(proto, threads=1, max_error=1e-7)


@pytest.mark.usefixtures("few")
def test_a_plan_in_a_file(tmp_path: Path) -> None:
    proto = scratch_model(7).SerializeToString()
    net = lc.load(proto, threads=1)
    net.plan.save(tmp_path / "plan.json")
    again = lc.load(proto, threads=1, plan=tmp_path / "plan.json")
    for name, array in net.run({"x": IMAGE}).items():
        np.testing.assert_array_equal(again.run({"x": IMAGE})[name], array)


@pytest.mark.usefixtures("few")
def test_an_error_is_measured_on_samples() -> None:
    proto = scratch_model(5)
    net = lc.load(proto.SerializeToString(), samples=[{"x": IMAGE}], max_error=1e-3)
    assert 0 < net.plan.predicted_error < 1e-3
    for name, array in net.run({"x": IMAGE}).items():
        np.testing.assert_allclose(array, reference(proto, {"x": IMAGE})[name], rtol=0, atol=1e-3)


@pytest.mark.usefixtures("few")
def test_what_is_said_of_a_loop() -> None:
    net = lc.load(scratch_model(7).SerializeToString(), threads=1)
    assert "Loop_1: Loop by loop of 7 iterations, 4 nodes each" in net.explain()
    (row,) = [row for row in net.profile(IMAGE, repeats=1) if row.op == "Loop"]
    assert row.calls == 1
    assert row.flops == net.plan.flops - IMAGE.size
    assert row.median_ns > 0


@pytest.mark.usefixtures("few")
def test_a_loop_in_another_process_and_as_a_copy() -> None:
    net = lc.load(scratch_model(5).SerializeToString(), threads=1)
    for other in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        for name, array in net.run({"x": IMAGE}).items():
            np.testing.assert_array_equal(other.run({"x": IMAGE})[name], array)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("dtype", ["float64"])
def test_other_dtypes(dtype: str) -> None:
    proto = scratch_model(5)
    net = lc.load(proto.SerializeToString(), threads=1, dtype=dtype)
    wanted = reference(proto, {"x": IMAGE})
    for name, array in net.run({"x": IMAGE.astype(dtype)}).items():
        assert array.dtype == dtype
        np.testing.assert_allclose(array, wanted[name], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("few")
def test_the_users_choices_are_for_layers_outside() -> None:
    proto = scratch_model(5).SerializeToString()
    with pytest.raises(SpecError, match="inside a loop that is one node"):
        lc.load(proto, threads=1, algorithms={"Loop_1/Conv_2": "direct"})


@pytest.mark.usefixtures("few")
def test_a_gpu_refuses_a_loop() -> None:
    read = read_model(scratch_model(5).SerializeToString())
    with pytest.raises(UnsupportedError, match="has not ended after 2 iterations"):
        read.bind({"x": IMAGE.shape}, holds_graphs=False)
    graph = run_passes(read.bind({"x": IMAGE.shape}), GPU_PASSES)
    with pytest.raises(UnsupportedError, match=r"Loop_1.* has no kernel on a GPU.*device='cpu'"):
        lower_on_gpu(graph, PRESETS["h100"], FLOAT32, ())
