"""The page of `gradients.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pages.tables import measured_on, others, table
from pages.wrapping import wrapped

_FORMS = ("torch", "torch nhwc", "leanconv", "leanconv nhwc")


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    rows = {row["name"]: row for row in document["rows"]}
    lines = [
        "# Gradients of convolutions beside torch",
        "",
        "Written by `python benchmarks/gradients.py`, which says how it measures. "
        f"{measured_on(document)} float32, {_torch(document)}.{others(document)}",
        "",
        "A ratio is the time of torch's faster layout (contiguous or channels last) over that of "
        "leanconv's (NCHW or NHWC), packing of the weights included; above 1, leanconv is faster. "
        "A group's is the geometric mean; of a step, that of the sums.",
        "",
        *table(
            ["group", "cases", "ratio", "asked for", "least", "asked for", "least case", ""],
            [_group(found) for found in document["groups"].values()],
        ),
    ]
    for found in document["groups"].values():
        lines += ["", f"## {found['title']}", "", *_rows(rows[name] for name in found["rows"])]
    return wrapped("\n".join(lines).rstrip())


def _torch(document: dict[str, Any]) -> str:
    said = {row["said"].get("torch", "") for row in document["rows"]}
    return f"torch {' '.join(sorted(said))}"


def _group(found: dict[str, Any]) -> list[str]:
    def asked(number: float) -> str:
        return f"{number:g}" if number else ""

    if found["ratio"] is None:
        return [found["title"], str(found["cases"]), "refused", *[""] * 5]
    verdict = "reached" if found["reached"] else "not reached"
    return [
        found["title"],
        str(found["cases"]),
        f"{found['ratio']:.2f}",
        asked(found["must"]),
        f"{found['least']:.2f}",
        asked(found["must_least"]),
        found["least_case"],
        verdict if found["must"] else "",
    ]


def _rows(rows: Iterable[dict[str, Any]]) -> list[str]:
    return table(
        ["layer", "torch ms", "nhwc", "leanconv ms", "nhwc", "ratio", "error", "torch's"],
        [
            [
                f"{_count(row)}{row['name']}",
                *(_ms(row, form) for form in _FORMS),
                f"{row['ratio']:.2f}" if row["ratio"] else "",
                _error(row, "leanconv"),
                _error(row, "torch"),
            ]
            for row in rows
        ],
    )


def _count(row: dict[str, Any]) -> str:
    return f"{row['count']} x " if row["count"] > 1 else ""


def _ms(row: dict[str, Any], form: str) -> str:
    return f"{row['ms'][form]:.3f}" if form in row["ms"] else "refused"


def _error(row: dict[str, Any], start: str) -> str:
    found = [error for name, error in row["errors"].items() if name.startswith(start)]
    return f"{max(found):.1e}" if found else ""
