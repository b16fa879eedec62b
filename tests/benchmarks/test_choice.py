"""Layers of the benchmark of choices; its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import choice
from choice import Layer
from harness import all_results
from leanconv.algorithms.parameters import Choice
from leanconv.api.conv_choice import conv_problem
from leanconv.planner import tuner
from leanconv.spec import ConvSpec

PROBLEM = conv_problem(ConvSpec.parse("ic8ih6oc8oh4kh3"), None)


def test_equal_layers_are_measured_once() -> None:
    first = Layer("a", "one", PROBLEM)
    other = Layer("a", "two", replace(PROBLEM, max_error=1e-6))
    assert choice.distinct([first, Layer("b", "one", PROBLEM, 8), other]) == [first, other]


def test_costs_are_of_the_model_over_the_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    fft, direct = Choice("fft"), Choice("direct")
    found = tuner.Tuned(fft, {direct: 3e-6, fft: 2e-6}, direct)
    monkeypatch.setattr(tuner, "measure", lambda *_, **__: found)
    row = choice.measure(Layer("a", "one", PROBLEM), 1)
    assert (row["model_us"], row["tuned_us"], row["cost"]) == (3.0, 2.0, pytest.approx(1.5))
    monkeypatch.setattr(tuner, "measure", lambda *_, **__: tuner.Tuned(direct, {}, direct))
    alone = choice.measure(Layer("b", "one", PROBLEM), 1)
    assert (alone["measured"], alone["cost"]) == (0, 1.0)
    means = choice.summary([row, alone])
    assert means == pytest.approx({"a": 1.5, "b": 1.0, "all": 1.5**0.5})


@pytest.mark.parametrize("file", all_results("choice"), ids=lambda file: file.parent.name)
def test_means_are_those_of_the_layers(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["means"] == pytest.approx(choice.summary(document["layers"]))
