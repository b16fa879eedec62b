"""The limits that are measured, one turn, the peak of a process, and the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

import pareto
from examples.networks import FULL_NETWORKS
from pages.pareto import page


def test_limits_go_from_the_least_to_none() -> None:
    wanted = pareto.limits(1000, 3000, 500)
    assert wanted[0] == ("least", 1000)
    assert wanted[-1] == ("none", None)
    numbers = [limit for _, limit in wanted[:-2]]
    assert numbers == sorted(numbers)
    assert dict(wanted)["weights + 8 MiB"] == 500 + pareto.BEYOND_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_network_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "net.onnx"
    built = FULL_NETWORKS["mobilenetv2"](width=0.25)
    file.write_bytes(built.SerializeToString())
    monkeypatch.setattr(pareto, "model_file", lambda _: file)
    monkeypatch.setattr(pareto, "SHARES", (0.0,))
    monkeypatch.setattr(pareto, "_TURN_S", 0.01)
    options = argparse.Namespace(threads=1, rounds=2, patience=0.0)
    found = pareto.measure("mobilenetv2", [], options, tmp_path)
    least, _, free = found["plans"]
    assert least["limit_bytes"] == found["smallest_bytes"]
    assert least["arena_bytes"] + least["weight_bytes"] == found["smallest_bytes"]
    assert free["error"] < 1e-4
    for plan in found["plans"]:
        assert len(plan["round_medians_ns"]) == 2
        assert plan["least_ns"] <= plan["median_ns"]
        assert plan["peak_bytes"] > plan["weight_bytes"]
    host = {"cpu": "a CPU", "time_utc": "2026-11-26", "commit": None}
    text = page({"machine": host, "effort": {"threads": 1}, "networks": {"mobilenetv2": found}})
    assert f"{found['smallest_bytes']:,}" in text
    assert np.isfinite(found["plans"][0]["low_ns"])
