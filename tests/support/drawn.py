"""One of several, drawn by what the tree holds: what takes long is done for one of them a change.

A tree draws the same whenever it is tested, the next change draws anew.

    python -m support.drawn MACHINES="haswell znver4" SIDES="end start"

prints one of each, for make; of machines, one that the tests of this machine do not stand for.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import machines

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests")


def digest(root: Path) -> bytes:
    """What all Python files of a tree are: paths and bytes."""
    found = hashlib.sha256()
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            found.update(f"{file.relative_to(root).as_posix()} {file.stat().st_size}\n".encode())
            found.update(file.read_bytes())
    return found.digest()


def one_of(name: str, values: Sequence[str], by: bytes) -> str:
    """One of them, "" if there is none; other names draw for themselves."""
    drawn = hashlib.sha256(name.encode() + by).digest()
    return values[int.from_bytes(drawn[:8], "big") % len(values)] if values else ""


def leave_drawn(items: Sequence[pytest.Item], by: bytes) -> None:
    """Mark the cases of tests that are marked `drawn` as exhaustive, but for every third.

    Args:
        items: of a session.
        by: says with which of the first three cases of a test those begin that stay.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        first = int(one_of(name, "012", by))
        for number, item in enumerate(cases):
            if number % 3 != first and len(cases) > 3:
                item.add_marker(pytest.mark.exhaustive)


def main(given: Sequence[str]) -> None:
    """Print one of each, as variables of make."""
    by = digest(ROOT)
    for each in given:
        name, _, text = each.partition("=")
        values = text.split()
        if name == "MACHINES":
            values = [v for v in values if not machines.why_not(v) and not machines.is_here(v)]
        sys.stdout.write(f"{name}={one_of(name, values, by)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
