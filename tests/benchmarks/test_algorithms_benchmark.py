"""What `algorithms.py` counts and checks, on small layers; its page is what its results say."""

from __future__ import annotations

import numpy as np
import pytest

import algorithms as benchmark
import formulas
from harness import results_file
from leanconv.algorithms import ALGORITHMS
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned

SPEC = ConvSpec.parse("mb2ic16ih14oc32oh12kh3")


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    options = benchmark.parse_options(["--quick", "--threads", "1"])
    options.rounds, options.seconds = 1, 0.0
    return benchmark.measure(SPEC, benchmark.METHODS, options)


def test_every_algorithm_is_measured_or_says_why(results: dict[str, dict[str, object]]) -> None:
    names = {method.partition(":")[0] for method in benchmark.METHODS}
    assert names >= set(ALGORITHMS)
    assert list(results) == list(benchmark.METHODS)
    refused = {method for method, r in results.items() if "refused" in r}
    assert refused == {"depthwise", "separable"}
    assert results["depthwise"]["refused"] == "there is only one group"


def test_errors_are_measured(results: dict[str, dict[str, object]]) -> None:
    for method, r in results.items():
        if "refused" in r:
            continue
        if method == benchmark.WHOLE_FFT:
            assert r["error"] < 1e-13
        else:
            assert 0 < r["error"] <= r["stated_error"], method
        assert r["time_ns"] > 0


def test_bytes_are_predicted_allocated_and_used(results: dict[str, dict[str, object]]) -> None:
    run = {m: r for m, r in results.items() if "allocated_bytes" in r}
    for method, r in run.items():
        assert r["workspace_bytes"] == r["allocated_bytes"] >= r["touched_bytes"], method
    for method, elements in (
        ("im2col:rows=whole", formulas.im2col_elements(SPEC) // SPEC.batch),
        ("mec:solution=A", formulas.mec_elements(SPEC)),
        ("mec:solution=B", formulas.mec_elements(SPEC)),
        ("im2win:rows=whole", formulas.im2win_elements(SPEC)),
    ):
        assert run[method]["workspace_bytes"] == aligned(4 * elements)
        assert run[method]["touched_bytes"] == 4 * elements, "all of it and no more"
    assert run["direct"]["workspace_bytes"] == 0


def test_a_wrong_answer_shows_in_the_error() -> None:
    case = benchmark.Case(SPEC, benchmark.parse_options(["--quick"]))
    assert case.error(np.zeros(SPEC.output_shape, np.float32)) == 1.0


def test_a_part_of_the_benchmark_does_not_overwrite_the_results() -> None:
    assert benchmark.parse_options([]).out == results_file("algorithms")
    for arguments in (["--quick"], ["--layers", "cv1"], ["--batches", "2"], ["--method", "mec"]):
        assert benchmark.parse_options(arguments).out is None
