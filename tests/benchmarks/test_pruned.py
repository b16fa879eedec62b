"""What the benchmark of pruned layers makes of its times, and its page."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

import pruned
from pages.pruned import page


def row(share: int, ratio: float, chosen: str = "sparse", error: float = 1e-7) -> dict[str, Any]:
    return {
        "group": "1x1 resnet50",
        "layer": str(pruned.GROUPS["1x1 resnet50"].layers[0]),
        "pattern": pruned.SINGLE,
        "zeros": share,
        "dense": "planar",
        "chosen": chosen,
        "us": [100.0, 100.0 / ratio],
        "ratio": ratio,
        "error": error,
    }


def document(*rows: dict[str, Any], used: int = 7) -> dict[str, Any]:
    machine = {"cpu": "A CPU", "time_utc": "2026-01-01", "commit": "abc"}
    held = {"network": "n", "zeros": 90, "weights": 100, "most": 0.9, "dense": 400, "sparse": 80}
    held |= {"sparse_planned": 7, "sparse_used": used}
    found = {"machine": machine, "effort": {"threads": 1}, "busy_cpus_before": 0.0, "bytes": held}
    return {**found, "rows": list(rows), "summary": pruned.summary(rows)}


@pytest.mark.parametrize(("share", "together"), [(0.7, 1), (0.9, 1), (0.9, 4)])
def test_pruning_takes_the_smallest_weights(share: float, together: int) -> None:
    w = np.random.default_rng(0).standard_normal((64, 20, 3, 3), np.float32)
    less = pruned.pruned(w, share, together)
    assert less.dtype == np.float32
    assert np.mean(less == 0) == pytest.approx(share, abs=1e-3)
    assert np.all((less == w) | (less == 0))
    blocks = (less != 0).reshape(64 // together, together, 20, 3, 3)
    assert np.all(blocks.all(axis=1) == blocks.any(axis=1))


def test_layers_are_those_of_the_two_networks() -> None:
    assert {name: len(group.layers) for name, group in pruned.GROUPS.items()} == {
        "1x1 mobilenetv2": 17,
        "1x1 resnet50": 12,
        "3x3 resnet50": 4,
        "3x3 stride 2": 3,
        "fully connected": 3,
        "1x1 few pixels": 4,
    }
    assert str(pruned.GROUPS["3x3 stride 2"].layers[0]) == "128 to 128, 56x56 stride 2"


def test_a_group_has_a_mean_a_least_and_what_it_must_reach() -> None:
    (found,) = pruned.summary([row(90, 4.0), row(90, 9.0), row(90, 6.0, "planar")])
    assert found["ratio"] == pytest.approx(6.0)
    assert (found["least"], found["must"], found["chosen"], found["layers"]) == (4.0, 5.0, 2, 3)


def test_what_is_below_is_named() -> None:
    assert not pruned.failures(document(row(90, 6.0), row(70, 0.9, "planar"), row(70, 9.0)))
    found = pruned.failures(document(row(90, 0.9), row(95, 9.0, error=np.nan), used=8))
    assert found == [
        "1x1 resnet50, single weights, 90 %: 0.90, must be 5",
        "1x1 resnet50, single weights, 90 %: sparse is chosen and 0.90 times as fast",
        "1x1 resnet50 64 to 64, 56x56: the error is nan",
        "8 bytes are used, 7 planned",
    ]


def test_the_page_says_where_sparse_is_not_chosen() -> None:
    text = page(document(row(70, 1.5, "planar"), row(90, 6.0)))
    assert "| 1x1 resnet50 | single weights | 90 % | 6.00 | 5 | 6.00 | 1 of 1 |" in text
    assert "| 64 to 64, 56x56 | planar | 100.0 | 1.50 (n) | 6.00 |" in text
    assert "A CPU" in text
    assert "(4.00 a weight)" in text


def test_a_layer_is_measured_in_pairs() -> None:
    options = argparse.Namespace(rounds=2, seconds=0.0)
    rows = list(pruned.measure("1x1 resnet50", pruned.Layer(5, 12, 8), [90], options))
    assert [row["pattern"] for row in rows] == list(pruned.PATTERNS)
    assert all(row["ratio"] > 0 and row["error"] < 1e-6 for row in rows)


def test_cases_that_are_no_network_and_percent_are_refused() -> None:
    for case in ("resnet50", "resnet50:x", "resnet50:100"):
        with pytest.raises(pruned.InputError, match="expected such as resnet50:90"):
            next(pruned.works([case]))
