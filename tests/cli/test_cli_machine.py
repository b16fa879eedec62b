"""The sub-command machine: what plans are made for, and what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from leanconv.codegen import host as host_module
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import host
from leanconv.runtime import calibration
from leanconv.runtime.calibration import this_machine
from leanconv.target.costs import Costs, numbers, unit_of
from leanconv.target.rates import Rates
from support.cli_fakes import Call

RATES = Rates(30.0, 10.4, 4.2, 9 * 2**20, 2.1, 4, undisturbed=True)


@pytest.fixture
def unheard_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that nobody knows, and whose rates are always these."""
    target = replace(host(), cpu="unheard-of")
    store = DiskCache(tmp_path / "machine", 2**20, ".json")
    monkeypatch.setattr(host_module, "host", lambda: target)
    monkeypatch.setattr(calibration, "host", lambda: target)
    monkeypatch.setattr(calibration, "_store", lambda: store)
    monkeypatch.setattr(calibration, "measure", lambda target: RATES)
    this_machine.cache_clear()
    yield
    this_machine.cache_clear()


def test_the_record_is_named_with_each_number_s_source(call: Call) -> None:
    report = json.loads(call("machine", "--json").out)
    record = this_machine().costs
    assert report["record"].keys() == numbers(record).keys()
    named = [name for source in report["sources"] for name in source["names"]]
    assert sorted(named) == sorted(report["record"])
    assert report["measured"] is None
    text = call("machine", "--wide").out
    assert this_machine().costs_text in text
    assert "strided_line" in text
    assert re.search(r"^l2_read +\S+ +bytes a cycle", text, re.M)
    assert re.search(r"^strided_line +\S+ +cycles ", text, re.M)
    assert report["units"].keys() == report["record"].keys()


def test_only_what_counts_cycles_has_cycles_as_its_unit() -> None:
    """What `Costs` says of a number names its unit: cycles wherever no other is listed."""
    said = dict(
        re.findall(r"^        (\w+(?:, \w+)*): (.*(?:\n {12}.*)*)", Costs.__doc__ or "", re.M)
    )
    texts = {name: text for names, text in said.items() for name in names.split(", ")}
    for name in numbers(this_machine().costs):
        if unit_of(name) == "cycles":
            assert "cycles" in texts[name], name


def test_a_known_processor_is_measured_for_comparison(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "is_known", lambda target: True)
    monkeypatch.setattr(calibration, "measure", lambda target: RATES)
    monkeypatch.setattr(calibration, "keep", lambda *given: pytest.fail(f"kept {given}"))
    before = this_machine()
    result = call("machine", "--measure")
    assert "10.4" in result.out
    assert "Plans go on with the record" in result.out
    assert this_machine() is before


def test_an_unknown_processor_is_measured_anew_and_kept(
    call: Call, unheard_of: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "rates measured on this machine" in call("machine").out
    assert calibration.recall(calibration.host()) == (
        RATES.rounded(),
        calibration.recall(calibration.host())[1],
    )
    slower = replace(RATES, l3_read=6.1)
    monkeypatch.setattr(calibration, "measure", lambda target: slower)
    report = json.loads(call("machine", "--measure", "--json").out)
    assert report["measured_is_used"]
    assert report["measured"]["l3_read"] == 6.1
    assert report["record"]["l3_read"] == 6.0
    assert calibration.recall(calibration.host())[0] == slower.rounded()
    assert "Kept" in call("machine", "--measure").out


def test_a_disturbed_measurement_says_so(
    call: Call, unheard_of: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed = replace(RATES, dram_read=0.0, undisturbed=False)
    monkeypatch.setattr(calibration, "measure", lambda target: disturbed)
    result = call("machine", "--measure")
    assert "try again" in result.out
    assert calibration.recall(calibration.host()) is None
