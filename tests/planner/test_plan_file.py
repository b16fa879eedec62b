"""A plan as a file: the same bits without planning, equal files for equal plans, no trust."""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from examples.networks import FULL_NETWORKS, SMALL_NETWORKS
from leanconv.codegen.host import host
from leanconv.planner import graph_planner, plan_file
from leanconv.planner.network_plan import NetworkPlan


@cache
def model(name: str) -> bytes:
    if name == "resnet50":
        return FULL_NETWORKS[name](width=0.125, image=64).SerializeToString()
    return SMALL_NETWORKS[name]().SerializeToString()


def image(net: lc.Network) -> np.ndarray:
    (port,) = net.inputs
    shape = [n if isinstance(n, int) else 1 for n in port.shape]
    return np.random.default_rng(0).standard_normal(shape).astype(port.dtype)


@pytest.mark.usefixtures("nodes_evaluated_once")
@pytest.mark.parametrize("name", ["resnet50", "googlenet_like", "shufflenet_like"])
def test_the_same_bits_without_planning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = lc.load(model(name), threads=2)
    x = image(free)
    y = free(x)
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(model(name), threads=2, memory_limit=1)(x)
    limit = (caught.value.smallest_bytes + free.plan.memory_bytes) // 2
    for memory_limit in (None, limit):
        net = lc.load(model(name), threads=2, memory_limit=memory_limit)
        y = net(x)
        first, second = tmp_path / "a.json", tmp_path / "b.json"
        net.plan.save(first)
        with monkeypatch.context() as patched:
            patched.setattr(graph_planner, "make_search_graph", None)
            again = lc.load(model(name), plan=first)
            np.testing.assert_array_equal(again(x), y)
        assert again.plan.memory_bytes == net.plan.memory_bytes == again.used_bytes
        assert again.plan.storage.buffers == net.plan.storage.buffers
        again.plan.save(second)
        assert first.read_text() == second.read_text()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@cache
def planned(name: str) -> NetworkPlan:
    net = lc.load(model(name), threads=2)
    net(image(net))
    return net.plan


def saved(tmp_path: Path, name: str = "shufflenet_like") -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "plan.json"
    planned(name).save(path)
    return path, json.loads(path.read_text())


def test_a_file_of_version_1_says_the_same(tmp_path: Path) -> None:
    path, document = saved(tmp_path)
    expected = plan_file.read_plan(path)
    old = {"options": "asked", "predicted": "promised", "choice": "way"}
    nodes = [{old.get(key, key): node[key] for key in node} for node in document["nodes"]]
    first = {old.get(key, key): document[key] for key in document}
    path.write_text(json.dumps({**first, "version": 1, "nodes": nodes}))
    assert "way" in nodes[0]
    assert plan_file.read_plan(path) == expected


def test_it_says_what_a_reader_wants_to_know(tmp_path: Path) -> None:
    path, document = saved(tmp_path)
    net = lc.load(model("shufflenet_like"), threads=2)
    net(image(net))
    assert document["predicted"]["memory_bytes"] == net.plan.memory_bytes
    assert document["predicted"]["predicted_error"] == net.plan.predicted_error
    convolutions = [node for node in document["nodes"] if node["op"] == "Conv"]
    assert convolutions
    for node in convolutions:
        assert node["choice"]
        assert node["time_ns"] > 0
        assert node["error"] > 0
        assert node["weight_bytes"] > 0
    ends = [buffer["offset"] + buffer["bytes"] for buffer in document["buffers"]]
    assert max(ends) == net.plan.arena_bytes
    assert len(path.read_bytes()) < 2**20


def test_on_another_cpu_it_plans_anew_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, document = saved(tmp_path)
    document["target"]["l2_bytes"] *= 2
    document["target"]["cpu"] = "another"
    path.write_text(json.dumps(document))
    net = lc.load(model("shufflenet_like"), plan=path)
    net(image(net))
    assert "another CPU (another" in caplog.text
    assert "cpu, l2_bytes differ" in caplog.text
    assert net.used_bytes == net.plan.memory_bytes


def test_the_name_of_a_cpu_decides_nothing(tmp_path: Path) -> None:
    path, document = saved(tmp_path)
    document["target"]["name"] = "the same by another name"
    path.write_text(json.dumps(document))
    assert plan_file.other_target(plan_file.read_plan(path), host()) == ""


def test_another_network_is_planned_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, document = saved(tmp_path)
    document["network"] = "0" * 32
    path.write_text(json.dumps(document))
    net = lc.load(model("shufflenet_like"), plan=path)
    net(image(net))
    assert "another network" in caplog.text


def test_other_threads_keep_the_choices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their scratch, which im2col needs on every machine, moves what the arena holds."""
    path, document = saved(tmp_path, "resnet50")
    name = next(node["name"] for node in document["nodes"] if node["op"] == "Conv")
    made = lc.load(model("resnet50"), threads=2, algorithms={name: "im2col"})
    made(image(made))
    made.plan.save(path)
    two = lc.load(model("resnet50"), plan=path)
    x = image(two)
    three = lc.load(model("resnet50"), plan=path, threads=3)
    np.testing.assert_array_equal(three(x), two(x))
    assert three.plan.threads == 3
    assert "laid out anew" in caplog.text


def test_changed_code_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, document = saved(tmp_path)
    document["nodes"][0]["kernels"] = "0" * 16
    path.write_text(json.dumps(document))
    net = lc.load(model("shufflenet_like"), plan=path)
    net(image(net))
    assert "may differ in the last bits" in caplog.text


@pytest.mark.parametrize("number", [0, 3])
def test_offsets_that_overlap_are_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    path, document = saved(tmp_path, "resnet50")
    net = lc.load(model("resnet50"), plan=path)
    x = image(net)
    y = net(x)
    for buffer in document["buffers"]:
        buffer["offset"] = number * 64
    path.write_text(json.dumps(document))
    again = lc.load(model("resnet50"), plan=path)
    np.testing.assert_array_equal(again(x), y)
    assert again.plan.arena_bytes == net.plan.arena_bytes
    assert "laid out anew" in caplog.text


def test_an_arena_with_a_hole_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, document = saved(tmp_path)
    document["buffers"][0]["offset"] = 2**33
    path.write_text(json.dumps(document))
    net = lc.load(model("shufflenet_like"), plan=path)
    assert net.bind((1, 3, 64, 64)).arena_bytes < 2**22
    assert "laid out anew" in caplog.text


def change(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    place: Any = document
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[int(last) if isinstance(place, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "plan"),
        ("version", 3),
        ("options", None),
        ("options.threads", 0),
        ("options.threads", True),
        ("options.threads", 1025),
        ("options.dtype", "int8"),
        ("options.memory_limit", -1),
        ("options.max_error", "much"),
        ("options.max_error", 10**400),
        ("options.max_error", 0),
        ("options.inputs", {"x": [-1]}),
        ("options.inputs", {"x": "many"}),
        ("predicted.arena_bytes", 1.5),
        ("predicted.predicted_error", -1),
        ("nodes", {}),
        ("nodes.0", 7),
        ("nodes.0.writes", "c3"),
        ("nodes.0.writes", ["plain"]),
        ("nodes.0.reads", {"x": "c1000000"}),
        ("nodes.0.choice", 3),
        ("nodes.0.name", "n" * 5000),
        ("buffers.0.offset", -64),
        ("buffers.0.bytes", 2**70),
        ("buffers.0.scratch", 1),
        ("target.cpu", ["x"]),
        ("network", None),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, path: str, value: Any) -> None:
    file, document = saved(tmp_path)
    change(document, path, value)
    file.write_text(json.dumps(document))
    with pytest.raises(lc.InputError, match="plan"):
        lc.load(model("shufflenet_like"), plan=file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes.0.choice", "winograd:m=1000"),
        ("nodes.0.choice", "no_such_way"),
        ("nodes.0.writes", "c2"),
        ("nodes.0.reads", {}),
        ("nodes.0.output", "another"),
        ("nodes", []),
    ],
)
def test_what_cannot_be_done_is_planned_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, value: Any
) -> None:
    file, document = saved(tmp_path)
    change(document, path, value)
    file.write_text(json.dumps(document))
    net = lc.load(model("shufflenet_like"), plan=file)
    free = lc.load(model("shufflenet_like"), threads=2)
    x = image(net)
    np.testing.assert_array_equal(net(x), free(x))
    assert "not followed" in caplog.text


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN', b"7"])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(data)
    with pytest.raises(lc.InputError, match="plan"):
        lc.load(model("shufflenet_like"), plan=file)


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "MOST_BYTES", 1000)
    file, _ = saved(tmp_path)
    with pytest.raises(lc.InputError, match="1000 bytes"):
        lc.load(model("shufflenet_like"), plan=file)
    with pytest.raises(lc.InputError, match="cannot be read"):
        lc.load(model("shufflenet_like"), plan=tmp_path / "missing.json")


def test_another_size_than_the_plan_files_is_planned_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = saved(tmp_path)
    net = lc.load(model("shufflenet_like"), plan=path)
    net(image(net))
    assert not caplog.records
    net.bind((2, 3, 64, 64))
    assert f"plan file {str(path)!r} is for inputs" in caplog.text
    assert "2x3x64x64 is planned anew" in caplog.text
