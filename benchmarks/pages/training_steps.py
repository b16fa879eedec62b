"""The page of `training_steps.py`."""

from __future__ import annotations

from typing import Any

from pages.tables import measured_on, others, table
from pages.wrapping import wrapped

_MIB = 2**20


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    calls = document["calls"]
    engines = list(document["rows"][0]["said"])
    lines = [
        "# Training steps of torch, with leanconv's convolutions and with its own",
        "",
        "Written by `python benchmarks/training_steps.py`, which says how it measures. "
        f"{measured_on(document)} float32, torch {calls['torch']}.{others(document, 'process')}",
        "",
        "A ratio is the time of torch's faster format (contiguous or channels last) over that of "
        "leanconv's faster one, in the same round. A peak is what the process grew by beyond the "
        "libraries, the model and one batch: of steps when plans are made, and of the first step, "
        "in which they are.",
        "",
        *table(
            ["a step", *(f"{each} ms" for each in engines), "ratio", "asked for", "time"],
            [
                [
                    row["name"],
                    *(f"{row['ms'][each]:.1f}" for each in engines),
                    f"{row['ratio']:.2f}",
                    f"{row['must']:g}",
                    "reached" if row["ratio"] >= row["must"] else "not reached",
                ]
                for row in document["rows"]
            ],
        ),
        "",
        *table(
            ["peak, MiB (first step)", *engines, "no larger than torch's"],
            [
                [
                    row["name"],
                    *(_peaks(row["said"][each]) for each in engines),
                    f"{row['fastest']}: {'yes' if row['lean'] else 'no'}",
                ]
                for row in document["rows"]
            ],
        ),
        "",
        "A call of an 8-channel 3x3 layer on 6 x 6 without gradients, at most "
        f"{calls['must']:g} times torch's: "
        + ", ".join(f"{each} {us:.1f} us" for each, us in calls["us"].items())
        + ".",
    ]
    return wrapped("\n".join(lines))


def _peaks(said: dict[str, int]) -> str:
    return f"{said['step'] / _MIB:.0f} ({said['planning'] / _MIB:.0f})"
