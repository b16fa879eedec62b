"""Damaged models end to end: `leanconv.load` and the plans it makes never harm the process.

The graph's own fuzz tests stop at the graph; here plans are made, code is compiled and run, in a
process of its own that may die without taking the tests with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = {"bytes": 500, "fields": 100, "numbers": 84}  # of each kind of damage, three times
MANY, PARTS = 4000, 50  # for some hours
SLOWEST_S = 20.0  # of CPU time, one model
HANG_S = 300.0  # of time: nobody waits so long, however busy the machine


@pytest.mark.drawn
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", CASES)
def test_damaged_models(kind: str, number: int, tmp_path: Path) -> None:
    survives(kind, 1 + number * CASES[kind], CASES[kind], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(1, PARTS + 1))
@pytest.mark.parametrize("kind", CASES)
def test_many_damaged_models(kind: str, part: int, tmp_path: Path) -> None:
    survives(kind, part * 1_000_000, MANY, tmp_path)


def survives(kind: str, first: int, count: int, cache: Path) -> None:
    """Damage models in a process of its own, by as many seeds from the first on."""
    path = os.pathsep.join([str(HERE), str(HERE.parent / "src")])
    result = subprocess.run(
        [sys.executable, "-m", "support.fuzz_load_worker", kind, str(first), str(count)],
        env={**os.environ, "PYTHONPATH": path, "LEANCONV_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=HANG_S * max(1, count / max(CASES.values())),
    )
    last = result.stdout.splitlines()[-1] if result.stdout else "nothing"
    assert result.returncode == 0, f"died after {last!r}: {result.stderr[-2000:]}"
    words = last.split()
    assert words[0] == "done"
    numbers = {words[i]: float(words[i + 1]) for i in (0, 2, 4)}
    assert numbers["done"] == count > numbers["came"] > count / 20, last
    assert numbers["slowest"] < SLOWEST_S, last
