"""Random convolutions through the public functions against the oracle, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import EXACT, SMOOTH, Output, Problem, problems

import leanconv as lc
from leanconv.api import conv as api
from leanconv.errors import SpecError
from leanconv.target import preset

BOTH = ("float32", "float64")
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
# Compiling a kernel takes up to half a second: few examples, always the same, all different.
few = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def run(problem: Problem, whole: bool, **more: object) -> tuple[np.ndarray, np.ndarray]:
    """Plan, run into a guarded array full of NaN, and return it with the oracle's answer."""
    spec, arrays = problem.spec, problem.arrays(whole)
    plan = lc.plan_conv2d(
        spec.input_shape,
        arrays.w,
        arrays.bias,
        residual=spec.residual,
        slope=arrays.slope,
        **problem.options,
        **more,
    )
    assert plan.used_bytes == plan.memory_bytes == plan.workspace_bytes + plan.weight_bytes
    out = Output(spec.output_shape, spec.dtype)
    result = plan(arrays.x, out=out.array, residual=arrays.residual)
    assert result is out.array
    out.check()
    return result, problem.expected(arrays, whole)


def check_exact(problem: Problem, **more: object) -> None:
    result, expected = run(problem, True, **more)
    np.testing.assert_array_equal(result, expected, err_msg=str(problem.spec))


def check_close(problem: Problem, **more: object) -> None:
    """Within the tolerance of the largest output, or of the largest sum before the activation."""
    result, expected = run(problem, False, **more)
    arrays = problem.arrays(False)
    sums = np.abs(expected).max()
    if problem.spec.activation is not None:
        from dataclasses import replace

        plain = Problem(replace(problem.spec, activation=None), problem.seed)
        sums = max(sums, np.abs(plain.expected(replace(arrays, slope=None), False)).max())
    error = np.abs(result - expected).max()
    assert error <= TOLERANCE[problem.spec.dtype] * sums, f"{problem.spec}: {error / sums:.2e}"


@few
@given(problems(EXACT, BOTH))
def test_whole_numbers_are_exact(problem: Problem) -> None:
    check_exact(problem)


@few
@given(problems(SMOOTH + EXACT, BOTH))
def test_close_to_float64(problem: Problem) -> None:
    check_close(problem)


@settings(few, max_examples=30)
@given(problems(EXACT))
def test_whole_numbers_are_exact_with_eight_lanes(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "host", lambda: preset("haswell"))
        check_exact(problem)


@pytest.mark.parametrize("algorithm", ["direct", "planar", "depthwise"])
def test_each_algorithm_alone(algorithm: str) -> None:
    taken = []

    @settings(few, max_examples=50)
    @given(problems(EXACT, BOTH))
    def each(problem: Problem) -> None:
        try:
            check_exact(problem, algorithm=algorithm)
        except SpecError as error:
            assert f"algorithm '{algorithm}' cannot compute {problem.spec}: " in str(error)
            assert not str(error).endswith(": ")
        else:
            taken.append(problem)

    each()
    assert len(taken) >= 10, f"{algorithm} accepted only {len(taken)} of the problems"


@settings(few, max_examples=25)
@given(problems(SMOOTH, BOTH), st.sampled_from([2, 3, 5]))
def test_threads_change_no_bits(problem: Problem, threads: int) -> None:
    one, _ = run(problem, False, threads=1)
    many, _ = run(problem, False, threads=threads)
    np.testing.assert_array_equal(one, many)


@settings(few, max_examples=25)
@given(problems(EXACT, BOTH), st.sampled_from([2, 5, 16]))
def test_an_image_alone_or_in_a_batch_gives_the_same_bits(problem: Problem, batch: int) -> None:
    from dataclasses import replace

    whole = Problem(replace(problem.spec, batch=batch, residual=False), problem.seed)
    arrays = whole.arrays(False)
    plans = [
        lc.plan_conv2d(
            (count, *arrays.x.shape[1:]),
            arrays.w,
            arrays.bias,
            slope=arrays.slope,
            reproducible=True,
            **whole.options,
        )
        for count in (batch, 1)
    ]
    together = plans[0](arrays.x)
    for n in range(batch):
        alone = plans[1](arrays.x[n : n + 1])
        np.testing.assert_array_equal(together[n : n + 1], alone, err_msg=str(whole.spec))


# Problems chosen by hand: what random ones would meet too seldom.
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "line",
    [
        "ic3ih33iw35oc32kh3sh2ph1",  # a first layer
        "ic3ih32oc24kh7sh2ph3",
        "mb9ic17ih1iw1oc33kh1",  # maps of one element
        "mb4ic16ih4oc20oh1kh4ph0",  # a kernel as large as the map
        "ic1ih1iw1oc1kh1",
        "ic2ih40oc3kh31ph15",  # a kernel beyond the vector
        "g20ic20ih40oc20kh31ph15",
        "ic2iw300oc5kw129pw64",
        "g6ic6iw65oc6ow65kw65pw32",
        "g16ic16id3ih5iw9oc32kd3kh3kw3pd1ph1pw1",
        "ic16ih9oc16oh9kh3dh6ph7",  # taps that mostly miss
        "ic4ih2oc16oh4kh1ph1",  # windows that touch nothing
    ],
)
def test_chosen_problems_are_exact(line: str, layout: str) -> None:
    from leanconv.spec import ConvSpec

    spec = ConvSpec.parse(line, layout=layout, bias=True, residual=True)
    check_exact(Problem(spec, 1))
