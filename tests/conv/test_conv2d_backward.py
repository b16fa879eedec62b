"""Gradients of convolutions: plans and calls against NumPy, what plans promise, bad input."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import WEIGHT_GRADIENTS, select
from leanconv.api.gradient_graph import NEEDS
from leanconv.codegen import compiler
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import key_of
from leanconv.codegen.linking import loaded
from leanconv.errors import BudgetError, InputError, LeanConvError, SpecError
from leanconv.runtime.calibration import planning_target
from leanconv.spec import ConvSpec
from leanconv.target import Target
from support import gradient_draws, gradients
from support.gradient_calls import OF_DATA, Call, all_needs, check_call, named
from support.gradient_draws import Draw

X, W = np.ones((2, 4, 7, 9), "f4"), np.ones((6, 4, 3, 3), "f4")
DY = np.ones((2, 6, 5, 7), "f4")
# A transposed convolution from DY's shape to X's: w is (C, K / groups, kh, kw).
TURNED = np.ones((6, 4, 3, 3), "f4")


def label(call: Call) -> str:
    """A call's name in the tests' names."""
    return f"{call.found.name} {call.layout}{' transposed' if call.transposed else ''}"


def of(text: str, dtype: str = "float32", **more: Any) -> Call:
    """The call of a problem in oneDNN's form."""
    return Call(Draw(text, ConvSpec.parse(text, dtype=dtype), 3), **more)


# -- answers ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "text",
    [
        "mb2ic16ih9oc32oh9kh3ph1",
        "mb3ic8ih12oc24oh6kh3sh2ph1",
        "mb2ic32ih7oc16oh7kh1",
        "mb2ic32ih8oc16oh4kh1sh2",
        "mb2ic3ih21oc16oh11kh7sh2ph3",
        "g16mb2ic16ih10oc16oh10kh3ph1",
        "g16mb2ic16ih10oc32oh5kh3sh2ph1",
        "g4mb2ic16ih10oc32oh8kh3",
        "mb1ic5ih11oc7oh7kh3dh1",
        "mb1ic1ih3oc1oh9kh1ph3",
    ],
)
def test_every_kind_of_convolution(text: str, layout: str, dtype: str) -> None:
    check_call(of(text, dtype, layout=layout))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("needs", all_needs(), ids=",".join)
def test_what_is_not_needed_is_none(needs: tuple[str, ...], layout: str) -> None:
    call = of("mb2ic8ih7oc16oh7kh3ph1", layout=layout, needs=needs)
    found = named(check_call(call, threads=(1,))(*call.arrays(True)))
    assert {need for need in NEEDS if found[need] is not None} == set(needs)


def test_what_others_got_wrong() -> None:
    for found in gradient_draws.reported():
        for layout in ("NCHW", "NHWC"):
            check_call(Call(found, layout=layout), threads=(1, 2))


@pytest.mark.parametrize("number", range(24))
def test_drawn(number: int) -> None:
    check_call(Call.drawn(gradient_draws.draw(2, number)))


@pytest.mark.parametrize("number", range(8))
def test_of_transposed_convolutions(number: int) -> None:
    texts = [
        "mb2ic16ih8oc32oh4kh2sh2",
        "mb1ic8ih8oc24oh4kh4sh2ph1",
        "mb2ic16ih9oc16oh9kh3ph1",
        "g8mb2ic8ih9oc8oh5kh3sh2ph1",
        "ic3ih1iw16oc5oh1ow8kh1kw3sh1sw2ph0pw1",
        "g2mb3ic6ih10oc4oh4kh3sh3",
        "mb1ic1ih5oc1oh5kh1",
        "mb1ic7ih12oc9oh6kh3sh2ph1dh0",
    ]
    check_call(of(texts[number], transposed=True))


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_axes_by_their_names(rank: int) -> None:
    rng = np.random.default_rng(rank)
    x = rng.integers(-3, 4, (2, 3, *[6] * rank)).astype("f4")
    w = rng.integers(-3, 4, (5, 3, *[3] * rank)).astype("f4")
    dy = rng.integers(-3, 4, (2, 5, *[4] * rank)).astype("f4")
    by_name = getattr(lc, f"conv{rank}d_backward")(x, w, dy)
    for one, other in zip(by_name, lc.conv2d_backward(x, w, dy), strict=True):
        np.testing.assert_array_equal(one, other)
    back = getattr(lc, f"conv_transpose{rank}d_backward")(dy, w, x)
    np.testing.assert_array_equal(back.dw, by_name.dw)
    np.testing.assert_array_equal(back.dx, lc.conv2d(x, w))


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_each_method_by_name(name: str) -> None:
    """Those that take the problem are taken; others say why."""
    done, target = 0, planning_target()
    for text in ("mb2ic16ih10oc16oh8kh3", "g16mb2ic16ih10oc16oh8kh3"):
        call = of(text, needs=("w",))
        problem = gradients.gradient_problem(call.found.spec)
        if select.refusal(select.gradient_choice_named(name), problem, target):
            with pytest.raises(SpecError, match=name):
                call.plan(algorithm=name)
            continue
        plan = check_call(call, algorithm=name)
        assert str(plan.algorithms["w"]).startswith(name)
        done += 1
    assert done


DATA = (
    of("mb2ic16ih10oc16oh8kh3", needs=("x",)),
    of("mb2ic3ih5oc4oh9kh3ph3", needs=("x",)),
    of("mb2ic3ih7iw5oc4oh4ow6kh2kw4sh3sw2ph3pw5", needs=("x",)),
    of("ic1ih1oc1oh3kh1ph1", needs=("x",)),
    of("g16mb2ic16ih9iw5oc16oh13ow9kh3kw3ph3pw3", needs=("x",)),
    of("g16mb2ic16ih9iw5oc16oh13ow9kh3kw3ph3pw3", needs=("x",), layout="NHWC"),
)


@pytest.mark.parametrize("name", OF_DATA)
def test_each_method_of_dx_by_name(name: str) -> None:
    """Paddings that are smaller than kernels, as large, and larger: parts of dy are left out."""
    done = 0
    for call in DATA:
        with suppress(SpecError):  # a method refuses it
            check_call(call, threads=(1, 2), algorithm=name)
            done += 1
    assert done


def test_arrays_of_any_strides_are_read() -> None:
    call = of("mb2ic16ih9oc8oh9kh3ph1")
    x, w, dy = call.arrays(True)
    wanted = lc.conv2d_backward(x, w, dy, padding=1)
    moved = [np.asfortranarray(a) for a in (x, w, dy)]
    for one, other in zip(lc.conv2d_backward(*moved, padding=1), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    broadcast = np.broadcast_to(np.float32(1), dy.shape)
    found = lc.conv2d_backward(x, w, broadcast, padding=1)
    np.testing.assert_array_equal(found.db, np.full(8, 2 * 81, "f4"))


def test_an_infinity_stays_where_its_windows_are() -> None:
    """Padding and channels that fill a vector multiply nothing."""
    x, w = np.zeros((1, 3, 6, 20), "f4"), np.ones((5, 3, 3, 3), "f4")
    dy = np.ones((1, 5, 6, 20), "f4")
    x[0, 1, 0, 0] = np.inf
    dw = np.asarray(lc.conv2d_backward(x, w, dy, padding=1, needs=("w",), algorithm="naive").dw)
    assert np.isinf(dw[:, 1, :2, :2]).all()
    assert np.isfinite(dw[:, [0, 2]]).all()


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["naive", "direct", "depthwise", "mec", "im2col"])
def test_a_value_beside_the_end_of_a_row_reaches_the_taps_that_meet_it(
    name: str, layout: str, value: float
) -> None:
    """Columns that fill a vector multiply nothing, either."""
    for stride, width in ((1, 7), (1, 16), (1, 20), (2, 15), (2, 33)):
        out = (width - 1) // stride + 1
        for row, column in ((0, 0), (0, width - 1), (3, width // 2)):
            x, w = np.ones((2, 16, 5, width), "f4"), np.ones((16, 1, 3, 3), "f4")
            dy = np.ones((2, 16, 4 // stride + 1, out), "f4")
            x[1, 2, row, column] = value
            met = np.zeros((3, 3), bool)
            for u, v in np.ndindex(3, 3):
                (y, no_row), (o, none) = divmod(row + 1 - u, stride), divmod(column + 1 - v, stride)
                inside = 0 <= y < dy.shape[2] and 0 <= o < out
                met[u, v] = inside and not no_row and not none
            if layout == "NHWC":
                x, dy = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, dy))
            given: Any = {"padding": 1, "groups": 16, "layout": layout, "needs": ("w",)}
            dw = lc.conv2d_backward(x, w, dy, stride, **given, algorithm=name, threads=1).dw
            assert dw is not None
            np.testing.assert_array_equal(~np.isfinite(dw[2, 0]), met)
            assert np.isfinite(np.delete(dw, 2, 0)).all()


# -- promises --------------------------------------------------------------------------------
CALLS = (
    of("mb2ic16ih14oc32oh14kh3ph1"),
    of("mb2ic16ih14oc32oh7kh3sh2ph1", layout="NHWC"),
    of("g16mb2ic16ih14oc16oh14kh3ph1"),
    of("mb2ic16ih14oc32oh7kh2sh2", transposed=True),
)


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_a_limit_of_memory_is_kept_and_the_error_names_what_works(call: Call) -> None:
    free = call.plan(threads=2)
    assert free.memory_bytes == free.workspace_bytes + free.weight_bytes
    try:
        call.plan(threads=2, memory_limit=0)
        return  # it works in no memory at all
    except BudgetError as error:
        least = error.smallest_bytes
    assert least is not None
    assert 0 < least <= free.memory_bytes
    plan = check_call(call, threads=(2,), memory_limit=least)
    assert plan.memory_bytes == plan.used_bytes <= least
    with pytest.raises(BudgetError, match=f"give memory_limit={least} or more"):
        call.plan(threads=2, memory_limit=least - 1)
    for limit in {(least + free.memory_bytes) // 2, free.memory_bytes, f"{free.memory_bytes} B"}:
        kept = check_call(call, threads=(2,), memory_limit=limit)
        assert kept.memory_bytes <= free.memory_bytes


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_an_error_that_is_accepted_is_kept(call: Call) -> None:
    free = call.plan()
    assert 1e-8 < free.predicted_error < 1e-4
    with pytest.raises(BudgetError, match=r"give max_error=.* or more"):
        call.plan(max_error=1e-12)
    loose = check_call(call, max_error=1e-3)
    assert loose.predicted_error <= 1e-3
    tight = check_call(call, max_error=free.predicted_error)
    assert tight.predicted_error <= free.predicted_error


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_reproducible_plans_have_the_same_bits_within_any_limit(call: Call) -> None:
    free = call.plan(threads=2, reproducible=True)
    wanted = free(*call.arrays(False))
    for limit in (free.memory_bytes, 4 * free.memory_bytes, "1 GiB"):
        plan = call.plan(threads=1, reproducible=True, memory_limit=limit)
        for one, other in zip(plan(*call.arrays(False)), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("call", CALLS, ids=label)
@pytest.mark.parametrize("max_error", [None, 1e-5])
def test_reproducible_plans_take_nothing_else_within_a_limit(
    call: Call, max_error: float | None
) -> None:
    given = {"threads": 2, "reproducible": True, "max_error": max_error}
    free = call.plan(**given)
    wanted = free(*call.arrays(False))
    limit = free.memory_bytes - 1
    with pytest.raises(BudgetError, match=f"give memory_limit={limit + 1} or more"):
        call.plan(**given, memory_limit=limit)
    alone = call.plan(**{**given, "threads": 1}, memory_limit=limit + 1)
    for one, other in zip(alone(*call.arrays(False)), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_explain_names_each_gradient(call: Call) -> None:
    text = call.plan().explain()
    for need, name in call.plan().algorithms.items():
        assert f"d{need}: {str(name).partition(':')[0]}" in text, need
    assert "db: " in text


def test_few_channels_that_lie_last_are_computed_as_planes_within_a_limit() -> None:
    call = of("mb2ic3ih32oc16oh16kh3sh2ph1", layout="NHWC", needs=("x",))
    planes = 2 * 3 * 32 * 32 * 4
    plan = check_call(call)
    assert plan.workspace_bytes > planes
    with pytest.raises(BudgetError, match="give memory_limit=") as caught:
        call.plan(threads=2, memory_limit=64)
    least = caught.value.smallest_bytes
    assert least is not None
    limited = check_call(call, threads=(2,), memory_limit=least)
    assert limited.memory_bytes <= least <= plan.memory_bytes
    if least < plan.memory_bytes:  # by phases, without planes
        with pytest.raises(BudgetError, match="give memory_limit="):
            call.plan(threads=2, memory_limit=least, reproducible=True)


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_one_program_gives_dw_and_db(call: Call) -> None:
    """But not of transposed convolutions, whose dy is what windows slide over."""
    plan, apart = call.plan(), replace(call, needs=("bias",)).plan()
    found = [part.results for part in plan.parts]
    assert found == [("dx",), *([("dw",), ("db",)] if call.transposed else [("dw", "db")])]
    assert plan.predicted_errors["db"] == apart.predicted_errors["db"] < 1e-4
    alone = replace(call, needs=("w",)).plan()
    x, w, dy = call.arrays(False)
    np.testing.assert_array_equal(plan(x, w, dy).dw, alone(x, None, dy).dw)
    assert plan.memory_bytes == plan.used_bytes


def test_a_plan_runs_again_and_apart() -> None:
    call = of("mb2ic16ih9oc8oh9kh3ph1")
    plan, arrays = call.plan(threads=2), call.arrays(False)
    first = plan(*arrays)
    again = plan(*arrays)
    apart = copy.deepcopy(plan)(*arrays)
    assert all(one is not other for one, other in zip(first, again, strict=True))
    for results in zip(first, again, apart, call.called(False, threads=2), strict=True):
        for each in results[1:]:
            np.testing.assert_array_equal(results[0], each)
    assert plan.dy_shape == arrays[2].shape
    assert "GradientPlan" in repr(plan)
    with pytest.raises(LeanConvError, match="plan_conv2d_backward"):
        pickle.dumps(plan)


SIZES = (20, 20), (31, 17), (20, 20), (21, 33), (40, 40), (15, 16), (12, 12), (57, 56), (9, 30)
BATCHES = 8, 3, 1, 8, 2, 1, 16, 5, 7
LAYERS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((32, 16, 3, 3), {"padding": 1}),
    "3x3 s2": ((32, 16, 3, 3), {"padding": 1, "stride": 2}),
    "3x3 s2 p0": ((32, 16, 3, 3), {"stride": 2}),
    "1x1": ((32, 16, 1, 1), {}),
    "1x1 s2": ((32, 16, 1, 1), {"stride": 2}),
    "stem": ((32, 3, 7, 7), {"padding": 3, "stride": 2}),
    "depthwise": ((32, 1, 3, 3), {"padding": 1, "groups": 32}),
    "depthwise s2": ((32, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 32}),
    "transposed s2": ((16, 32, 4, 4), {"padding": 1, "stride": 2}),
    "transposed": ((16, 32, 3, 3), {"padding": 1}),
}
# More codes that sizes after the second need, where lanes are along columns: few, narrow and wide.
MORE = {
    ("depthwise", "NCHW", "x"): 6,
    ("depthwise", "NCHW", "w"): 1,
    ("depthwise s2", "NCHW", "w"): 1,
    ("depthwise s2", "NHWC", "w"): 1,  # columns at the right end, by what a stride leaves
}


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize(
    ("name", "layout", "dtype"),
    [
        (name, layout, dtype)
        for name in LAYERS
        for layout, dtype in (("NCHW", "float32"), ("NHWC", "float32"), ("NCHW", "float64"))
        if not (name.startswith("transposed") and layout == "NHWC")
    ],
)
def test_batches_and_sizes_that_change_compile_nothing_after_the_second(
    name: str, layout: str, dtype: str, need: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact for whole numbers, too: all sizes have the code and the choices of the second."""
    made, emitted = list[str](), compiler.emitted_instance

    def counted(kernel: Kernel, target: Target) -> Any:
        instance, text = emitted(kernel, target)
        if loaded(key_of(instance.digest, target)) is None:  # else its form was only forgotten
            made.append(type(kernel).__name__)
        return instance, text

    shape, options = LAYERS[name]
    transposed = name.startswith("transposed")
    rng = np.random.default_rng(len(name))
    for number, (batch, size) in enumerate(zip(BATCHES, SIZES, strict=True)):
        channels = shape[0] if transposed else shape[1] * options.get("groups", 1)
        last = layout == "NHWC"
        of_x = (batch, *size, channels) if last else (batch, channels, *size)
        given = options if transposed else {**options, "layout": layout}
        plan = lc.plan_conv_transpose2d_backward if transposed else lc.plan_conv2d_backward
        call = lc.conv_transpose2d_backward if transposed else lc.conv2d_backward
        named = {"x": "naive", "w": "naive"}
        exact = plan(of_x, shape, **given, needs=(need,), dtype=dtype, algorithm=named)
        shapes = of_x, shape, exact.dy_shape
        arrays = [rng.integers(-2, 3, each).astype(dtype) for each in shapes]
        with monkeypatch.context() as patch:
            if number > 1:
                patch.setattr(compiler, "emitted_instance", counted)
            found = call(*arrays, **given, needs=(need,))
        for one, other in zip(found, exact(*arrays), strict=True):
            if one is not None:
                assert other is not None
                np.testing.assert_allclose(one, other, 0, 1e-4 * max(1, np.abs(other).max()))
    sums = made.count("PointSums")  # one more, where a large size is best by Winograd
    assert sums <= 1, made
    assert len(made) - sums <= MORE.get((name, layout, need), 0), made


@pytest.mark.parametrize("needs", [("x",), ("w",)])
@pytest.mark.parametrize(
    "layer", ["ic64oc64kh3dh1ph2", "ic64oc64kh3dh2ph3", "g8ic24oc16kh3sh3sw1dh0dw1ph2"]
)
def test_later_sizes_may_be_those_that_the_usual_algorithm_refuses(
    layer: str, needs: tuple[str, ...]
) -> None:
    """Dilations beyond the image; planes of one pixel, which lie as channels do."""
    for number, size in enumerate(
        ("mb2ih9iw9", "mb3ih8iw7", "mb5ih1iw1", "mb2ih1iw8", "mb2ih8iw1")
    ):
        spec = ConvSpec.parse(layer + size)
        call = Call(Draw(f"{layer} {number}", spec, number), needs=needs)
        (found,) = [each for each in call.called(True) if each is not None]
        (wanted,) = call.expected(True).values()
        assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_outputs_of_the_user_are_written() -> None:
    call = of("mb2ic16ih9oc8oh9kh3ph1")
    plan, (x, w, dy) = call.plan(), call.arrays(True)
    wanted = plan(x, w, dy)
    mine = np.full(w.shape, np.nan, "f4")
    found = plan(x, w, dy, out=lc.Gradients(None, mine, None))
    assert found.dw is mine
    np.testing.assert_array_equal(mine, wanted.dw)
    np.testing.assert_array_equal(found.dx, wanted.dx)


def test_what_is_not_read_need_not_be_given() -> None:
    call = of("mb2ic16ih9oc8oh9kh3ph1")
    x, w, dy = call.arrays(True)
    whole = call.plan()(x, w, dy)
    dw = replace(call, needs=("w",)).plan()(x, None, dy).dw
    dx = replace(call, needs=("x",)).plan()(None, w, dy).dx
    db = replace(call, needs=("bias",)).plan()(dy=dy).db
    for one, other in zip((dx, dw, db), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_images_have_gradients_of_nothing() -> None:
    found = lc.conv2d_backward(X[:0], W, DY[:0])
    assert np.asarray(found.dx).shape == (0, *X.shape[1:])
    assert not np.asarray(found.dw).any()
    assert not np.asarray(found.db).any()
    back = lc.conv_transpose2d_backward(DY[:0], TURNED, X[:0])
    assert np.asarray(back.dx).shape == (0, *DY.shape[1:])
    with pytest.raises(InputError, match="dy is"):
        lc.conv2d_backward(X[:0], W, DY)


# -- bad input -------------------------------------------------------------------------------
def back(*arrays: Any, **options: Any) -> lc.Gradients:
    return lc.conv2d_backward(*arrays, **options)


def plan(**options: Any) -> Any:
    return lc.plan_conv2d_backward(**{"x_shape": X.shape, "w_shape": W.shape, **options})


BAD: list[tuple[str, Callable[[], object], str]] = [
    ("height", lambda: back(X, W, DY[:, :, :4]), r"dy is .*2x6x4x7.; expected .*\[2x6x5x7\]"),
    ("batch", lambda: back(X, W, DY[:1]), r"dy is float32\[1x6x5x7\]; expected .*\[2x6x5x7\]"),
    ("channels", lambda: back(X, W, DY[:, :5]), r"dy is .*2x5x5x7.; expected"),
    ("rank", lambda: back(X, W, DY[0]), r"dy is .*6x5x7.; expected"),
    ("stride", lambda: back(X, W, DY, stride=2), r"dy is .*2x6x5x7.; expected .*2x6x3x4"),
    ("double", lambda: back(X, W, DY.astype("f8")), r"give dy.astype\('float32'\)"),
    ("half", lambda: back(X, W, DY.astype("f2")), r"give dy.astype\('float32'\)"),
    ("x double", lambda: back(X.astype("f8"), W, DY), r"give x.astype\('float32'\)"),
    ("int", lambda: back(X, W, DY.astype("i4")), r"dy is int32.*give dy.astype\('float32'\)"),
    ("bool", lambda: back(X, W, DY > 0), r"dy is bool.*give dy.astype"),
    ("swapped bytes", lambda: back(X, W, DY.astype(">f4")), r"dy is >f4.*give dy.astype"),
    ("codes", lambda: back(X.astype("u1"), W.astype("i1"), DY.astype("i4")), r"w is int8; exp"),
    ("complex", lambda: back(X, W, DY * 1j), r"dy is complex64.*dy.real and dy.imag apart"),
    ("complex x", lambda: back(X * 1j, W, DY), r"x.real and x.imag apart"),
    ("complex w", lambda: back(X * 1j, W * 1j, DY * 1j), r"w.real and w.imag apart"),
    ("list", lambda: back(X, W, DY.tolist()), r"dy is list; .*give np.asarray\(dy, 'float32'\)"),
    ("w list", lambda: back(X, W.tolist(), DY), r"w is list; .*give np.asarray\(w, 'float32'\)"),
    ("x list", lambda: back(X.tolist(), W, DY), r"x is list; .*give np.asarray\(x, 'float32'\)"),
    ("none", lambda: back(X, W, None), r"dy is NoneType; expected a NumPy array"),
    ("masked", lambda: back(X, W, np.ma.masked_array(DY)), r"give dy.filled\(0\)"),
    ("objects", lambda: back(X, W, DY.astype(object)), r"dy is object.*give dy.astype"),
    ("needs", lambda: back(X, W, DY, needs=("dw",)), r"needs is .*; expected some of x, w, bias"),
    ("no needs", lambda: back(X, W, DY, needs=()), r"needs is \(\); expected some of"),
    ("needs 5", lambda: back(X, W, DY, needs=5), r"needs is 5; expected some of"),
    ("needs [[]]", lambda: back(X, W, DY, needs=[["x"]]), r"needs is .*; expected some of"),
    ("algorithm", lambda: back(X, W, DY, algorithm="magic"), r"'magic' is not known; expected"),
    (
        "algorithm of dx",
        lambda: plan(algorithm="fft"),
        r"dw: .*'fft' is not known.*\{'w': \.\.\.\}",
    ),
    ("algorithm 5", lambda: back(X, W, DY, algorithm=5), r"algorithm is 5; expected"),
    ("algorithm w", lambda: plan(algorithm={"w": 5}), r"algorithm is \{'w': 5\}; expected"),
    ("algorithm dw", lambda: plan(algorithm={"dw": "naive"}), r"expected a name, or a mapping"),
    ("limit", lambda: plan(memory_limit="much"), r"'much' is not a number of bytes"),
    ("limit -1", lambda: plan(memory_limit=-1), r"-1 is not a number of bytes"),
    ("error", lambda: plan(max_error=0), r"max_error is 0; expected a positive"),
    ("threads", lambda: plan(threads=0), r"threads is 0; expected an integer"),
    ("reproducible", lambda: plan(reproducible="no"), r"reproducible is .no.; expected True"),
    ("groups", lambda: plan(groups=3), r"groups that divide 4"),
    ("stride 0", lambda: plan(stride=0), r"stride is 0; expected 2 integer"),
    ("layout", lambda: plan(layout="NHWC"), r"x seems to be NCHW|takes 4"),
    ("layout CHWN", lambda: plan(layout="CHWN"), r"layout is 'CHWN'; expected 'NCHW' or 'NHWC'"),
    ("dtype", lambda: plan(dtype="int8"), r"dtype is 'int8'; expected one of float32, float64"),
    ("dtype none", lambda: plan(dtype=None), r"dtype is None; expected one of"),
    ("array for shape", lambda: plan(w_shape=W), r"the shape of w is ndarray; expected integers"),
    ("batch 0", lambda: plan(x_shape=(0, 4, 7, 9)), r"batch of at least 1, got 0"),
    ("kernel", lambda: plan(w_shape=(6, 4, 30, 3)), r"a kernel that fits the padded input"),
    ("w rank", lambda: plan(w_shape=(6, 4, 3)), r"the same 1 to 3 spatial axes"),
    ("huge", lambda: plan(x_shape=(2**30, 4, 2**15, 2**15)), r"fewer than 2\^48 elements"),
    ("progress", lambda: plan(progress=5), r"progress is 5; expected a function"),
    ("turned", lambda: lc.conv_transpose2d_backward(DY, TURNED, X[:, :, :6]), r"dy is .*; exp"),
    (
        "turned codes",
        lambda: lc.conv_transpose2d_backward(DY.astype("u1"), TURNED.astype("i1"), X),
        r"w is int8; expected",
    ),
    (
        "turned output_padding",
        lambda: lc.conv_transpose2d_backward(DY, TURNED, X, output_padding=1),
        r"output_padding is 1; expected",
    ),
]


@pytest.mark.parametrize(("call", "message"), [e[1:] for e in BAD], ids=[e[0] for e in BAD])
def test_bad_input_is_one_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(LeanConvError, match=message) as info:
        call()
    assert isinstance(info.value, SpecError | InputError)


def test_nothing_is_planned_for_bad_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object) -> object:
        raise AssertionError(f"compiled {given}")

    monkeypatch.setattr(compiler, "load", none)
    for name, call, message in BAD:
        if name not in ("algorithm", "algorithm w", "algorithm of dx"):
            with pytest.raises((LeanConvError, AssertionError), match=f"{message}|compiled"):
                call()


def gradients_of(**arrays: np.ndarray) -> lc.Gradients:
    return lc.Gradients(*(arrays.get(name) for name in ("dx", "dw", "db")))


def test_outputs_that_do_not_fit() -> None:
    made, memory = plan(needs=("w", "bias")), np.zeros(300, "f4")
    bad: list[tuple[Any, str]] = [
        (gradients_of(dw=W[..., :2]), r"out.dw is .*6x4x3x2.; expected .*6x4x3x3"),
        (gradients_of(dw=W.astype("f8")), r"out.dw is float64"),
        (gradients_of(dw=np.broadcast_to(np.float32(0), W.shape)), "not contiguous and writeable"),
        (gradients_of(dw=X.reshape(-1)[:216].reshape(W.shape)), "out.dw shares memory"),
        (gradients_of(dw=memory[:216].reshape(W.shape), db=memory[210:216]), "out.db shares"),
        (gradients_of(dx=np.zeros_like(X)), r"out.dx is given, but the plan computes dw, db"),
        ((None, W.copy(), None), r"out is tuple; expected Gradients\(dx, dw, db\)"),
        (W.copy(), r"out is ndarray; expected Gradients\(dx, dw, db\)"),
    ]
    for out, message in bad:
        with pytest.raises(InputError, match=message):
            made(X, W, DY, out=out)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 16), (2, 2)])
def test_halves_err_by_no_more_than_is_stated(
    kind: Any, layout: str, stride: int, groups: int
) -> None:
    rng = np.random.default_rng(0)
    out = (9 - 1) // stride + 1
    shapes = (2, 16, 9, 9), (32, 16 // groups, 3, 3), (2, 32, out, out)
    x, w, dy = (rng.uniform(-1, 1, shape).astype(kind) for shape in shapes)
    if layout == "NHWC":
        x, dy = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, dy))
    window = {"stride": stride, "padding": 1, "groups": groups, "layout": layout}
    dtype = str(x.dtype)
    plan = lc.plan_conv2d_backward(x.shape, w.shape, **window, dtype=dtype)
    found = plan(x, w, dy)
    exact = lc.conv2d_backward(*(a.astype(np.float64) for a in (x, w, dy)), **window)
    for name, got, wanted in zip(found._fields, found, exact, strict=True):
        assert got is not None
        assert wanted is not None
        assert got.dtype == kind
        error = np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max()
        assert error <= plan.predicted_errors[name], (name, plan.algorithms)
    again = lc.conv2d_backward(x, w, dy, **window)
    assert all(np.array_equal(*pair) for pair in zip(found, again, strict=True))


def test_threads_of_another_size_decide_on_no_bits() -> None:
    """How a later size is computed follows from the sizes before it, whatever their threads."""
    random = np.random.default_rng(0)
    w = random.standard_normal((24, 16, 3, 3), np.float32)

    def gradients(side: int, threads: int) -> lc.Gradients:
        x = np.full((4, 16, side, side), 0.1, np.float32)
        dy = np.cos(np.arange(4 * 24 * side**2, dtype=np.float32)).reshape(4, 24, side, side)
        return lc.conv2d_backward(x, w, dy, padding=1, threads=threads)

    gradients(28, 2)
    one, *others = (gradients(14, threads) for threads in (1, 2, 5))
    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
