"""What the benchmark of gradients makes of its times, and its page."""

from __future__ import annotations

from typing import Any

import pytest

import gradients
from gradient_cases import BOTH, FORWARD, GROUPS, Case, Group
from pages.gradients import page

GROUP = Group("two", (), mean=2.0, least=1.5)


def row(name: str, torch: float, ours: float | None, count: int = 1) -> dict[str, Any]:
    times = {"torch": [torch, 2 * torch], "torch nhwc": [3 * torch, torch]}
    times |= {} if ours is None else {"leanconv": [ours, ours]}
    found = gradients.ratios(times)
    return {
        "name": name,
        "count": count,
        "ms": {engine: min(of) for engine, of in times.items()},
        "ratios": found,
        "ratio": min(found) if found else None,
        "errors": dict.fromkeys(times, 1e-6),
        "said": {"torch": "2.0"},
    }


def test_every_case_is_a_convolution_and_named_once_in_its_group() -> None:
    for group in GROUPS.values():
        names = [case.name for case in group.cases]
        assert len(set(names)) == len(names)
        assert all(case.spec.batch == case.batch for case in group.cases)
    step = GROUPS["resnet"].cases
    assert sum(case.count for case in step if case.what == FORWARD) == 17 + 3
    assert sum(case.count for case in step if case.what == BOTH) == 17 + 2


def test_a_ratio_is_of_the_faster_layouts_of_one_round() -> None:
    times = {"torch": [4.0, 9.0], "torch nhwc": [6.0, 3.0], "leanconv": [2.0, 3.0]}
    assert gradients.ratios({**times, "leanconv nhwc": [9.0, 1.0]}) == [2.0, 3.0]
    assert gradients.ratios({"torch": [1.0], "torch nhwc": [1.0]}) == []


def test_a_group_has_a_mean_and_a_least() -> None:
    rows = [row("a", 4.0, 1.0), row("b", 1.0, 1.0)]
    found = gradients.summary(GROUP, rows)
    assert (found["ratio"], found["least"], found["least_case"]) == (2.0, 1.0, "b")
    assert not found["reached"]
    assert gradients.summary(Group("no", (), 2.0, 1.0), rows)["reached"]
    refused = gradients.summary(Group("no", ()), [*rows, row("c", 1.0, None)])
    assert (refused["refused"], refused["reached"]) == (1, False)
    assert gradients.summary(GROUP, [row("c", 1.0, None)])["ratio"] is None


def test_a_step_sums_times() -> None:
    rows = [row("a", 4.0, 1.0, count=3), row("b", 2.0, 2.0)]
    assert gradients.summary(Group("step", (), summed=True), rows)["ratio"] == 14 / 5


def test_unknown_groups_and_layers_are_named() -> None:
    with pytest.raises(gradients.InputError, match="nothing"):
        gradients.chosen(["nothing"], [], dw_alone=False)
    with pytest.raises(gradients.InputError, match="nowhere"):
        gradients.chosen([], ["nowhere"], dw_alone=False)
    (group,) = gradients.chosen(["twelve 8"], ["cv12"], dw_alone=True).values()
    assert [case.name for case in group.cases] == [Case("cv12", "", 8, "dw").name]


def test_the_page_has_every_group() -> None:
    rows = [row("a", 4.0, 1.0), row("b", 1.0, None)]
    machine = {"cpu": "A CPU", "time_utc": "2026-01-01", "commit": "abc"}
    groups = {"g": {**gradients.summary(GROUP, rows), "rows": ["a", "b"]}}
    text = page({"machine": machine, "effort": {"threads": 1}, "rows": rows, "groups": groups})
    assert "A CPU" in text
    assert "| two | 2 | 4.00 | 2 | 4.00 | 1.5 | a | not reached |" in text
    assert "refused" in text
