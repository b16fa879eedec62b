"""The benchmark that fills a record of costs: everything that it runs, without the times."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import calibrate
from leanconv.cli.engines import machine
from leanconv.codegen.host import host
from leanconv.target import PRESETS
from leanconv.target.costs import Costs
from leanconv.types import FLOAT32
from microkernel import aligned, work
from stream_kernels import UNROLL, Stream
from support.listing import assembly


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Calls that were to be timed: each is made once, and is said to take 1,000 cycles."""
    made: list[None] = []

    def once(self: calibrate.Meter, call: Callable[[], object]) -> float:
        call()
        made.append(None)
        return 1000.0

    monkeypatch.setattr(calibrate.Meter, "cycles", once)
    monkeypatch.setattr(machine, "wait_until_quiet", lambda: 0.0)
    return made


def test_all_that_is_measured_is_a_field_and_what_is_not_is_named(
    calls: list[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "costs.json"
    largest = str(8 * host().l2_bytes // 2**20)
    monkeypatch.setattr("sys.argv", ["calibrate.py", "--most-mb", largest, "--out", str(out)])
    assert calibrate.main() == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Costs)} - {"cpu", "sources"}
    measured, fitted = set(result["measured"]), set(result["fitted_only"])
    assert measured <= known
    assert not measured & fitted
    assert known - measured - fitted <= {f.name for f in fields(Costs) if f.default is None}
    assert {
        "l2_read",
        "dram_read",
        "transposed_store",
        "stage",
    } <= measured
    assert result["machine"]["cpu"]
    assert "commit" in result["machine"]
    assert result["effort"]["threads"] == 1
    assert len(calls) > 10


def test_what_one_core_finds_in_l3_is_where_the_rate_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = calibrate.Meter.__new__(calibrate.Meter)
    meter.target, meter.fma_units = PRESETS["sapphirerapids"], 2.0
    asked: list[tuple[str, int]] = []

    def stream(self: object, action: str, size: int, lanes: int = 0, **_: int) -> float:
        asked.append((action, size))
        return 10.0

    monkeypatch.setattr(calibrate.Meter, "stream", stream)
    mb = 2**20
    rates = {4 * mb: 10.9, 8 * mb: 10.5, 64 * mb: 10.2, 128 * mb: 6.7, 256 * mb: 5.0}
    found = calibrate.beyond_l2(meter, rates)
    assert found["l3_most_bytes"] == 64 * mb
    assert found["dram_read"] == 5.0
    assert ("read", 40 * mb) in asked


def test_streams_read_write_and_copy_all_of_their_buffers() -> None:
    lanes, steps = host().lanes(FLOAT32), 3
    count = lanes * steps * UNROLL
    x = aligned(count)
    x[:] = np.arange(count)
    for action in ("read", "write", "copy"):
        kernel = Stream(action, lanes, steps, passes=2)
        y = np.zeros(count, np.float32)
        bound = work(action, kernel, x, y)
        bound.call()
        if action == "copy":
            assert np.array_equal(x, y)
        elif action == "write":
            assert np.array_equal(y, np.tile(x[:lanes], steps * UNROLL))
        else:
            total = 2 * x.reshape(steps, -1).sum(0)
            assert np.array_equal(y[: UNROLL * lanes], total)
        assert kernel.moved_bytes == 2 * 4 * count * (2 if action == "copy" else 1)


@pytest.mark.parametrize("name", ["haswell", "znver4", "neoverse-n1"])
def test_streams_are_emitted_for_any_target(name: str) -> None:
    target = PRESETS[name]
    kernel = Stream("read", target.lanes(FLOAT32), 4, multiply_adds=2)
    assert "fm" in assembly(kernel, target)
