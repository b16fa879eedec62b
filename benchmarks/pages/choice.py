"""The page of `choice.py`."""

from __future__ import annotations

from typing import Any

from pages.tables import measured_on, table
from pages.wrapping import wrapped

_SHOWN = 1.02  # layers whose choice costs less are only counted


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    rows, means = document["layers"], document["means"]
    lines = [
        "# What the model's choice costs over the tuned one",
        "",
        "Written by `python benchmarks/choice.py`, which says how it measures. "
        f"{measured_on(document)} float32. Cost: time of the "
        "choice made without measuring over that of the fastest choice measured.",
        "",
        *table(
            ["layers", "distinct", "with a choice", "mean cost", "largest", "above 1.10"],
            [_group(rows, group, mean) for group, mean in means.items()],
        ),
        "",
        "Means are geometric, over all distinct layers; those that only one kernel is considered "
        "for cost nothing. A layer that occurs in several networks stands under the first. "
        f"Layers whose choice costs {_SHOWN:.2f} and more:",
        "",
        *table(
            ["layer", "problem", "cost", "model us", "tuned us", "model", "tuned"],
            [
                [
                    f"{row['group']}/{row['layer']}",
                    f"`{row['problem']}`" + (" in blocks" if row["blocked"][1] else ""),
                    f"{row['cost']:.2f}",
                    f"{row['model_us']:.1f}",
                    f"{row['tuned_us']:.1f}",
                    f"`{row['model']}`",
                    f"`{row['tuned']}`",
                ]
                for row in sorted(rows, key=lambda row: -row["cost"])
                if row["cost"] >= _SHOWN
            ],
        ),
    ]
    return wrapped("\n".join(lines).rstrip())


def _group(rows: list[dict[str, Any]], group: str, mean: float) -> list[str]:
    costs = [row["cost"] for row in rows if group in ("all", row["group"])]
    above = sum(cost > 1.10 for cost in costs)
    free = sum(row["measured"] > 1 for row in rows if group in ("all", row["group"]))
    largest = f"{max(costs):.2f}"
    return [group, str(len(costs)), str(free), f"{mean:.3f}", largest, str(above)]
