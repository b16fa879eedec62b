"""The look at speed: what it compares, and that it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import speed_check


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of one case, and a case that does nothing."""
    monkeypatch.setattr(speed_check, "TURN_S", 0.0005)
    monkeypatch.setattr(speed_check, "cases", lambda: iter([("nothing", 1e6, lambda: None)]))
    return tmp_path / "record.json"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["speed_check.py", *map(str, arguments)])
    return speed_check.main()


def test_what_is_as_fast_as_recorded_passes(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--record", record) == 0
    assert "nothing can fail here; record it with --write" in capsys.readouterr().out
    assert run(monkeypatch, "--write", "--record", record) == 0
    assert run(monkeypatch, "--record", record) == 0
    assert f"recorded on {speed_check.machine.describe().cpu}" in capsys.readouterr().out


def test_what_is_much_slower_fails(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isa = speed_check.host().isa
    shares = {"nothing": 1e9, "not there": 0.5}
    speed_check.write(record, {isa: speed_check.Record(shares)})
    assert run(monkeypatch, "--record", record) == 3


def test_another_instruction_set_is_shown_and_does_not_fail(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"another": speed_check.Record({"nothing": 1e9})}
    speed_check.write(record, other)
    assert run(monkeypatch, "--record", record) == 0
    assert "nothing: 2.5 times slower" in capsys.readouterr().out
    assert run(monkeypatch, "--write", "--record", record) == 0
    assert speed_check.read(record).keys() == {"another", speed_check.host().isa}


def test_records_keep_the_least() -> None:
    assert speed_check.slower({"a": 0.3}, {"a": 0.8}) == ["a"]
    assert speed_check.slower({"a": 0.4}, {"a": 0.8, "gone": 1.0}) == []
    recorded = speed_check.read(speed_check.RECORD)
    assert {"avx512"} <= recorded.keys()
    assert all(0 < share < 20 for one in recorded.values() for share in one.shares.values())
    assert all(one.machines for one in recorded.values())
    before = speed_check.Record({"a": 0.5, "gone": 0.1}, ("one",))
    assert before.lowered({"a": 0.4, "b": 0.3}, "two") == speed_check.Record(
        {"a": 0.4, "b": 0.3}, ("one", "two")
    )
