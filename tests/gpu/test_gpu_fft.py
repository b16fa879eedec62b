"""Convolution through transforms: one function, on NumPy and, where it is installed, on torch."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import leanconv
from leanconv.errors import BudgetError, InputError, MissingExtraError, SpecError
from leanconv.gpu import backend, fft
from leanconv.gpu.device.driver import Driver
from leanconv.reference import direct
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.activation import KINDS
from leanconv.spec.arguments import ConvArguments
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, Precision
from support.gpu.fake_cuda import FakeCuda

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


class NumpyFft:
    """NumPy in the place of `TorchFft`; counts the bytes of what is alive."""

    def given(self, array: Any) -> Any:
        return array

    def returned(self, array: Any, like: Any) -> Any:
        return np.ascontiguousarray(array)

    def forward(self, array: Any, size: tuple[int, ...]) -> Any:
        made = np.fft.rfftn(array, size, tuple(range(1, 1 + len(size))))
        return made.astype(np.result_type(array.dtype, np.complex64))

    def backward(self, array: Any, size: tuple[int, ...]) -> Any:
        made = np.fft.irfftn(array, size, tuple(range(1, 1 + len(size))))
        return made.astype(np.float32 if array.dtype == np.complex64 else np.float64)

    def multiply(self, a: Any, b: Any) -> Any:
        return np.matmul(a, b)

    def pad(self, array: Any, begin: tuple[int, ...]) -> Any:
        return np.pad(array, [(0, 0), *((each, 0) for each in begin), (0, 0)])

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        return array.transpose(axes)

    def activate(self, array: Any, activation: Activation, slope: Any) -> Any:
        assert activation.kind == "clip"
        return np.clip(array, *activation.parameters)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source


LIBRARIES = (
    pytest.param(NumpyFft, id="numpy"),
    pytest.param(lambda: fft.TorchFft("cpu"), id="torch", marks=needs_torch),
)
PROBLEMS = (
    ("mb2ic5ih9iw11oc6kh3kw2ph1pw0", "NCHW", FLOAT32),
    ("g2mb2ic6ih13iw10oc4kh5kw3sh2sw3ph2pw1dh0dw1", "NHWC", FLOAT32),
    ("mb1ic3iw30oc4kw5pw2", "NCHW", FLOAT32),
    ("mb2ic2id4ih5iw6oc3kd3kh2kw3pd1ph0pw1sd1sh2sw1", "NHWC", FLOAT32),
    ("g4mb1ic4ih8oc4kh7ph3", "NHWC", FLOAT64),
)


def case(spec: ConvSpec) -> dict[str, Any]:
    """Arrays of a spec, in its dtype."""
    random = np.random.default_rng(0)
    shapes = {"x": spec.input_shape, "w": spec.weight_shape, "bias": (spec.out_channels,)}
    shapes |= {"residual": spec.output_shape} if spec.residual else {}
    if spec.activation and spec.activation.kind == "prelu":
        shapes["slope"] = (spec.out_channels,)
    return {k: random.standard_normal(shape).astype(spec.dtype) for k, shape in shapes.items()}


def plan_of(spec: ConvSpec, given: dict[str, Any], library: Any, **limits: Any) -> fft.FftConvPlan:
    held = {"memory_limit": None, "max_error": None, "precision": None, **limits}
    return fft.FftConvPlan(
        spec, given["w"], given["bias"], given.get("slope"), library=library, **held
    )


def check(spec: ConvSpec, library: Any) -> None:
    given = case(spec)
    plan = plan_of(spec, given, library)
    wide = {k: v.astype(np.float64) for k, v in given.items()}
    expected = direct.convolve(replace(spec, precision=Precision.of("float64")), **wide)
    out = np.full(spec.output_shape, np.nan, spec.dtype)
    for target in (None, out):
        found = plan(given["x"], out=target, residual=given.get("residual"))
        assert (found.dtype, found.shape) == (np.dtype(spec.dtype), spec.output_shape)
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error <= plan.predicted_error
    assert np.isfinite(out).all()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("problem", "layout", "dtype"), PROBLEMS)
def test_transforms_convolve(problem: str, layout: str, dtype: str, library: Any) -> None:
    act = Activation("clip", (-1.0, 2.0))
    spec = ConvSpec.parse(
        problem, layout=layout, dtype=dtype, bias=True, residual=True, activation=act
    )
    check(spec, library())


@needs_torch
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_activation_of_torch(kind: str) -> None:
    check(
        ConvSpec.parse("mb1ic3ih6oc4kh3", bias=True, activation=Activation(kind)),
        fft.TorchFft("cpu"),
    )


def test_workspace_is_the_largest_set_of_tensors_alive() -> None:
    spec = ConvSpec.parse("mb2ic3ih9oc5kh3ph1", layout="NHWC", bias=True)
    sizes: dict[str, int] = {}

    class Counting(NumpyFft):
        def forward(self, array: Any, size: tuple[int, ...]) -> Any:
            made = super().forward(array, size)
            sizes["forward"] = array.nbytes + made.nbytes
            sizes["spectrum"] = made.nbytes
            return made

        def multiply(self, a: Any, b: Any) -> Any:
            made = super().multiply(a, b)
            sizes["multiply"] = sizes["spectrum"] + made.nbytes
            sizes["product"] = made.nbytes
            return made

        def backward(self, array: Any, size: tuple[int, ...]) -> Any:
            made = super().backward(array, size)
            sizes["backward"] = sizes["product"] + made.nbytes
            return made

    given = case(spec)
    plan = plan_of(spec, given, Counting())
    plan(given["x"])
    steps = ("forward", "multiply", "backward")
    assert plan.workspace_bytes == max(sizes[step] for step in steps)
    spectra = plan._spectra.nbytes
    assert plan.weight_bytes == spectra + given["bias"].nbytes


def test_what_does_not_fit_is_refused() -> None:
    spec = ConvSpec.parse("mb1ic3ih6oc4kh3", bias=True)
    given = case(spec)
    with pytest.raises(SpecError, match="dtype is float16; expected float32 or float64"):
        plan_of(replace(spec, precision=Precision.of(FLOAT16)), given, NumpyFft())
    with pytest.raises(SpecError, match="precision is 'tf32'; expected 'ieee'"):
        plan_of(spec, given, NumpyFft(), precision="tf32")
    with pytest.raises(BudgetError, match="bytes by fft, the limit is 10"):
        plan_of(spec, given, NumpyFft(), memory_limit=10)
    with pytest.raises(BudgetError, match="fft is expected to err by"):
        plan_of(spec, given, NumpyFft(), max_error=1e-9)
    plan = plan_of(spec, given, NumpyFft())
    assert "fft through torch in ieee arithmetic" in plan.explain()
    with pytest.raises(InputError, match=r"x is float32\[1x3x6\]; expected float32"):
        plan(given["x"][..., 0])
    with pytest.raises(InputError, match="residual is given; expected None"):
        plan(given["x"], residual=given["x"])


def test_without_torch_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(fft, "import_module", missing)
    fake = FakeCuda()
    driver = Driver(fake)
    monkeypatch.setattr(backend, "device_driver", lambda device: driver)
    x, w = np.zeros((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    limits = ("fft", None, None)
    with pytest.raises(MissingExtraError, match="algorithm='fft' on a GPU needs torch"):
        backend.convolve(
            x, None, (w, None, None), ConvArguments(), limits, device="cuda", precision=None
        )


def test_the_public_edge_takes_the_plan_by_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(FakeCuda())
    monkeypatch.setattr(backend, "device_driver", lambda device: driver)
    monkeypatch.setattr(backend, "TorchFft", lambda device: NumpyFft())
    w = np.ones((4, 3, 3, 3), np.float32)
    limits = ("fft", None, None)
    plan = backend.plan_conv(
        "cuda", None, (1, 3, 8, 8), (w, None, None), ConvArguments(), False, limits
    )
    assert plan.algorithm == "fft"
    found = plan(np.ones((1, 3, 8, 8), np.float32))
    assert np.abs(found - 27.0).max() < 1e-4


def test_a_limit_is_kept_though_a_plan_without_it_is_kept_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(FakeCuda())
    monkeypatch.setattr(backend, "device_driver", lambda device: driver)
    monkeypatch.setattr(backend, "TorchFft", lambda device: NumpyFft())
    x, w = np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    found = leanconv.conv2d(x, w, device="cuda", algorithm="fft")
    assert np.abs(found - 27.0).max() < 1e-4
    for limit in ({"memory_limit": 1}, {"max_error": 1e-12}):
        with pytest.raises(BudgetError):
            leanconv.conv2d(x, w, device="cuda", algorithm="fft", **limit)
