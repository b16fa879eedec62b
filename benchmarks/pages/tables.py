"""Tables of Markdown, for the pages that are written from results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leanconv.units import counted

_QUIET = 0.2  # CPUs that others may keep busy


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    rule = "|" + "---|" * len(heading)
    return ["| " + " | ".join(heading) + " |", rule, *("| " + " | ".join(r) + " |" for r in rows)]


def measured_on(document: Mapping[str, Any]) -> str:
    """The CPU, the day and the commit of a result, and how much was measured."""
    machine, spent = document["machine"], document.get("effort", {})
    words = [counted(spent[key], key[:-1]) for key in ("threads", "rounds") if key in spent]
    words += [f"turns of {spent['seconds']:g} s"] if "seconds" in spent else []
    said = f"{machine['cpu']}, {machine['time_utc'][:10]}, commit {machine['commit'] or 'unknown'}"
    return f"{', '.join([said, *words])}."


def others(document: Mapping[str, Any], measured: str = "thread") -> str:
    """A sentence where other work ran beside what was measured; none where none did."""
    busy = document.get("busy_cpus_before", 0.0)
    if busy < _QUIET:
        return ""
    return (
        f" Other work kept {busy:.1f} CPUs busy: times are CPU times of the measured {measured}, "
        "and caches and memory were shared."
    )
