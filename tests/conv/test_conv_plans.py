"""What plans promise: arguments checked, memory counted, weights followed, callers kept apart."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import ALGORITHMS
from leanconv.api import conv as api
from leanconv.api import kept_plans
from leanconv.api.layer_plan import PackedConstants
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import BudgetError, InputError, LeanConvError, SpecError, memory_reported
from leanconv.reference.direct import convolve
from leanconv.types import FLOAT32
from support.guarded import Guarded


def whole(shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


X, W = whole((2, 5, 9, 11)), whole((7, 5, 3, 3), 1)


def expected(x: np.ndarray, w: np.ndarray, **options: Any) -> np.ndarray:
    spec = lc.plan_conv2d(x.shape, w, **options).spec
    return convolve(spec, x.astype(np.int64), w.astype(np.int64))


# -- arguments -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "same_as"),
    [
        ({"padding": 1}, {"padding": (1, 1, 1, 1)}),
        ({"padding": (1, 2)}, {"padding": (1, 2, 1, 2)}),
        ({"padding": "same"}, {"padding": 1}),
        ({"padding": "same", "stride": 2}, {"padding": (1, 1, 1, 1), "stride": (2, 2)}),
        ({"padding": "same", "dilation": (2, 1)}, {"padding": (2, 1), "dilation": (2, 1)}),
        ({"padding": "valid"}, {}),
        ({"stride": [2, 3]}, {"stride": (2, 3)}),
        ({"stride": np.int64(2), "padding": np.int32(1)}, {"stride": 2, "padding": 1}),
        ({"stride": np.array([2, 3])}, {"stride": (2, 3)}),
    ],
)
def test_ways_to_say_the_same(options: dict[str, Any], same_as: dict[str, Any]) -> None:
    plan = lc.plan_conv2d(X.shape, W, **options)
    assert plan.spec == lc.plan_conv2d(X.shape, W, **same_as).spec
    np.testing.assert_array_equal(lc.conv2d(X, W, **options), expected(X, W, **same_as))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 0}, r"stride is 0; expected 2 integer"),
        ({"stride": (1, 2, 3)}, r"stride is \(1, 2, 3\); expected 2 integer"),
        ({"stride": "22"}, r"stride is '22'; expected 2 integer"),
        ({"stride": 1.5}, r"stride is 1.5; expected 2 integer"),
        ({"stride": (1.5, 1)}, r"stride is \(1.5, 1\); expected 2 integer"),
        ({"stride": None}, r"stride is None; expected 2 integer"),
        ({"dilation": -1}, r"dilation is -1; expected 2 integer"),
        ({"padding": -1}, r"padding is -1; expected one integer of at least 0"),
        ({"padding": (1, 2, 3)}, r"padding is \(1, 2, 3\); expected one integer"),
        ({"padding": "SAME"}, r"padding is 'SAME'; expected 'same', 'valid'"),
        ({"padding": 0.5}, r"padding is 0.5; expected one integer"),
        ({"groups": 0}, r"groups is 0; expected an integer of at least 1"),
        ({"groups": 2}, r"x has 5 channels and w takes 5"),
        ({"groups": "1"}, r"groups is '1'; expected an integer"),
        ({"layout": "NHWC"}, r"x has 11 channels and w takes 5"),
        ({"layout": "CHWN"}, r"layout is 'CHWN'; expected 'NCHW' or 'NHWC'"),
        ({"activation": "swish"}, r"activation 'swish' is not known; expected .*relu, relu6, "),
        ({"activation": "clip:a"}, r"expected numbers as parameters, such as"),
        ({"activation": "relu:1"}, r"got 1 parameter\(s\); expected at most 0"),
        ({"activation": 5}, r"activation is 5; expected"),
        ({"activation": "prelu"}, r"'prelu' and slope is None; expected slope, an array \(K,\)"),
        ({"slope": whole((7,))}, r"slope is given, but the activation is None"),
        ({"algorithm": "magic"}, r"algorithm 'magic' is not known; expected one of"),
        ({"algorithm": "depthwise"}, r"'depthwise' cannot compute .*there is only one group"),
        ({"threads": 0}, r"threads is 0; expected"),
        ({"threads": -3}, r"threads is -3; expected"),
        ({"threads": 1.5}, r"threads is 1.5; expected"),
        ({"x_shape": (2, 5, 9)}, r"expected \(N, C, spatial…\)"),
        ({"x_shape": (2, 5, 2, 2)}, r"a kernel that fits the padded input, got 3 over 2"),
        ({"x_shape": (0, 5, 9, 9)}, r"batch of at least 1, got 0"),
        ({"x_shape": (2, 5, 0, 9), "padding": 2}, r"input extents of at least 1"),
        ({"x_shape": (2**30, 5, 2**15, 2**15)}, r"fewer than 2\^48 elements"),
    ],
)
def test_arguments_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x_shape": X.shape, "w": W, **changes}
    with pytest.raises(SpecError, match=message):
        lc.plan_conv2d(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lc.conv2d(X.tolist(), W), r"x is list; expected a NumPy array"),
        (lambda: lc.conv2d(X, W.tolist()), r"w is list; expected a float32 or float64 array"),
        (lambda: lc.conv2d(X, W.astype(np.int16)), r"w is int16; expected"),
        (lambda: lc.conv2d(X, W.astype(np.int8)), r"x is float32 and w int8; expected"),
        (lambda: lc.conv2d(X, W.astype(">f4")), r"w is >f4; expected"),
        (lambda: lc.conv2d(X.astype(np.float64), W), r"x is float64\[2x5x9x11\]; expected flo"),
        (lambda: lc.conv2d(X, W, whole((6,))), r"bias is float32\[6\]; expected float32\[7\]"),
        (lambda: lc.conv2d(X, W, whole((7,), 0, "float64")), r"bias is float64\[7\]; expected"),
        (
            lambda: lc.conv2d(X, W, residual=whole((2, 7, 7, 8))),
            r"residual is float32\[2x7x7x8\]; expected float32\[2x7x7x9\]",
        ),
        (lambda: PLAN()(X[:1]), r"x is float32\[1x5x9x11\]; expected float32\[2x5x9x11\]"),
        (
            lambda: PLAN()(X, residual=whole((2, 7, 7, 9))),
            r"expected None, .* residual=True",
        ),
        (
            lambda: PLAN(residual=True)(X),
            r"residual is None; expected an array, which",
        ),
        (lambda: PLAN()(X, out=whole((2, 7, 7, 8))), r"out is float32\[2x7x7x8\]; expected"),
        (lambda: PLAN()(X, out=whole((2, 7, 9, 7)).swapaxes(2, 3)), r"out is not contiguous"),
        (lambda: PLAN()(X, out=read_only((2, 7, 7, 9))), r"out is not contiguous and writeable"),
    ],
)
def test_arrays_that_do_not_fit(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def PLAN(**options: Any) -> lc.ConvPlan:  # noqa: N802 - a plan of X and W, short in the table above
    return lc.plan_conv2d(X.shape, W, **options)


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    array = whole(shape)
    array.flags.writeable = False
    return array


def test_input_of_any_strides_is_taken() -> None:
    x = whole((2, 11, 9, 5)).transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(lc.conv2d(x, W), expected(x, W))
    w = whole((3, 3, 5, 7), 1).transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(lc.conv2d(X, w), expected(X, w))


def test_output_must_not_overlap_the_input() -> None:
    memory = whole((4000,))
    x = memory[:990].reshape(2, 5, 9, 11)
    plan = lc.plan_conv2d(x.shape, W)
    with pytest.raises(InputError, match="out shares memory with x"):
        plan(x, out=memory[500 : 500 + 882].reshape(2, 7, 7, 9))
    y = plan(x, out=memory[990 : 990 + 882].reshape(2, 7, 7, 9))
    np.testing.assert_array_equal(y, expected(x, W))


def test_residual_may_be_the_output_itself_but_not_a_part_of_it() -> None:
    plan = lc.plan_conv2d(X.shape, W, residual=True)
    residual = whole((2, 7, 7, 9), 5)
    right = expected(X, W) + residual
    out = residual.copy()
    np.testing.assert_array_equal(plan(X, out=out, residual=out), right)
    memory = np.zeros(883, np.float32)
    memory[:-1] = residual.reshape(-1)
    shifted = memory[1:].reshape(residual.shape)
    with pytest.raises(InputError, match="out shares memory with a part of residual"):
        plan(X, out=shifted, residual=memory[:-1].reshape(residual.shape))


def test_no_tap_ever_reads_what_lies_around_the_input() -> None:
    """Padding multiplies nothing: an infinity inside stays where its windows are."""
    x = np.zeros((1, 3, 6, 40), np.float32)
    x[0, 1, 0, 0] = np.inf
    y = lc.conv2d(x, np.ones((16, 3, 3, 3), np.float32), padding=1)
    touched = np.isinf(y)
    assert touched[0, :, :2, :2].all()
    assert touched.sum() == 16 * 4
    assert not np.isnan(y).any()


# -- budgets ---------------------------------------------------------------------------------
def test_memory_limit_is_kept_and_the_error_names_what_works() -> None:
    free = lc.plan_conv2d(X.shape, W)
    with pytest.raises(
        BudgetError, match=r"the limit is 1 byte; give memory_limit=\d+ or more"
    ) as info:
        lc.plan_conv2d(X.shape, W, memory_limit=1)
    least = info.value.smallest_bytes
    assert 1 < least <= free.memory_bytes
    fitting = lc.plan_conv2d(X.shape, W, memory_limit=least)
    assert fitting.memory_bytes == fitting.used_bytes <= least
    np.testing.assert_array_equal(fitting(X), expected(X, W))
    with pytest.raises(BudgetError):
        lc.plan_conv2d(X.shape, W, memory_limit=least - 1)
    assert lc.plan_conv2d(X.shape, W, memory_limit="1 MiB").memory_bytes <= 2**20
    for wrong in ("much", "-5", -5):
        with pytest.raises(LeanConvError):
            lc.plan_conv2d(X.shape, W, memory_limit=wrong)


def test_max_error_is_kept() -> None:
    plan = lc.plan_conv2d(X.shape, W)
    assert 1e-8 < plan.predicted_error < 1e-5
    assert lc.plan_conv2d(X.shape, W, max_error=plan.predicted_error).predicted_error > 0
    with pytest.raises(
        BudgetError,
        match=r"max_error is 1e-10; .* to err by .*; give max_error=.* or more, or float64",
    ):
        lc.plan_conv2d(X.shape, W, max_error=1e-10)
    double = lc.plan_conv2d(X.shape, W.astype(np.float64), max_error=1e-10)
    assert double.predicted_error < 1e-13


@pytest.mark.parametrize("algorithm", ["direct", "planar", "winograd"])
@pytest.mark.parametrize("channels", [4, 64, 304])
def test_predicted_error_is_right_within_a_hundred(channels: int, algorithm: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (1, channels, 12, 12)).astype(np.float32)
    w = rng.uniform(-1, 1, (32, channels, 3, 3)).astype(np.float32)
    plan = lc.plan_conv2d(x.shape, w, algorithm=algorithm)
    exact = convolve(plan.spec, x, w)
    error = np.abs(plan(x) - exact).max() / np.abs(exact).max()
    assert error <= plan.predicted_error <= 100 * error


def test_explain_names_every_algorithm_once() -> None:
    text = lc.plan_conv2d(X.shape, W).explain()
    for algorithm in ALGORITHMS.values():
        assert text.count(algorithm.name) == 1, text
    assert "there is only one group" in text
    assert re.search(r"^  estimated time \d\S* (ns|us|ms), \d+ threads?$", text, re.M)
    beside = re.findall(r"([0-9.]+) times the time by estimate: .* [num]s, .*, expected err", text)
    assert "separable: 5 input channels a group" in text
    assert len(beside) == len(ALGORITHMS) - 4 - text.count("expected to err too much")
    assert all(float(ratio) > 0 for ratio in beside)


def test_explain_of_an_algorithm_that_was_asked_for() -> None:
    text = lc.plan_conv2d(X.shape, W, algorithm="im2col", max_error=None).explain()
    assert text.startswith(f"{lc.plan_conv2d(X.shape, W).spec}: im2col, ")
    assert "not preferred" not in text


def test_arrays_without_channels() -> None:
    with pytest.raises(SpecError, match=r"without channels as x\[None, None\] and w\[None, None\]"):
        lc.conv2d(X[0, 0], W[0, 0])


# -- plans and the cache of conv2d -----------------------------------------------------------
def test_a_plan_keeps_its_own_weights() -> None:
    w, bias = W.copy(), whole((7,), 9)
    plan = lc.plan_conv2d(X.shape, w, bias)
    right = plan(X)
    w[...] = 0
    bias[...] = 0
    np.testing.assert_array_equal(plan(X), right)


@pytest.mark.parametrize("algorithm", [None, "direct", "planar"])
def test_conv2d_follows_weights_that_change_between_calls(algorithm: str | None) -> None:
    w, bias, slope = W.copy(), whole((7,), 2), whole((7,), 3)
    for step in range(3):
        w += 1
        bias *= 2
        slope -= 1
        y = lc.conv2d(X, w, bias, activation="prelu", slope=slope, algorithm=algorithm)
        spec = lc.plan_conv2d(X.shape, w, bias, activation="prelu", slope=slope).spec
        right = convolve(spec, X, w, bias, None, slope)
        np.testing.assert_array_equal(y, right, err_msg=f"step {step}")
    np.testing.assert_array_equal(lc.conv2d(X, w, algorithm=algorithm), expected(X, w))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("biased", [False, True])
def test_conv2d_of_halves_follows_weights_that_change(dtype: str, biased: bool) -> None:
    """Arrays of bfloat16 are no buffers, and were refused by a raw error."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, w, bias = X.astype(kind), W.astype(kind), np.arange(7).astype(kind)
    given = bias if biased else None
    for change in (0, 1):
        w[0, 0, 0, 0] += change
        y = lc.conv2d(x, w, given, padding=1)
        assert y.dtype == kind
        right = expected(X, w.astype(np.float32), padding=1)
        assert np.array_equal(
            y, (right + (bias.astype(int)[:, None, None] if biased else 0)).astype(kind)
        )


def test_conv2d_packs_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = W.copy(), W + 1
    right = [expected(X, first), expected(X, second)]
    packed: list[str] = []
    fill = PackedConstants.fill
    monkeypatch.setattr(PackedConstants, "fill", lambda p, w: (packed.append("w"), fill(p, w))[1])
    cache = PlanCache[kept_plans.KeptPlan](2**24, keep_newest=False)
    monkeypatch.setattr(kept_plans, "kept_plans", lambda: cache)
    for _ in range(3):  # two layers of one shape, in turn
        np.testing.assert_array_equal(lc.conv2d(X, first), right[0])
        np.testing.assert_array_equal(lc.conv2d(X, second), right[1])
    assert len(packed) == len(cache) == 2
    second[...] = first
    np.testing.assert_array_equal(lc.conv2d(X, second), right[0])
    assert (len(packed), len(cache)) == (3, 2)


def test_known_arguments_are_still_checked() -> None:
    lc.conv2d(X, W, stride=1, groups=1)
    lc.conv2d(X, W, stride=(1, 1), threads=1, tune=False)
    wrong: tuple[dict[str, Any], ...] = ({"stride": True}, {"groups": 1.0}, {"stride": (1.0, 1)})
    wrong += {"dilation": [1.0, 1]}, {"threads": True}, {"threads": 1.0}, {"threads": [1]}
    for given in (*wrong, {"layout": ["NCHW"]}, {"activation": ["relu"]}):
        with pytest.raises(lc.SpecError):
            lc.conv2d(X, W, **{"threads": 1, **given})
    lc.conv_transpose2d(X, whole((5, 2, 3, 3)), stride=2)
    for steps in (2.0, (2, 2.0), True):
        with pytest.raises(lc.SpecError):
            lc.conv_transpose2d(X, whole((5, 2, 3, 3)), stride=steps)  # type: ignore[arg-type]


def test_arrays_of_known_calls_are_still_checked() -> None:
    bias, added = whole((7,)), whole((2, 7, 7, 9))
    right = lc.conv2d(X, W, bias, residual=added)
    for array in (X, W, bias, added):
        wrong = array.astype(np.float64), array[..., :-1], np.ma.array(array), array.tolist()
        for other in wrong:
            given = [other if each is array else each for each in (X, W, bias, added)]
            with pytest.raises((lc.InputError, lc.SpecError)):
                lc.conv2d(*given[:3], residual=given[3])
    # Other memory of the same numbers is read as it lies.
    for x in (X[::-1][::-1], np.asfortranarray(X), X.view(type("Ours", (np.ndarray,), {}))):
        for w in (W, np.asfortranarray(W)):
            np.testing.assert_array_equal(lc.conv2d(x, w, bias, residual=added), right)


def test_a_known_call_checks_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is convolved; what is given may be spelled in any way."""
    x, w = np.abs(X).astype(np.uint8), W.astype(np.int8)
    calls: list[Callable[[], np.ndarray]] = [
        lambda: lc.conv2d(X, W, padding=(1, 1), activation="relu"),
        lambda: lc.conv2d(X[0], W, whole((7,)), padding=(1, 1)),
        lambda: lc.conv2d(X.astype(float), W.astype(float), residual=np.ones((2, 7, 7, 9))),
        lambda: lc.conv2d(x, w, padding="same"),
        lambda: lc.conv_transpose2d(X, whole((5, 2, 3, 3)), stride=2),
    ]
    right = [call() for call in calls]
    monkeypatch.setattr(api.PlanOptions, "checked", None)
    for call, y in zip(calls, right, strict=True):
        np.testing.assert_array_equal(call(), y)


def test_packing_that_failed_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    w, fill = W.copy(), PackedConstants.fill
    lc.conv2d(X, w)
    w += 1

    def half_way(packed: Any, _constants: Any) -> Any:
        packed.block.view(0, packed.bytes)[...] = 255
        raise MemoryError

    monkeypatch.setattr(PackedConstants, "fill", memory_reported("packing")(half_way))
    with pytest.raises(lc.OutOfMemoryError):
        lc.conv2d(X, w)
    monkeypatch.setattr(PackedConstants, "fill", fill)
    w -= 1  # as they were packed, before it was begun
    np.testing.assert_array_equal(lc.conv2d(X, w), expected(X, w))


def test_results_of_conv2d_are_not_shared() -> None:
    first = lc.conv2d(X, W)
    kept = first.copy()
    lc.conv2d(X + 1, W)
    np.testing.assert_array_equal(first, kept)


def test_cache_of_plans_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # The cache counts 64 KiB for each plan beside its own bytes.
    cache = PlanCache[kept_plans.KeptPlan](4 * 2**16 - 1, keep_newest=False)
    monkeypatch.setattr(kept_plans, "kept_plans", lambda: cache)
    for height in (9, 10, 11, 12, 13, 10, 14):
        x = whole((1, 5, height, 11))
        np.testing.assert_array_equal(lc.conv2d(x, W), expected(x, W))
        assert cache.held_bytes < 4 * 2**16
    # 11 and 12 left, as they were not used for longest; 10 was used again.
    assert [key[0].spec.size[0] for key in cache._plans] == [13, 10, 14]


# -- threads ---------------------------------------------------------------------------------
def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in several Python threads at once; raise what any of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a call did not return"
    if errors:
        raise errors[0]


def test_one_plan_may_be_called_from_many_threads() -> None:
    plan = lc.plan_conv2d((1, 16, 20, 20), whole((32, 16, 3, 3)), padding=1, threads=2)
    inputs = [whole((1, 16, 20, 20), n) for n in range(4)]
    right = [plan(x) for x in inputs]

    def work(number: int) -> None:
        out = Guarded.unwritten(right[number].shape, FLOAT32)
        for _ in range(50):
            out.array[...] = np.nan
            plan(inputs[number], out=out.array)
            np.testing.assert_array_equal(out.array, right[number])
        out.check()

    in_threads(4, work)


def test_conv2d_of_many_threads_does_not_mix_weights() -> None:
    x = whole((1, 8, 12, 12))
    weights = [whole((16, 8, 3, 3), n) for n in range(4)]
    right = [expected(x, w) for w in weights]

    def work(number: int) -> None:
        for _ in range(50):
            y = lc.conv2d(x, weights[number], algorithm="direct")
            np.testing.assert_array_equal(y, right[number])

    in_threads(4, work)


def test_a_call_waits_for_that_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not plan the layer once more."""
    w, planned, seen = W.copy(), list[lc.ConvPlan](), threading.Event()
    right = lc.conv2d(X, w)
    cache, init, run = kept_plans.kept_plans(), lc.ConvPlan.__init__, lc.ConvPlan.__call__
    get, found = cache.get, list[np.ndarray]()
    other = threading.Thread(target=lambda: found.append(lc.conv2d(X, w)))

    def waits(plan: lc.ConvPlan, *arrays: Any) -> np.ndarray:
        if threading.current_thread() is not other:
            other.start()
            assert seen.wait(60)
        return run(plan, *arrays)

    def looked_up(key: object) -> Any:
        kept = get(key)
        if threading.current_thread() is other:
            seen.set()
        return kept

    monkeypatch.setattr(lc.ConvPlan, "__call__", waits)
    monkeypatch.setattr(cache, "get", looked_up)
    monkeypatch.setattr(lc.ConvPlan, "__init__", lambda p, *a: (planned.append(p), init(p, *a))[1])
    np.testing.assert_array_equal(lc.conv2d(X, w), right)
    other.join(60)
    np.testing.assert_array_equal(found[0], right)
    assert not planned


def test_more_threads_than_processors_or_chunks() -> None:
    for threads in (2, 7, 33):
        np.testing.assert_array_equal(lc.conv2d(X, W, threads=threads), expected(X, W))
