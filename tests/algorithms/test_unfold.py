"""im2col, MEC, im2win and the seven loops: exact on whole numbers, whatever the problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.algorithms.problem import Problem as Layer
from leanconv.algorithms.select import choose
from leanconv.api import compiled_conv as api
from leanconv.codegen.geometry import Access
from leanconv.errors import SpecError
from leanconv.spec import PLAIN, ConvSpec, Format
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64, Precision
from support.guarded import Guarded
from support.problems import EXACT, Problem, problems

pytestmark = pytest.mark.vectors

BOTH = (FLOAT32, FLOAT64)
METHODS = (
    "naive",
    "im2col",
    "im2col:rows=1",
    "im2col:rows=7",
    "im2col:rows=whole",
    "im2col:rows=batch",
    "im2col:lanes=pixels",
    "im2col:lanes=pixels,rows=1",
    "im2col:lanes=pixels,rows=7",
    "im2col:lanes=pixels,rows=whole",
    "im2col:lanes=pixels,rows=batch",
    "mec",
    "mec:rows=1",
    "mec:rows=3",
    "mec:solution=A",
    "mec:solution=B",
    "mec:T=1",
    "im2win",
    "im2win:rows=2",
    "im2win:rows=whole",
    "im2win:form=base",
    "im2win:form=vector",
    "im2win:form=printed",
    "im2win:form=high",
    "im2win:reorder=off",
    "im2win:unroll=on",
    "im2win:vectorise=off",
    "im2win:register=off,cache=off",
    "im2win:threads=off",
)
# Each example is compiled: few of them, always the same.
few = settings(max_examples=36, deadline=None, suppress_health_check=list(HealthCheck))


def run(problem: Problem, whole: bool, method: str, **more: object) -> tuple[np.ndarray, ...]:
    """Plan, run into a guarded array full of NaN; return it, the oracle's answer and the error."""
    spec, arrays = problem.spec, problem.arrays(whole)
    plan = lc.plan_conv2d(
        spec.input_shape,
        arrays.w,
        arrays.bias,
        residual=spec.residual,
        slope=arrays.slope,
        algorithm=method,
        **{"threads": 2, **problem.options, **more},
    )
    assert plan.used_bytes == plan.memory_bytes == plan.workspace_bytes + plan.weight_bytes
    out = Guarded.unwritten(spec.output_shape, spec.dtype)
    for _ in range(2):  # nothing may depend on what an earlier run left in the workspace
        out.array[...] = np.nan
        plan(arrays.x, out=out.array, residual=arrays.residual)
    out.check()
    return out.array, problem.expected(arrays, whole), np.array(plan.predicted_error)


def check_refusal(error: SpecError, method: str) -> None:
    """It names the method and a reason."""
    name, text = method.partition(":")[0], str(error)
    assert text.startswith((f"algorithm {name}: ", f"algorithm {name!r} cannot compute"))
    assert not text.endswith(": ")


def check_exact(problem: Problem, method: str, **more: object) -> bool:
    """Compare with the oracle; False if the method refuses the problem, with a reason."""
    try:
        result, expected, _ = run(problem, True, method, **more)
    except SpecError as error:
        check_refusal(error, method)
        return False
    message = f"{method}, {problem.spec}, {problem.spec.layout}"
    np.testing.assert_array_equal(result, expected, err_msg=message)
    return True


def test_whole_numbers_are_exact() -> None:
    taken: list[bool] = []

    @few
    @given(problems(EXACT, BOTH), st.lists(st.sampled_from(METHODS), min_size=3, max_size=3))
    def each(problem: Problem, methods: list[str]) -> None:
        taken.extend(check_exact(problem, method) for method in methods)

    each()
    assert sum(taken) >= 30


def test_whole_numbers_are_exact_with_eight_lanes() -> None:
    taken: list[bool] = []

    @settings(few, max_examples=16)
    @given(problems(EXACT), st.sampled_from(METHODS))
    def each(problem: Problem, method: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "planning_target", lambda: preset("haswell"))
            taken.append(check_exact(problem, method))

    each()
    assert sum(taken) >= 5


# What random problems meet too seldom; all twenty ways each.
CHOSEN = (
    "ic17ih20iw19oc33kh3ph1",
    "mb2ic3ih19iw23oc20kh5kw3sh2sw1ph2pw0",  # kernel not square, strides unequal
    "g2mb3ic18ih9iw20oc12kh3kw5ph1pw2dh1",
    "mb2ic8id4ih7iw18oc5kd2kh3kw3pd1ph1pw1",
    "ic5ih8iw37oc9kh2sh2kw3sw1ph0pw1",  # a kernel no higher than its stride
    "ic9iw70oc17kw5",
    "mb3ic16ih3oc40oh1kh3ph0",
    "ic12ih10iw50oc8kh3sw5ph1",  # a stride no vector picks
    "ic3ih30iw40oc5kh11kw3",  # a kernel higher than a vector of eight lanes is long
    "ic2ih6oc3kh3ph4",  # rows of windows beside the input
)


@pytest.mark.drawn
@pytest.mark.parametrize("method", METHODS)
def test_chosen_problems_are_exact(method: str) -> None:
    taken = 0
    for number, line in enumerate(CHOSEN):
        spec = ConvSpec.parse(line, bias=True, residual=number % 2 == 1)
        for layout in ("NCHW", "NHWC"):
            for dtype in BOTH if spec.kernel[0] > 8 else (FLOAT32,):
                one = replace(spec, layout=layout, precision=Precision.of(dtype))
                taken += check_exact(Problem(one, number), method)
    # The printed form is of planes, and of kernels that are higher than their stride.
    assert taken >= (8 if method == "im2win:form=printed" else len(CHOSEN))


@pytest.mark.parametrize("method", ["im2col", "im2col:rows=whole", "mec", "im2win"])
def test_threads_change_no_bits(method: str) -> None:
    problem = Problem(ConvSpec.parse("mb2ic19ih40iw41oc70kh3ph1"), 4)
    one, _, _ = run(problem, False, method, threads=1)
    many, _, _ = run(problem, False, method, threads=5)
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("method", ["im2col", "mec:solution=B", "im2win", "im2win:rows=whole"])
def test_the_residual_may_be_the_output(method: str) -> None:
    problem = Problem(ConvSpec.parse("ic6ih30iw31oc40kh3ph1", residual=True), 2)
    arrays = problem.arrays(True)
    plan = lc.plan_conv2d(
        arrays.x.shape, arrays.w, residual=True, algorithm=method, **problem.options
    )
    out = arrays.residual.copy()
    plan(arrays.x, out=out, residual=out)
    np.testing.assert_array_equal(out, problem.expected(arrays, True))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("im2col:rows=0", "rows is '0'; expected an integer of at least 1"),
        ("im2col:rows=much", "rows is 'much'; expected an integer"),
        ("im2col:columns=2", "'columns=2' is no parameter of im2col"),
        ("mec:solution=C", "solution is 'C'; expected A or B"),
        ("mec:T=none", "T is 'none'; expected an integer"),
        ("mec:solution=A", "solution A is not possible, .* do not fit into L's .*; use solution=B"),
        ("im2win:form=best", "form is 'best'; expected one of base, vector, printed, high"),
        ("im2win:cache=no", "cache is 'no'; expected on or off"),
        ("im2win:form=base,rows=3", "form=base is computed as written"),
        ("im2win:cache=off,rows=3", "got switches with rows=3; expected them with rows=whole"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(method: str, message: str) -> None:
    w = np.zeros((64, 3, 3, 3), np.float32)
    with pytest.raises(SpecError, match=message):
        lc.plan_conv2d((1, 3, 9, 9), w, algorithm=method)


def test_solution_a_is_refused_where_a_residual_waits_in_the_output() -> None:
    w = np.zeros((2, 3, 3, 3), np.float32)
    with pytest.raises(SpecError, match=r"before the residual has been read; use solution=B"):
        lc.plan_conv2d((1, 3, 9, 9), w, residual=True, algorithm="mec:solution=A")
    lc.plan_conv2d((1, 3, 9, 9), w, residual=True, algorithm="mec")


def test_none_is_taken_without_being_asked_for() -> None:
    plan = lc.plan_conv2d((1, 3, 9, 9), np.zeros((8, 3, 3, 3), np.float32))
    assert plan.algorithm not in ("naive", "im2col", "mec", "im2win")
    for name in ("naive", "im2col", "mec", "im2win"):
        assert plan.explain().count(name) == 1


def choice_of(line: str, target: str, form: Format = PLAIN) -> str:
    """The choice for a convolution whose tensors are in a format."""
    spec = ConvSpec.parse(line)
    shapes = spec.input_shape, spec.output_shape
    problem = Layer.of(spec, *(Access.of_format(shape, form) for shape in shapes))
    return str(choose(problem, preset(target)).choice)


@pytest.mark.presets
@pytest.mark.parametrize("target", ["haswell", "znver3", "znver4", "sapphirerapids"])
def test_long_strides_from_planes_to_planes_are_taken(target: str) -> None:
    """Stores of lanes along pixels need no transposes, which few products do not hide."""
    long = "ic1ih1iw48000oc384oh1ow9599kh1kw10sh1sw5", "ic1ih64iw1000oc64oh64ow199kh1kw10sh1sw5"
    usual = "ic64ih28oc64oh28kh3ph1", "ic64ih56oc64oh28kh3sh2ph1", "ic3ih224oc64oh112kh7sh2ph3"
    for line in long:
        assert choice_of(line, target) == "im2col:lanes=pixels"
    for line in usual:
        assert not choice_of(line, target).startswith("im2col")


@pytest.mark.presets
def test_pixels_that_a_stride_leaves_out_are_not_read_for_each_panel() -> None:
    deep, small = "ic512ih28oc1024oh14kh1sh2", "ic64ih14oc128oh7kh1sh2"
    assert choice_of(deep, "haswell", Format(8)) == "im2col"
    assert choice_of(small, "haswell", Format(8)) == "direct"
    assert choice_of("ic512ih14oc1024oh14kh1", "haswell", Format(8)) == "direct"
    assert choice_of(deep, "sapphirerapids", Format(16)) == "direct", "L2 holds the input"


def test_pixels_are_lanes_only_in_planes() -> None:
    w = np.zeros((8, 3, 4, 4), np.float32)
    with pytest.raises(SpecError, match=r"lanes=pixels for .*; expected output in planes"):
        lc.plan_conv2d((1, 12, 12, 3), w, layout="NHWC", algorithm="im2col:lanes=pixels")


@pytest.mark.parametrize("padding", [0, 7])
def test_rows_of_any_width_are_exact(padding: int) -> None:
    """Blocks of one width, of which the last one overlaps; narrower ones; less than a vector."""
    draw = np.random.default_rng(1)
    w = draw.integers(-3, 4, (19, 2, 7)).astype(np.float32)
    for width in (5003, 5000, 4999, 1111, 401, 77, 38, 7):
        x = draw.integers(-3, 4, (2, 2, width)).astype(np.float32)
        plan = lc.plan_conv1d(x.shape, w, stride=6, padding=padding, algorithm="naive")
        found = lc.conv1d(x, w, stride=6, padding=padding)
        np.testing.assert_array_equal(found, plan(x))
