"""Random convolutions through the public functions against the oracle, element by element."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.api import compiled_conv as api
from leanconv.spec import ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support import guard_pages
from support.guarded import Guarded
from support.machines import why_not
from support.problems import EXACT, SMOOTH, Problem, problems
from support.stated import check_stated

BOTH = (FLOAT32, FLOAT64)
# Compiling a kernel takes 20 to 500 ms: not too many examples, the same in every run.
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def run(problem: Problem, **more: object) -> np.ndarray:
    """Plan and run, into a guarded array full of NaN."""
    spec, arrays = problem.spec, problem.arrays(False)
    plan = lc.plan_conv2d(
        spec.input_shape,
        arrays.w,
        arrays.bias,
        residual=spec.residual,
        slope=arrays.slope,
        **problem.options,
        **more,
    )
    out = Guarded.unwritten(spec.output_shape, spec.dtype)
    result = plan(arrays.x, out=out.array, residual=arrays.residual)
    assert result is out.array
    out.check()
    return result


@few
@given(problems(EXACT, BOTH))
def test_whole_numbers_are_exact(problem: Problem) -> None:
    check_stated(problem, "whole")


@few
@given(problems(SMOOTH + EXACT, BOTH))
def test_close_to_float64(problem: Problem) -> None:
    check_stated(problem, "uniform")


@pytest.mark.skipif(bool(why_not("haswell")), reason=why_not("haswell"))
@settings(few, max_examples=20)
@given(problems(EXACT))
def test_whole_numbers_are_exact_with_eight_lanes(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "planning_target", lambda: preset("haswell"))
        check_stated(problem, "whole")


@settings(few, max_examples=20)
@given(problems(SMOOTH, BOTH), st.sampled_from([2, 3, 5]))
def test_threads_change_no_bits(problem: Problem, threads: int) -> None:
    np.testing.assert_array_equal(run(problem, threads=1), run(problem, threads=threads))


@settings(few, max_examples=20)
@given(problems(EXACT, BOTH), st.sampled_from([2, 5, 16]))
def test_an_image_alone_or_in_a_batch_gives_the_same_bits(problem: Problem, batch: int) -> None:
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
@pytest.mark.drawn
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
        "ic2iw100oc5kw65pw32",
        "g6ic6iw65oc6ow65kw65pw32",
        "mb2ic17ih13iw20oc33oh7ow20kh4kw1dh1",  # one tap wide: rows are merged
        "g16ic16id3ih5iw9oc32kd3kh3kw3pd1ph1pw1",
        "ic16ih9oc16oh9kh3dh6ph7",  # taps that mostly miss
        "ic4ih2oc16oh4kh1ph1",  # windows that touch nothing
    ],
)
def test_chosen_problems(line: str, layout: str) -> None:
    spec = ConvSpec.parse(line, layout=layout, bias=True, residual=True)
    check_stated(Problem(spec, 1), "whole")
    check_stated(Problem(spec, 1), "uniform")


@pytest.mark.drawn
@pytest.mark.parametrize("algorithm", ["im2col", "mec", "im2win"])
@pytest.mark.parametrize("channels", [7, 8, 9, 11, 12, 17])
def test_channels_around_the_lanes_are_lowered_whole(algorithm: str, channels: int) -> None:
    """Planes are turned in squares of lanes by lanes, or all at once where channels are few."""
    for dtype in BOTH:
        spec = ConvSpec.parse(f"ic{channels}ih2iw17oc3oh2ow17kh1", dtype=dtype)
        check_stated(Problem(spec, 2), "whole", algorithm=algorithm)


def _ends(array: np.ndarray) -> np.ndarray:
    """The elements of an array, and the one before and the one after."""
    begin = array.ctypes.data - array.itemsize
    return np.frombuffer((ctypes.c_float * (array.size + 2)).from_address(begin), np.float32)


@pytest.mark.skipif(bool(guard_pages.side()), reason="a page that it touches ends the process")
def test_guards_notice_what_they_are_for() -> None:
    out = Guarded.unwritten((2, 3), FLOAT32)
    assert np.isnan(out.array).all()
    out.check()
    for beside in (-1, 6):
        out = Guarded.unwritten((2, 3), FLOAT32)
        _ends(out.array)[beside + 1] = 0
        with pytest.raises(AssertionError, match="written"):
            out.check()
    given = Guarded(np.ones((4,), np.float32), aligned=False)
    x = _ends(given.array)
    assert np.isnan(x[[0, 5]]).all()
    assert (x[1:5] == 1).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_no_images_give_no_images(layout: str) -> None:
    w = np.ones((4, 3, 3, 3), "f4")
    shapes = {"NCHW": ((0, 3, 8, 9), (0, 4, 8, 9)), "NHWC": ((0, 8, 9, 3), (0, 8, 9, 4))}
    x, y = (np.zeros(shape, "f4") for shape in shapes[layout])
    found = lc.conv2d(x, w, padding="same", layout=layout, residual=y)
    assert (found.shape, found.dtype) == (y.shape, y.dtype)
    with pytest.raises(lc.InputError, match="expected float32"):
        lc.conv2d(x.astype("f8"), w, layout=layout)
    with pytest.raises(lc.InputError, match="residual"):
        lc.conv2d(x, w, layout=layout, residual=y)
    with pytest.raises(lc.SpecError, match="input extents of at least 1"):
        lc.conv2d(np.zeros((2, 3, 0, 9), "f4"), w)


@pytest.mark.parametrize("width", [5, 14, 29])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_long_activations_of_whole_tiles(layout: str, width: int) -> None:
    """They are computed in a loop over a tile's sums, and each sum has its own."""
    random = np.random.default_rng(width)
    x = random.standard_normal((1, 16, 6, width)).astype(np.float32)
    w = (random.standard_normal((40, 16, 3, 3)) / 8).astype(np.float32)
    wide = lc.conv2d(x.astype(np.float64), w.astype(np.float64), padding=1)
    given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = lc.conv2d(given, w, padding=1, activation="silu", algorithm="direct", layout=layout)
    y = y if layout == "NCHW" else y.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(y, wide / (1 + np.exp(-wide)), rtol=0, atol=1e-4)
