"""Records that begin as another one's, with the numbers that are known of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from leanconv.target.costs import Costs, Source

Number = float | tuple[float, ...]


class Known(NamedTuple):
    """Numbers of a record, by field, and where they come from."""

    source: Source
    numbers: Mapping[str, Number | None]


def measured(machine: str, how: str, date: str, **numbers: Number) -> Known:
    """Numbers that were measured on a machine, or fitted to times taken there."""
    return Known(Source(tuple(numbers), date, machine, how), numbers)


def stated(how: str, **numbers: Number) -> Known:
    """Numbers that a manual states, and nobody has measured here."""
    return measured("any", f"data sheet, not measured: {how}", "2026-11-23", **numbers)


def estimated(**numbers: Number) -> Known:
    """Numbers that are in no manual, and nobody has measured."""
    return measured("any", "estimate, not measured", "2026-11-23", **numbers)


def absent(*names: str) -> Known:
    """Numbers of what a processor does not have, though the one that it is derived from does."""
    return Known(Source((), "", "", ""), dict.fromkeys(names))


def derived(cpu: str, base: Costs, *known: Known) -> Costs:
    """The record of a processor whose other numbers, with their sources, are those of `base`.

    Args:
        cpu: LLVM's name of it.
        base: where what is not known is inherited from.
        known: what is; no field twice.
    """
    numbers = {name: value for each in known for name, value in each.numbers.items()}
    inherited = (
        replace(source, names=tuple(name for name in source.names if name not in numbers))
        for source in base.sources
    )
    own = (each.source for each in known)
    sources = tuple(source for source in (*inherited, *own) if source.names)
    return replace(base, cpu=cpu, sources=sources, **numbers)  # type: ignore[arg-type]
