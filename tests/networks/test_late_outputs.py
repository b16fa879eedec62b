"""Outputs that follow from values, among planned ones and in any order, wherever they are read."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as real
import pytest

import leanconv as lc
import leanconv.onnxruntime as ours
from leanconv.cli.main import main
from leanconv.errors import InputError, UnsupportedError
from support.late_outputs import LATE, ORDERS, late_outputs
from support.network_models import by_onnxruntime

X = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
in_orders = pytest.mark.parametrize("order", ORDERS, ids=",".join)


def same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@in_orders
def test_networks_and_their_plans(order: Sequence[str], tmp_path: Path) -> None:
    made = late_outputs(*order, batch=1)
    expected = by_onnxruntime(made, {"x": X})
    net = lc.load(made, threads=1)
    assert list(net.plan.outputs) == list(order)
    assert {name for name, kind in net.plan.outputs.items() if kind is None} == LATE & {*order}
    net.plan.save(tmp_path / "plan.json")
    for each in (
        net,
        copy.copy(net),
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),
        lc.load(made, threads=1, plan=tmp_path / "plan.json"),
    ):
        found = each.run({"x": X})
        assert list(found) == list(order)
        same(list(found.values()), [expected[name] for name in order])
    backwards = list(order)[::-1]
    same(net.run(backwards, {"x": X}), [expected[name] for name in backwards])
    assert "NumPy computes" in net.explain()
    assert "NumPy computes" in net.report(front=False)["late"]
    assert len(net.profile(X, 1)) == len(net.plan.steps)
    assert "in memory" in str(net.footprint())


@in_orders
def test_sessions_and_bindings(order: Sequence[str]) -> None:
    made = late_outputs(*order)
    sessions = [m.InferenceSession(made, providers=["CPUExecutionProvider"]) for m in (ours, real)]
    mine, other = ([(y.name, y.type) for y in each.get_outputs()] for each in sessions)
    assert mine == other
    expected = list(by_onnxruntime(made, {"x": X}).values())
    session = sessions[0]
    same(session.run(None, {"x": X}), expected)
    for into in ([None] * len(order), [np.zeros_like(y) for y in expected]):
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        for name, array in zip(order, into, strict=True):
            if array is None:
                binding.bind_output(name)
            else:
                value = ours.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_output(name, value)
        session.run_with_iobinding(binding)
        same(binding.copy_outputs_to_cpu(), expected)
        assert all(array is None or array.any() for array in into)


@pytest.mark.parametrize("order", [("places",), ("r", "places")], ids=",".join)
def test_tiles_refuse_them(order: Sequence[str]) -> None:
    net = lc.load(late_outputs(*order, batch=1, side="S"), threads=1)
    with pytest.raises(UnsupportedError, match="extents that are data"):
        lc.tiled(net, memory_limit="4 MiB").run({"x": X})
    if len(order) > 1:
        with pytest.raises(InputError, match="expected one"):
            lc.tiled(net, memory_limit="4 MiB")(X)


@pytest.mark.parametrize("order", [("places",), ("large", "r")], ids=",".join)
def test_the_command_line(
    order: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, given, page = (str(tmp_path / name) for name in ("late.onnx", "x.npy", "p.html"))
    Path(file).write_bytes(late_outputs(*order, batch=1))
    np.save(given, X)
    for command in (
        ["run", file, given],
        ["explain", file],
        ["explain", file, "--html", page],
        ["profile", file, "--repeat", "1"],
        ["verify", file, "--count", "1"],
        ["warm", file],
        ["quantize", file, given, "-o", str(tmp_path / "q.onnx"), "--max-accuracy-drop", "1"],
    ):
        assert main(command) == 0, capsys.readouterr().err
    assert "then NumPy computes" in Path(page).read_text()
    capsys.readouterr()
    assert main(["run", file, given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(name in json.dumps(document) for name in order)
