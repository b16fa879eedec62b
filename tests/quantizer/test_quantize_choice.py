"""Which layers stay in float32: with a score that needs some of them, or none, or all."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.cli.quantize_page import quantize_page
from leanconv.errors import BudgetError, SpecError
from leanconv.quantizer import trial
from support.networks_to_quantise import fixed_times, model, normal

_NODES = [
    helper.make_node("Conv", ["x", "w0"], ["a"], name="first", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("Conv", ["b", "w1"], ["c"], name="hard"),
    helper.make_node("Tanh", ["c"], ["d"]),
    helper.make_node("Conv", ["d", "w2"], ["e"], name="small"),
    helper.make_node("GlobalAveragePool", ["e"], ["f"]),
    helper.make_node("Flatten", ["f"], ["g"]),
    helper.make_node("Gemm", ["g", "w3"], ["y"], name="last"),
]


def network() -> bytes:
    """Four layers of which the second takes differences of numbers that are nearly equal."""
    hard = normal(5, 1, 1, 1, seed=2)
    weights = {
        "w0": normal(6, 4, 3, 3),
        "w1": np.concatenate([hard, -hard * np.float32(1.001)], axis=1).repeat(3, axis=1) * 50,
        "w2": normal(7, 5, 1, 1, seed=3) * np.float32(0.01),
        "w3": normal(7, 3, seed=4),
    }
    weights["w0"][3:] = weights["w0"][:3]
    return model(_NODES, ["n", 4, 6, 6], weights, rank=2)


def samples(count: int = 12) -> list[np.ndarray]:
    return [normal(1, 4, 6, 6, seed=seed) for seed in range(count)]


def agreement(allowed: float):  # type: ignore[no-untyped-def]
    """A score that is 1 where the outputs err by less than that."""

    def score(found: dict, exact: dict, _: dict) -> float:  # type: ignore[type-arg]
        error = np.linalg.norm(found["y"] - exact["y"]) / np.linalg.norm(exact["y"])
        return float(error < allowed)

    return score


def test_a_limit_of_memory_is_kept_or_refused() -> None:
    assert lc.quantize(network(), samples(), memory_limit="1 MiB", threads=1).data
    with pytest.raises(BudgetError) as caught:
        lc.quantize(network(), samples(), memory_limit=64, threads=1)
    assert caught.value.smallest_bytes > 64


def test_without_a_limit_all_layers_are_quantised() -> None:
    made = lc.quantize(network(), samples(), threads=1)
    assert {layer.precision for layer in made.layers} == {"int8"}
    assert len(made.trials) == 1


def test_the_layer_that_errs_most_stays_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_times(monkeypatch)
    plain = lc.quantize(network(), samples(), threads=1)
    made = lc.quantize(
        network(), samples(), metric=agreement(plain.error / 4), max_accuracy_drop=1.0, threads=1
    )
    kept = [layer.name for layer in made.layers if layer.precision == "float32"]
    assert "hard" in kept
    assert len(kept) < 4
    worst = max(made.layers, key=lambda layer: layer.sensitivity or 0.0)
    assert worst.name == "hard"
    assert made.drop <= 1.0
    assert made.error < plain.error
    assert {each.samples for each in made.trials} == {"calibrated", "held out"}
    page = quantize_page("a <network>", made)
    assert page.count("<rect") == 4
    assert "a &lt;network&gt;" in page
    parsed = onnx.load_from_string(made.data)
    reads = {node.name: node.input[1] for node in parsed.graph.node if node.op_type == "Conv"}
    made_by = {name: node.op_type for node in parsed.graph.node for name in node.output}
    assert made_by.get(reads["hard"]) is None
    assert "DequantizeLinear" in {made_by.get(name) for name in reads.values()}


def _counted(made: lc.Quantized) -> list[dict[str, int]]:
    return [dict(each.precisions) for each in made.trials if each.samples == "held out"]


def test_one_precision_for_all_layers_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What layers gain by themselves favours a mixed choice, its plan one precision for all."""
    fixed_times(monkeypatch, 9, -1, 9, -1)
    made = lc.quantize(network(), samples(), metric=lambda *_: 1.0, max_accuracy_drop=1.0)
    assert {layer.precision for layer in made.layers} == {"int8"}
    tried = _counted(made)
    for each in ({"int8": 4}, {"float16": 4}, {"float32": 4}, {"int8": 2, "float32": 2}):
        assert each in tried
    # One that does not hold is not taken, however fast it is.
    plain = lc.quantize(network(), samples(), threads=1)
    metric = agreement(plain.error / 4)
    made = lc.quantize(network(), samples(), metric=metric, max_accuracy_drop=1.0, threads=1)
    assert {"int8": 4} not in [dict(each.precisions) for each in made.trials if each.drop <= 0.01]
    assert made.drop <= 1.0


def test_what_should_be_known_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fastest(networks: list[object], _: object) -> list[int]:
        return [2_000_000, 1_000_000][: len(networks)]

    monkeypatch.setattr(trial, "_fastest", fastest)
    made = lc.quantize(network(), samples()[:2], threads=1)
    few, one, slow = made.warnings[:3]
    assert few.startswith("the score is of 2 samples")
    assert one.startswith("all samples have one class")
    assert slow == "the file is slower than float32 here: 2 ms a run, float32 1 ms"
    assert all(warning in caplog.text for warning in made.warnings)
    assert slow in quantize_page("network", made)
    monkeypatch.setattr(trial, "_fastest", lambda networks, _: [1_000_000] * len(networks))
    labels = np.arange(24) // 2 % 2
    made = lc.quantize(network(), samples(24), labels=labels, threads=1)
    assert not [each for each in made.warnings if "8 bits" not in each]
    made = lc.quantize(network(), samples(24), labels=labels * 0, threads=1)
    assert made.warnings[0].startswith("all samples have one class")


def test_weights_of_all_bits_are_scored_where_safe_ones_lose() -> None:
    safe = lc.quantize(network(), samples(24), metric=lambda *_: 1.0, threads=1)
    assert {each.how for each in safe.trials} == {""}
    scores = iter([0.5, 1.0] * 12 + [0.75, 1.0] * 12)
    made = lc.quantize(network(), samples(24), metric=lambda *_: next(scores), threads=1)
    assert [each.how for each in made.trials] == ["", "weights of all 8 bits"]
    assert any("is 75.00%" in each and "--for vnni" in each for each in made.warnings)


def test_a_score_that_nothing_keeps_leaves_all_in_float() -> None:
    made = lc.quantize(network(), samples(), metric=agreement(1e-9), max_accuracy_drop=0, threads=1)
    kept = [layer.name for layer in made.layers if layer.precision == "float32"]
    assert len(kept) >= 3
    assert made.drop == 0.0 or len(kept) == 4


@pytest.mark.parametrize("drop", [-1, 101, "1", True, float("nan")])
def test_what_is_no_drop_is_refused(drop: object) -> None:
    with pytest.raises(SpecError, match="percent from 0 to 100"):
        lc.quantize(network(), samples(), max_accuracy_drop=drop, threads=1)  # type: ignore[arg-type]
