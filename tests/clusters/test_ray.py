"""Networks over datasets of Ray: batches of known bytes, the bits of one process, killed actors."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from support.late_outputs import LATE, late_outputs
from support.network_models import small, weights
from support.page_blocks import ROOT, run_blocks
from support.pruned_networks import chain

ray = pytest.importorskip("ray", reason="leanconv[ray] is not installed")
over_ray = pytest.importorskip("leanconv.ray", reason="leanconv[ray] is not installed")

pytestmark = pytest.mark.once  # any plan will do
RANDOM = np.random.default_rng(0)


def network(batch: int | str = "N", width: int | str = 8, mixes: bool = False) -> bytes:
    """A convolution and a mean over space; less the mean over all images, if it is to mix them."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["a"], ["b" if mixes else "y"], axes=[2, 3]),
    ]
    if mixes:
        nodes.append(helper.make_node("ReduceMean", ["b"], ["m"], axes=[0]))
        nodes.append(helper.make_node("Sub", ["b", "m"], ["y"]))
    inputs, outputs = {"x": [batch, 3, 8, width]}, {"y": [batch, 4, 1, 1]}
    return small(nodes, inputs, outputs, {"w": weights(4, 3, 3, 3)})


def loaded(**form: Any) -> lc.Network:
    return lc.load(network(**form), threads=1, reproducible=True)


def images(count: int, width: int = 8) -> np.ndarray:
    return RANDOM.standard_normal((count, 3, 8, width)).astype(np.float32)


def same_bits(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.shape == other.shape and np.array_equal(one.view(np.uint32), other.view(np.uint32))


# -- without Ray's processes ---------------------------------------------------------------------
def test_a_batch_is_as_large_as_the_limit_allows() -> None:
    net = loaded()
    free = over_ray.plan_batches(net)
    assert free.batch_size == 256
    assert not free.because
    limit = over_ray.plan_batches(net, batch_size=16).memory_bytes
    plan = over_ray.plan_batches(net, memory_limit=limit)
    assert (plan.batch_size, plan.memory_bytes) == (16, limit)
    (whole, one) = (net.bind((count, 3, 8, 8)) for count in (16, 1))
    assert plan.network_bytes == whole.memory_bytes + one.arena_bytes
    assert plan.row_bytes == 4 * (3 * 8 * 8 + 4)
    assert "rows of x 3x8x8 in batches of 16, computed together" in plan.explain()
    with pytest.raises(lc.BudgetError, match="batches of 1 row need .* memory_limit=") as caught:
        over_ray.plan_batches(net, memory_limit=1000)
    needed = caught.value.smallest_bytes
    assert over_ray.plan_batches(net, memory_limit=needed).memory_bytes <= needed
    with pytest.raises(lc.BudgetError, match="batches of 5 rows need") as several:
        over_ray.plan_batches(net, batch_size=5, memory_limit=1000)
    needed = several.value.smallest_bytes
    assert over_ray.plan_batches(net, batch_size=5, memory_limit=needed).memory_bytes <= needed


@pytest.mark.parametrize(
    ("form", "because"),
    [({"mixes": True}, "output 'y' mixes the rows"), ({"batch": 1}, "fixes the batch of 'x' to 1")],
    ids=["mixes", "fixed"],
)
def test_rows_are_computed_one_by_one(form: dict[str, Any], because: str) -> None:
    net = loaded(**form)
    plan = over_ray.plan_batches(net, batch_size=5)
    assert because in plan.because
    x = images(5)
    y = over_ray.Predictor(net, plan)({"x": x})["y"]
    assert all(same_bits(y[n], net(x[n : n + 1])[0]) for n in range(5))


def test_rows_that_fill_no_batch_are_computed_one_by_one() -> None:
    net = loaded()
    predictor = over_ray.Predictor(net, over_ray.plan_batches(net, batch_size=12))
    x = images(27)  # 12 + 12 + 1 + 1 + 1
    found = predictor({"x": x, "number": np.arange(27)})
    assert list(found) == ["number", "y"]
    assert same_bits(found["y"], np.concatenate([net(x[n : n + 1]) for n in range(27)]))
    assert predictor({"x": x[:0]})["y"].shape == (0, 4, 1, 1)
    whole = np.round(images(3) * 9).astype(np.int8)
    assert same_bits(predictor({"x": whole})["y"], net(whole.astype(np.float32)))


def test_a_pruned_network() -> None:
    net = lc.load(chain((0.95, 0.9), batch="N"), threads=1, reproducible=True)
    x = RANDOM.standard_normal((5, 64, 28, 28)).astype(np.float32)
    found = over_ray.Predictor(net, over_ray.plan_batches(net, batch_size=2))({"x": x})["y1"]
    assert same_bits(found, np.concatenate([net(x[n : n + 1]) for n in range(5)]))
    assert {step.algorithm for step in net.plan.steps if step.op == "Conv"} == {"sparse"}


def test_rows_of_several_shapes() -> None:
    net = loaded(width="W")
    plan = over_ray.plan_batches(net, shapes=(3, 8, 12), batch_size=4)
    rows = [images(1, width)[0] for width in (8, 12, 8, 9, 12)]
    held = np.empty(5, object)
    held[:] = rows
    y = over_ray.Predictor(net, plan)({"x": held})["y"]
    assert all(same_bits(y[n], net(rows[n][np.newaxis])[0]) for n in range(5))


@pytest.mark.parametrize("order", [("places",), ("places", "p"), ("r", "large")], ids=",".join)
def test_outputs_that_follow_from_values(order: tuple[str, ...]) -> None:
    """Each row has its own; they are counted where the file bounds them, refused elsewhere."""
    net = lc.load(late_outputs(*order), threads=1, reproducible=True)
    plan = over_ray.plan_batches(net, batch_size=4)
    assert {name for name, kind in plan.outputs.items() if kind is None} == LATE & {*order}
    planned = sum(kind.bytes for kind in plan.outputs.values() if kind is not None)
    assert plan.row_bytes > planned + 4 * 3 * 8 * 8
    made = over_ray.Predictor(net, plan)
    given = images(3)
    found = made({"x": given})
    for row in range(3):
        for name, array in net.run({"x": given[row : row + 1]}).items():
            alone = array if name in LATE else array[0]
            np.testing.assert_array_equal(found[name][row], alone)
    empty = made({"x": given[:0]})
    assert list(empty) == list(order)
    for name, array in empty.items():
        assert len(array) == 0
        assert array.dtype == (np.int64 if name == "places" else np.float32)
    unbounded = lc.load(segment_behind_values(), threads=1, reproducible=True)
    with pytest.raises(lc.SpecError, match="nothing in the file says"):
        over_ray.plan_batches(unbounded, memory_limit="1 GiB")


def segment_behind_values() -> bytes:
    """A convolution of the columns that values choose."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], axes=[0, 1, 2], keepdims=0),
        helper.make_node("Greater", ["m", "half"], ["chosen"]),
        helper.make_node("Compress", ["x", "chosen"], ["c"], axis=3),
        helper.make_node("Conv", ["c", "w"], ["y"]),
    ]
    constants = {"w": weights(4, 3, 1, 1), "half": np.float32(0.5)}
    return small(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 8, "W"]}, constants)


def test_what_does_not_fit_is_told() -> None:
    net = loaded()
    predictor = over_ray.Predictor(net, over_ray.plan_batches(net, batch_size=2))
    for batch, text in (
        ({"image": images(2)}, "no column 'x' .* it has image; give columns="),
        ({"x": images(2).astype(np.float64)}, "rows of float64 .*astype"),
        ({"x": images(2).transpose(0, 2, 3, 1)}, r"rows of float32\[8x8x3\] .*transpose"),
        ({"x": images(2), "y": np.zeros(2)}, "has a column 'y'"),
    ):
        with pytest.raises(lc.InputError, match=text):
            predictor(batch)
    for given, text in (
        ({"shapes": (3, 8)}, "a row of input x"),
        ({"shapes": {"z": (3, 8, 8)}}, "'z', which is no input"),
        ({"batch_size": 0}, "expected a positive number"),
    ):
        with pytest.raises(lc.LeanConvError, match=text):
            over_ray.plan_batches(net, **given)
    with pytest.raises(lc.InputError, match="expected a first axis that is open, or 1"):
        over_ray.plan_batches(loaded(batch=4))
    with pytest.raises(lc.InputError, match="shapes="):
        over_ray.plan_batches(loaded(width="W"))
    with pytest.raises(lc.SpecError, match="reproducible=True"):
        over_ray.plan_batches(lc.load(network(), threads=1))


def test_another_kind_of_processor_is_refused() -> None:
    from dataclasses import replace

    net = loaded()
    plan = over_ray.plan_batches(net, batch_size=2)
    other = replace(plan, target=replace(plan.target, cpu="another", isa="avx2"))
    with pytest.raises(lc.SpecError, match=r"planned for \(another, avx2\).* LEANCONV_TARGET"):
        over_ray.Predictor(net, other)
    assert over_ray.Predictor(net, other, same_bits=False)({"x": images(2)})["y"].shape[0] == 2


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("leanconv.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(lc.MissingExtraError, match=r"pip install 'leanconv\[ray\]'"):
        import leanconv.ray  # noqa: F401


# -- on a Ray of this machine ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))  # the examples, for its processes
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    sys.path.remove(str(ROOT))


def test_a_killed_actor_loses_nothing(tmp_path: Path, cluster: None) -> None:
    net, x, died = loaded(), images(40), str(tmp_path / "died")

    class Dying(over_ray.Predictor):
        """Ends its process, once, with the first half of the rows computed."""

        def __call__(self, batch: Any) -> Any:
            found = super().__call__(batch)
            if 20 in batch["number"] and not os.path.exists(died):
                with open(died, "w") as file:
                    file.write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return found

    rows = [{"image": image, "number": number} for number, image in enumerate(x)]
    dataset = ray.data.from_items(rows, override_num_blocks=4)
    plan = over_ray.plan_batches(net, batch_size=4)
    given = over_ray.arguments(net, plan, columns="image", actors=2)
    found = sorted(dataset.map_batches(Dying, **given).take_all(), key=lambda row: row["number"])
    assert [row["number"] for row in found] == list(range(40))
    expected = np.concatenate([net(x[n : n + 1]) for n in range(40)])
    assert same_bits(np.stack([row["y"] for row in found]), expected)
    assert int(Path(died).read_text()) != os.getpid()


def test_the_python_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("init", "shutdown"):  # what runs already is used
        monkeypatch.setattr(ray, name, lambda **options: None)
    names = run_blocks("docs/ray.md", tmp_path)
    assert len(names["done"]) == 2


def test_a_network_that_is_sent_plans_for_the_same_processor() -> None:
    net = loaded()
    sent = pickle.loads(pickle.dumps(net, protocol=5))
    assert sent.backend.target == net.backend.target
