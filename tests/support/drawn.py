"""One of several, drawn by what the tree holds: what takes long is done for one of them a change.

A tree draws the same whenever it is tested, the next change draws anew.

    python -m support.drawn MACHINES="haswell znver4" SIDES="end start"

prints one of each, for make; of machines, one that the tests of this machine do not stand for.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
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


@functools.cache
def of_tree() -> bytes:
    """The digest of this tree, read once."""
    return digest(ROOT)


def one_of(name: str, values: Sequence[str], by: bytes) -> str:
    """One of them, "" if there is none; other names draw for themselves."""
    drawn = hashlib.sha256(name.encode() + by).digest()
    return values[int.from_bytes(drawn[:8], "big") % len(values)] if values else ""


def half(names: Iterable[str], by: bytes) -> set[str]:
    """Draw half of some names, rounded up."""
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode() + by).digest())
    return set(order[: (len(order) + 1) // 2])


def leave_drawn(items: Sequence[pytest.Item], by: bytes) -> None:
    """Mark the cases of tests that are marked `drawn` as exhaustive, but for a third.

    Args:
        items: of a session; what another mark leaves out is not drawn from.
        by: draws the cases that stay.
    """
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        left_out = item.get_closest_marker("exhaustive")
        if isinstance(item, pytest.Function) and item.get_closest_marker("drawn") and not left_out:
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        names = [item.nodeid for item in cases]
        kept = a_third(names, [_values(item) for item in cases], by)
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.exhaustive)


def a_third(names: Sequence[str], cases: Sequence[Sequence[Hashable]], by: bytes) -> set[int]:
    """Draw a third of some cases: in these is each value of a parameter that several have.

    Args:
        names: of the cases; each is drawn as often as the others, by any bytes.
        cases: the values of each. Three cases at most are all drawn.

    Returns:
        Their numbers.
    """
    if len(cases) <= 3:
        return set(range(len(cases)))
    count = Counter(value for case in cases for value in enumerate(case))
    order = sorted(
        range(len(cases)), key=lambda number: hashlib.sha256(names[number].encode() + by).digest()
    )
    found: set[int] = set()
    met: set[object] = set()
    for number in order:
        new = {value for value in enumerate(cases[number]) if count[value] >= 2} - met
        if new:
            met |= new
            found.add(number)
    rest = [number for number in order if number not in found]
    return found | set(rest[: max(0, -(-len(cases) // 3) - len(found))])


def _values(item: pytest.Function) -> tuple[Hashable, ...]:
    """The objects that are the values of each parameter."""
    return tuple(id(item.callspec.params[name]) for name in sorted(item.callspec.params))


def main(given: Sequence[str]) -> None:
    """Print one of each, as variables of make."""
    by = of_tree()
    for each in given:
        name, _, text = each.partition("=")
        values = text.split()
        if name == "MACHINES":
            values = [v for v in values if not machines.why_not(v) and not machines.is_here(v)]
        sys.stdout.write(f"{name}={one_of(name, values, by)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
