"""Results that are older than the kernels are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stale


def test_every_result_has_an_age(capsys: pytest.CaptureFixture[str]) -> None:
    assert stale.main.__doc__
    found = [stale.age(file) for file in sorted(stale.RESULTS.rglob("*.json"))]
    assert any(a.date for a in found)
    assert all(a.later is None or a.later >= 0 for a in found)


def test_the_oldest_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "RESULTS", tmp_path)
    monkeypatch.setattr(stale, "changes_since", lambda commit, folders: len(commit))
    new = {"machine": {"commit": "abc", "time_utc": "2026-11-25T00:00:00"}}
    old = {"machine": {"commit": "ab+changes", "time_utc": "2026-11-20T00:00:00"}, "parts": new}
    file = tmp_path / "result.json"
    file.write_text(json.dumps(old))
    assert stale.age(file) == stale.Age("result.json", "ab", "2026-11-20", 2)
    file.write_text("{}")
    assert stale.age(file) == stale.Age("result.json", "", "", 0)


def test_an_unknown_commit_has_no_count() -> None:
    assert stale.changes_since("0" * 40, stale.DECIDES) is None
    assert stale.changes_since("", stale.DECIDES) is None
