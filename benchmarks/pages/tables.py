"""Tables of Markdown, for the pages that are written from results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    rule = "|" + "---|" * len(heading)
    return ["| " + " | ".join(heading) + " |", rule, *("| " + " | ".join(r) + " |" for r in rows)]
