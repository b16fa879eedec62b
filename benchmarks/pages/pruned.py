"""The page of `pruned.py layers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pages.tables import measured_on, table
from pages.wrapping import wrapped

_QUIET = 0.2  # CPUs that others may keep busy


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    lines = [
        "# Layers whose weights are mostly 0",
        "",
        "Written by `python benchmarks/pruned.py layers`, which says how it measures. "
        f"{measured_on(document)}{_others(document)} Pruned networks beside other engines are in "
        "[speed.md](../speed.md#pruned-networks).",
        "",
        "A ratio is the time of our best plan for the dense layer over that of "
        '`algorithm="sparse"`; above 1, leaving out zeros is faster. A group has the geometric '
        "mean of its layers.",
        "",
        *table(
            ["layers", "zeros stand", "zeros", "ratio", "asked for", "least", "sparse is chosen"],
            [_group(found) for found in document["summary"]],
        ),
    ]
    if document["bytes"]:
        lines += ["", *_bytes(document["bytes"])]
    groups = dict.fromkeys((row["group"], row["pattern"]) for row in document["rows"])
    for group, pattern in groups:
        rows = [r for r in document["rows"] if (r["group"], r["pattern"]) == (group, pattern)]
        lines += ["", f"## {group}, {pattern}", "", *_rows(rows)]
    lines += ["", "(n) behind a ratio: `sparse` is not chosen there."]
    return wrapped("\n".join(lines).rstrip())


def _others(document: dict[str, Any]) -> str:
    """A sentence where other work ran beside."""
    busy = document["busy_cpus_before"]
    if busy < _QUIET:
        return ""
    return f" Other work kept {busy:.1f} CPUs busy and shared caches and memory."


def _group(found: dict[str, Any]) -> list[str]:
    return [
        found["group"],
        found["pattern"],
        f"{found['zeros']} %",
        f"{found['ratio']:.2f}",
        f"{found['must']:g}" if found["must"] else "",
        f"{found['least']:.2f}",
        f"{found['chosen']} of {found['layers']}",
    ]


def _bytes(found: dict[str, Any]) -> list[str]:
    equal = "equal" if found["sparse_planned"] == found["sparse_used"] else "NOT equal"
    return [
        f"The convolutions of {found['network']} have {found['weights']:,} weights. Packed, with "
        f"their biases, they take {found['dense']:,} bytes "
        f"({found['dense'] / found['weights']:.2f} a weight), and with {found['zeros']} % zeros "
        f"{found['sparse']:,} ({found['sparse'] / found['weights']:.2f}; asked for: at most "
        f"{found['most']:g}). Of the whole network "
        f"{found['sparse_planned']:,} bytes were planned and {found['sparse_used']:,} used: "
        f"{equal}."
    ]


def _rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    shares = sorted({row["zeros"] for row in rows})
    layers: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        layers.setdefault(row["layer"], {})[row["zeros"]] = row
    return table(
        ["layer", "dense by", "us", *(f"{share} %" for share in shares)],
        [
            [
                layer,
                next(iter(of.values()))["dense"],
                f"{min(row['us'][0] for row in of.values()):.1f}",
                *(_ratio(of[share]) for share in shares),
            ]
            for layer, of in layers.items()
        ],
    )


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f}" + ("" if row["chosen"] == "sparse" else " (n)")
