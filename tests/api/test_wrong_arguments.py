"""Arguments of the wrong kind end as errors of leanconv that say what was got and expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from examples.networks import squeezenet_like
from leanconv.spec import Activation
from leanconv.types import FLOAT64

X = np.ones((1, 8, 10, 12), "f4")
W = np.ones((16, 8, 3, 3), "f4")


def plan(*arguments: Any, **options: Any) -> Any:
    return lc.plan_conv2d(*arguments, **options)


CONVOLUTIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: plan(X, W), "x is ndarray; expected integers"),
    (lambda: plan((None, 8, 10, 12), W), "expected integers, such as x.shape"),
    (lambda: plan((1.0, 8, 10, 12), W), "expected integers"),
    (lambda: plan("abcd", W), "x is 'abcd'; expected integers"),
    (lambda: plan(X.shape, W, algorithm=5), "algorithm is 5; expected text"),
    (lambda: plan(X.shape, W, max_error="1e-4"), "max_error is '1e-4'; expected a positive"),
    (lambda: plan(X.shape, W, max_error=0), "max_error is 0; expected a positive"),
    (lambda: plan(X.shape, W, max_error=float("nan")), "max_error is nan; expected a positive"),
    (lambda: plan(X.shape, W, threads="2"), "threads is '2'; expected an integer from 1"),
    (lambda: lc.conv2d(X, W, threads=[2]), r"threads is \[2\]; expected an integer from 1"),
    (lambda: plan(X.shape, W, threads=np.ones(2, int)), "expected an integer from 1"),
    (lambda: plan(X.shape, W, threads=10_000), "threads is 10000; expected an integer from 1"),
    (lambda: plan(X.shape, W, groups=0), "groups is 0; expected an integer of at least 1"),
    (lambda: plan(X.shape, W, layout="NHWC"), "the last axis of x is the channels"),
    (lambda: plan(X.shape, W, stride=True), "stride is True; expected 2 integer"),
    (lambda: plan(X.shape, W, activation="clip:1:0"), "expected a lower bound, then an upper"),
    (lambda: plan(X.shape, W, activation="clip:nan:0"), "'clip:nan:0'.*expected numbers"),
    (lambda: plan((1, 8, 10**6, 10**6), W), "too large"),
    (lambda: plan(X.shape, W, max_error=1e-12), "give max_error=.* or more, or float64"),
    (lambda: lc.conv2d(X.astype("f2"), W), r"give x.astype\('float32'\)"),
    (lambda: lc.conv2d([[1.0]], W.astype("f8")), r"give np.asarray\(x, 'float64'\)"),
    (lambda: lc.conv_transpose2d([[1.0]], W.astype("f8")), r"np.asarray\(x, 'float64'\)"),
    (lambda: lc.conv2d(X * 1j, W), "convolve x.real and x.imag apart"),
    (lambda: lc.conv2d(X, W * 1j), "convolve w.real and w.imag apart"),
    (lambda: lc.conv2d(X[0, 0], W[:, 0]), r"two axes give x\[None\] and w\[:, None\]"),
    (lambda: lc.conv2d(np.ma.masked_array(X), W), "masked"),
    (lambda: plan(X.shape, W, memory_limit="9" * 5000), "'999.* is not a number of bytes"),
    (lambda: plan(X.shape, W, memory_limit="9" * 400 + ".0 GB"), "is not a number of bytes"),
    (lambda: plan(X.shape, W, memory_limit=10**400), "1000.* is not a number of bytes"),
    (lambda: plan(X.shape, W, max_error=-(10**5000)), "max_error is an endless number"),
    (lambda: plan(X.shape, W, threads=10**5000), "threads is an endless number"),
    (lambda: plan(X.shape, W, residual=X), "residual is ndarray; expected True or False"),
    (lambda: plan(X.shape, W, tune="no"), "tune is 'no'; expected True or False"),
    (lambda: plan(X.shape, W, reproducible=[1]), "reproducible is .1.; expected True or False"),
    (lambda: plan({1, 8, 10, 12}, W), "the shape of x is .*; expected integers"),
    (lambda: plan(X.shape, W, stride={1, 2}), "stride is .*; expected 2 integer"),
    (lambda: plan(X.shape, W, stride=b"\1\1"), "stride is .*; expected 2 integer"),
    (lambda: plan(X.shape, W, layout=np.array(["NCHW", "NHWC"])), "layout is array"),
    (lambda: lc.conv2d(X, W, algorithm=["direct"]), "algorithm is .'direct'.; expected text"),
    (lambda: plan(X.shape, W, algorithm="winograd:m=" + "9" * 5000), "algorithm is 'winograd"),
    (lambda: Activation("clip", ("a",)), "clip got .*; expected numbers"),  # type: ignore[arg-type]
    (lambda: Activation(["relu"]), "activation .'relu'. is not known"),  # type: ignore[arg-type]
    (lambda: plan(X.shape, W, padding=np.ones(2)), "padding is array.*expected one integer"),
    (lambda: plan(X.shape, W, activation=Activation("clip", (6.0, 0.0))), "a lower bound, then"),
    (lambda: plan(X.shape, W, activation=Activation("clip", (np.nan,))), "NaN as a parameter"),
]


@pytest.mark.parametrize(("call", "what"), CONVOLUTIONS, ids=[what for _, what in CONVOLUTIONS])
def test_a_convolution_with_wrong_arguments(call: Callable[[], Any], what: str) -> None:
    with pytest.raises(lc.LeanConvError, match=what):
        call()


def test_integers_and_flags_of_numpy_are_taken() -> None:
    same = plan(
        X.shape,
        W,
        padding=np.array([1, 1]),
        groups=np.int64(1),
        memory_limit=np.int64(10**9),
        max_error=10**400,
        residual=np.False_,
    )
    assert same.spec == plan(X.shape, W, padding=1).spec
    assert type(same.spec.groups) is int


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "plan_conv", "plan_conv_transpose"])
def test_functions_of_one_and_three_axes_are_those_of_two(name: str) -> None:
    assert getattr(lc, f"{name}1d") is getattr(lc, f"{name}3d") is getattr(lc, f"{name}2d")
    assert f"{name}3d" in dir(lc)


MODEL = squeezenet_like(batch=1, image=32).SerializeToString()
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"max_error": "1e-4"}, "max_error is '1e-4'; expected a positive number"),
    ({"threads": "2"}, "threads is '2'; expected an integer"),
    ({"threads": True}, "threads is True; expected an integer"),
    ({"algorithms": "mec"}, "algorithms is 'mec'; expected texts by the names"),
    ({"algorithms": {"conv": 5}}, "expected texts by the names"),
    ({"plan": 5}, "plan is 5; expected"),
    ({"algorithms": {"Conv_0": "winograd:m=" + "9" * 5000}}, "algorithm is 'winograd:m=99"),
    ({"dtype": np.int8}, "dtype is .*; expected float32 or float64"),
    ({"tune": "no"}, "tune is 'no'; expected True or False"),
]


@pytest.mark.parametrize(("options", "what"), OPTIONS, ids=[what for _, what in OPTIONS])
def test_a_network_with_wrong_options(options: dict[str, Any], what: str) -> None:
    with pytest.raises(lc.LeanConvError, match=what):
        lc.load(MODEL, **options)


@pytest.mark.parametrize("shape", ["1,3,32,32", 3, (None, 3, 32, 32), (1.0, 3, 32, 32)])
def test_shapes_to_bind_that_are_none(shape: Any) -> None:
    with pytest.raises(lc.InputError, match="expected integers such as"):
        lc.load(MODEL).bind(shape)


@pytest.mark.parametrize("extents", [(1, 3, 32, 32), (np.int64(1), 3), (1, 3, 32)])
def test_a_shape_given_as_numbers(extents: tuple[Any, ...]) -> None:
    listed = ", ".join(map(str, extents))
    what = f"got {listed}; give the shape as one tuple: net.bind(({listed}))"
    with pytest.raises(lc.InputError, match=re.escape(what)):
        lc.load(MODEL).bind(*extents)


def test_inputs_that_are_no_dictionary() -> None:
    net = lc.load(MODEL)
    with pytest.raises(lc.InputError, match=r"expected a dictionary with .*; call net\(x\)"):
        net.run(np.ones((1, 3, 32, 32), "f4"))  # type: ignore[arg-type]


def test_any_error_and_a_dtype_of_numpy_are_taken() -> None:
    net = lc.load(MODEL, max_error=float("inf"), dtype=np.dtype("float64"))  # type: ignore[arg-type]
    assert net.inputs[0].dtype == FLOAT64


def test_names_and_numbers_that_are_none() -> None:
    net, x = lc.load(MODEL), np.ones((1, 3, 32, 32), "f4")
    with pytest.raises(lc.InputError, match="got inputs"):
        net.run({1: x, net.inputs[0].name: x})  # type: ignore[dict-item]
    with pytest.raises(lc.SpecError, match="repeats is 'many'; expected an integer"):
        net.profile(x, repeats="many")  # type: ignore[arg-type]


def test_a_plan_that_cannot_be_written(tmp_path: Path) -> None:
    net = lc.load(MODEL)
    with pytest.raises(lc.InputError, match="cannot be written"):
        net.plan.save(tmp_path / "nowhere" / "plan.json")


def test_a_plan_of_another_network_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lc.load(MODEL).plan.save(tmp_path / "plan.json")
    other = squeezenet_like(batch=1, image=48).SerializeToString()
    lc.load(other, plan=tmp_path / "plan.json")
    assert "plan.json' does not fit: it was made for inputs" in caplog.text


def test_what_a_newcomer_looks_for_is_listed() -> None:
    assert set(lc.__all__) <= set(dir(lc))
    plan = lc.plan_conv2d(X.shape, W)
    assert plan.algorithm in repr(plan)
    assert "Network" in repr(lc.load(MODEL))
