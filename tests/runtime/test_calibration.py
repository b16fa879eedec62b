"""This machine, measured where nobody knows its processor: kept, read again, renewed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import host
from leanconv.runtime import calibration
from leanconv.runtime.calibration import (
    Rates,
    alike,
    is_known,
    measure,
    planning_target,
    this_machine,
)
from leanconv.target import PRESETS, Target
from support.listing import assembly_text

CLASSES = Rates(32.0, 10.0, 4.0, 8 * 2**20, 2.0, 4, undisturbed=True)


@pytest.fixture
def unheard_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Target]:
    """This machine, as if nobody knew its processor, with an empty cache folder."""
    target = replace(host(), cpu="unheard-of")
    store = DiskCache(tmp_path / "machine", 2**20, ".json")
    monkeypatch.setattr(calibration, "host", lambda: target)
    monkeypatch.setattr(calibration, "_store", lambda: store)
    this_machine.cache_clear()
    yield target
    this_machine.cache_clear()


def test_a_known_processor_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "host", lambda: replace(PRESETS["znver4"], name="host"))
    monkeypatch.setattr(calibration, "measure", lambda target: pytest.fail(f"measured {target}"))
    this_machine.cache_clear()
    assert this_machine().costs == PRESETS["znver4"].costs
    this_machine.cache_clear()
    assert is_known(replace(host(), cpu="cascadelake"))


def test_rates_are_measured_once_and_read_by_later_processes(
    unheard_of: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    measured = Rates(30.0, 10.4, 4.2, 9 * 2**20, 2.1, 4, undisturbed=True)
    monkeypatch.setattr(calibration, "measure", lambda target: calls.append(target) or measured)
    first = this_machine()
    assert first.costs.cpu == "unheard-of, measured"
    assert (first.costs.l3_read, first.costs.dram_read) == (10.0, 4.0)
    assert first is this_machine()
    this_machine.cache_clear()  # as another process
    assert this_machine() == first
    assert calls == [unheard_of]


def test_what_was_disturbed_is_measured_again_by_the_next_process(
    unheard_of: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(calibration, "measure", lambda target: calls.append(target) or Rates())
    assert this_machine() == unheard_of
    this_machine.cache_clear()
    this_machine()
    assert len(calls) == 2


def test_without_memory_for_buffers_the_nearest_record_is_used(
    unheard_of: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Target) -> Rates:
        raise MemoryError

    monkeypatch.setattr(calibration, "measure", refuse)
    assert this_machine() == unheard_of
    assert calibration.recall(unheard_of) is None


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        json.dumps({"rates": {}, "date": "yesterday"}).encode(),
        json.dumps({"rates": {**asdict(CLASSES), "l2_read": 31.0}, "date": "2026-11-23"}).encode(),
        json.dumps({"rates": {**asdict(CLASSES), "l2_read": "x"}, "date": "2026-11-23"}).encode(),
        json.dumps({"rates": {**asdict(CLASSES), "other": 1}, "date": "2026-11-23"}).encode(),
        json.dumps({"rates": {**asdict(CLASSES), "l3_read": None}, "date": "2026-11-23"}).encode(),
    ],
)
def test_an_entry_that_says_something_else_is_a_miss(unheard_of: Target, body: bytes) -> None:
    calibration.keep(unheard_of, CLASSES, "2026-11-23")
    assert calibration.recall(unheard_of) == (CLASSES, "2026-11-23")
    calibration._store().put(calibration._key(unheard_of), body)
    assert calibration.recall(unheard_of) is None


def test_this_core_is_measured_within_reason() -> None:
    """However busy: what was measured is a rate that some core has."""
    rates = measure(host())
    assert 0 <= rates.dram_read <= rates.l3_read * 1.5 or not rates.l3_read
    assert 0 <= rates.l2_read < 300
    assert 0 < rates.fma_units < 10


@pytest.mark.parametrize(
    ("l2_mb", "l3_mb", "beyond"),
    [(24, 0, 0), (1, 0, 1), (256, 0, 0), (2, 260, 4), (1, 32, 5), (64, 512, 0)],
)
def test_no_more_is_read_than_there_is(
    monkeypatch: pytest.MonkeyPatch, l2_mb: int, l3_mb: int, beyond: int
) -> None:
    """Whatever caches a system reports; the buffer's last byte belongs to the largest size."""
    read: list[tuple[int, int]] = []

    class Meter(calibration._Meter):
        def __init__(self, target: Target, most_bytes: int) -> None:
            self.room, self.fma_units, self.fma_latency = most_bytes, 2.0, 4.0

        def rate(self, size: int) -> float:
            read.append((size, self.room))
            return 20.0

    monkeypatch.setattr(calibration, "_Meter", Meter)
    rates = measure(replace(host(), l2_bytes=l2_mb << 20, l3_bytes=l3_mb << 20))
    assert all(0 < size <= room <= 64 << 20 for size, room in read)
    assert len(read) == 1 + beyond
    assert rates.undisturbed
    assert rates.dram_read == 0  # all was read as fast
    assert (rates.l3_read > 0) == (l3_mb > 0 < beyond)


def test_machines_without_one_of_the_rates_keep_what_they_have(unheard_of: Target) -> None:
    """A core without L3, and one whose L3 holds every buffer, are measured once, too."""
    for rates in (replace(CLASSES, l3_read=0.0, l3_bytes=0), replace(CLASSES, dram_read=0.0)):
        calibration.keep(unheard_of, rates, "2026-11-23")
        assert calibration.recall(unheard_of) == (rates, "2026-11-23")


def test_plans_are_made_for_the_target_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = replace(calibration.current_settings(), target="haswell")
    monkeypatch.setattr(calibration, "current_settings", lambda: named)
    assert planning_target() == PRESETS["haswell"]


def test_the_busy_loop_has_all_its_multiply_adds() -> None:
    """One chain alone would not notice that another thread shares the core's units."""
    code = assembly_text(calibration.module_text(), host()).split("busy:")[1]
    assert len(re.findall(r"fmadd|fmla", code)) >= host().least_accumulators


def test_a_sender_of_the_same_kind_is_planned_for_with_its_rates() -> None:
    here = replace(PRESETS["znver4"], name="host")
    measured = replace(here, costs=PRESETS["haswell"].costs, l3_bytes=here.l3_bytes // 2)
    assert alike(measured, here) is measured
    assert alike(replace(measured, l2_bytes=here.l2_bytes // 2), here) is here
    assert alike(PRESETS["haswell"], here) is here
