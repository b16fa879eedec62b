"""Gradients of a convolution on the command line: their algorithms, plans, and who is timed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import WEIGHT_GRADIENTS
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import GRADIENT_ENGINES, EngineProcess, Installed
from leanconv.cli.gradients import gradient_works
from leanconv.spec import ConvSpec
from support.cli_fakes import Call

PROBLEM = "mb2ic16ih10oc24oh10kh3ph1"


@pytest.mark.parametrize("need", ["x", "w"])
def test_algorithms_of_a_gradient(call: Call, need: str) -> None:
    """Each by its name, as a plan by that name has it."""
    shown = call("algorithms", PROBLEM, "--gradient", need, "--threads", "2")
    assert shown.code == 0
    assert shown.out.startswith(f"d{need} of {ConvSpec.parse(PROBLEM)}")
    told = call("algorithms", PROBLEM, "--gradient", need, "--threads", "2", "--json")
    document = json.loads(told.out)
    assert document["gradient"] == need
    rows = {row["algorithm"]: row for row in document["algorithms"]}
    if need == "w":
        assert set(rows) == set(WEIGHT_GRADIENTS)
        assert rows["depthwise"]["reason"]
    assert {"direct", "mec", "im2col", "naive"} <= set(rows)
    for name in ("direct", "mec"):
        plan = lc.plan_conv2d_backward(
            (2, 16, 10, 10),
            (24, 16, 3, 3),
            padding=1,
            needs=(need,),
            algorithm=rows[name]["selector"],
            threads=2,
        )
        assert plan.workspace_bytes == rows[name]["workspace_bytes"]
        assert plan.predicted_error == rows[name]["error"]
    times = [row["seconds"] for row in document["algorithms"] if not row["reason"]]
    assert times == sorted(times)


def test_algorithms_of_a_gradient_are_timed(call: Call) -> None:
    shown = call("algorithms", "ic4ih6oc4kh3", "--gradient", "w", "--measure", "--json")
    rows = json.loads(shown.out)["algorithms"]
    assert all(row["measured_seconds"] > 0 for row in rows if not row["reason"])


def test_explain_of_a_gradient(call: Call) -> None:
    shown = call("explain", PROBLEM, "--gradient", "w")
    assert shown.code == 0
    assert "dw: " in shown.out
    assert "expected error" in shown.out
    told = call("explain", PROBLEM, "--gradient", "x", "--memory-limit", "1MiB", "--json")
    report = json.loads(told.out)
    assert (report["gradient"], report["asked"]["memory_limit"]) == ("x", 2**20)
    assert report["memory_bytes"] <= 2**20


def test_gradients_go_with_problems(call: Call) -> None:
    for command in ("explain", "bench"):
        refused = call(command, "model.onnx", "--gradient", "w")
        assert refused.code == 2
        assert "--gradient goes with" in refused.err
    for option in (["--tune"], ["--precision", "float16"]):
        refused = call("explain", PROBLEM, "--gradient", "w", *option)
        assert refused.code == 2
        assert f"{option[0]} goes with no gradient" in refused.err


def test_bench_of_a_gradient(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "wait_until_quiet", lambda *_: 0.0)
    quick = ("--processes", "1", "--rounds", "1", "--seconds", "0.01", "--threads", "1")
    alone = (*quick, "--engine", "leanconv", "--json")
    document = json.loads(call("bench", PROBLEM, "--batch", "2", "--gradient", "w", *alone).out)
    (case,) = document["cases"]
    assert case["name"] == f"dw of {ConvSpec.parse(PROBLEM)}"
    assert case["engines"]["leanconv"]["median_ns"] > 0
    assert document["failures"] == []


@pytest.mark.parametrize("need", ["x", "w"])
@pytest.mark.parametrize("text", [PROBLEM, "g4ic8iw20oc8kw3sw2dw1", "ic2id4ih5iw6oc3kd2kh3kw3"])
def test_engines_agree(tmp_path: Path, text: str, need: str) -> None:
    """leanconv's answer, and torch's where it is installed."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    spec, answers = ConvSpec.parse(text), list[np.ndarray]()
    work = next(gradient_works({"": spec}, need, tmp_path))
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **work.inputs)  # type: ignore[arg-type]
    for engine in GRADIENT_ENGINES:
        process = EngineProcess(Installed(engine, sys.executable))
        with process:
            asked = {"do": "load", "model": str(work.model), "inputs": str(inputs), "threads": 1}
            process.ask(asked)
            file = tmp_path / f"{engine.name}.npz"
            process.ask({"do": "answer", "file": str(file)})
        with np.load(file) as archive:
            answers.append(archive["output_0"])
    expected = spec.input_shape if need == "x" else spec.weight_shape
    assert answers[0].shape == answers[1].shape == expected
    np.testing.assert_allclose(*answers, rtol=0, atol=1e-4)
