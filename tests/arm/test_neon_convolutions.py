"""NEON code of every algorithm, run: exact on whole numbers, within what is stated on others.

On an AArch64 machine it runs as it is, elsewhere in an emulator, instruction by instruction.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.problem import Problem as Lowering
from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.codegen.machine_code import compile_text
from leanconv.spec import Activation, ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, Precision
from support import kernel_runner
from support.emulated import LoadedObject
from support.integer_conv import S8S8, S16, U8S8, U8U8, check, operands
from support.kernel_runner import run_kernel
from support.nodes import from_memory, to_memory
from support.packing import packed_constants
from support.problems import Problem

NEON = preset("neoverse-n1")
DENSE = (
    "mb2ic5ih9iw11oc13kh3ph1",
    "ic9ih8iw13oc21kh1",
    "g2ic6ih9oc10kh3sh2ph1",
)
SUMS = [
    *((name, text) for name in ("naive", "direct", "planar", "im2col", "mec") for text in DENSE),
    *(("im2win", text) for text in DENSE[:2]),
    *((f"mec:solution={name}", DENSE[0]) for name in "AB"),
    *(("im2col:lanes=pixels", text) for text in DENSE),
    *((f"im2win:form={name}", DENSE[0]) for name in ("base", "vector")),
    ("direct", "ic3ih17oc24kh3sh2ph1"),
    ("direct", "ic7ih9oc9kh3dh1ph2"),
    ("direct", "ic300ih3oc5kh1"),  # partial sums
    ("depthwise", "g19ic19ih9iw14oc19kh3ph1"),
    ("depthwise", "g8ic8ih11oc8kh5sh2ph2"),
    ("planar", "g5ic5ih9iw21oc5kh3ph1"),
]
TRANSFORMS = [
    ("winograd:m=2", "ic16ih10oc16kh3"),
    ("winograd:m=4", "ic16ih14oc16kh3"),
    ("winograd:form=stages,m=4", "ic16ih14oc16kh3"),
    ("winograd:m=4", "ic20ih15oc24oh8kh3sh2ph1"),
    ("fft:tile=16", "ic5ih20iw18oc6kh3ph1"),
    ("fft:tile=16,products=3", "ic3ih20iw18oc4kh5"),
]


def chosen(problem: Problem, selector: str, form: Format, target: Target = NEON) -> Candidate:
    """How an algorithm computes a problem whose tensors are in one format."""
    spec = problem.spec
    accesses = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    return choose(Lowering.of(spec, *accesses), target, choice_named(selector))


def run(problem: Problem, selector: str, whole: bool, blocked: bool) -> tuple[np.ndarray, float]:
    """The result of NEON code on arrays between guards, and the error that is stated for it."""
    spec, arrays = problem.spec, problem.arrays(whole)
    form = Format(NEON.lanes(spec.dtype) if blocked else 0)
    candidate = chosen(problem, selector, form)
    channels = {"bias": arrays.bias, "slope": arrays.slope}
    given = {name: array for name, array in channels.items() if array is not None}
    values = {
        "x": to_memory(arrays.x, form),
        **packed_constants(candidate, arrays.w, given),
        "y": np.full(form.elements(spec.output_shape), np.nan, spec.dtype),
    }
    if arrays.residual is not None:
        values["residual"] = to_memory(arrays.residual, form)
    item = np.dtype(spec.dtype).itemsize
    for role, size in candidate.temporaries.items():
        values[role] = np.full(size // item, np.nan, spec.dtype)
    for use in candidate.kernels:
        operands = [values[role] for role in use.roles]
        parts = sorted({use.kernel.chunks // 3, use.kernel.chunks // 2})
        values[use.roles[-1]] = run_kernel(use.kernel, *operands, target=NEON, parts=parts)
    return from_memory(values["y"], spec.output_shape, form), candidate.choice.error


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(("selector", "text"), SUMS, ids=lambda value: value)
def test_sums_of_whole_numbers_are_exact(selector: str, text: str, dtype: str) -> None:
    epilogue = {"bias": True, "activation": Activation.parse("relu6")}
    residual = selector != "mec:solution=A"  # which refuses it
    problem = Problem(ConvSpec.parse(text, dtype=dtype, residual=residual, **epilogue), 3)
    expected = problem.expected(problem.arrays(True), True)
    blocked = {"depthwise": (True,), "direct": (False, True)}.get(selector, (False,))
    for each in blocked if "g2" not in text else (False,):
        found, _ = run(problem, selector, True, each)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(("selector", "text"), TRANSFORMS, ids=lambda value: value)
def test_transforms_err_no_more_than_they_state(selector: str, text: str, dtype: str) -> None:
    problem = Problem(ConvSpec.parse(text, dtype=dtype, bias=True), 4)
    found, stated = run(problem, selector, False, selector.startswith("winograd"))
    exact = problem.expected(problem.arrays(False), False)
    error = np.abs(found - exact).max() / np.abs(exact).max()
    assert stated / 200 < error <= stated  # the bound is not loose either


@pytest.mark.parametrize("activation", ["sigmoid", "hard_swish", "gelu", "tanh"])
def test_activations_are_close_to_float64(activation: str) -> None:
    problem = Problem(
        ConvSpec.parse("ic8ih5iw9oc8kh1", bias=True, activation=Activation.parse(activation)), 5
    )
    found, _ = run(problem, "direct", False, False)
    exact = problem.expected(problem.arrays(False), False)
    assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max()


def test_a_wrong_instruction_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every FMLA becomes an FMLS, which subtracts the product."""
    if host().isa == "neon":
        pytest.skip("here code is not emulated, but run")

    def spoiled(text: str, target: Target) -> LoadedObject:
        body = np.frombuffer(compile_text(text, target), np.uint8).copy()
        words = body[: body.size // 4 * 4].view(np.uint32)
        words[(words & 0xFFA0FC00) == 0x4E20CC00] |= 1 << 23  # of vectors
        words[(words & 0xFF00F400) == 0x4F001000] |= 1 << 14  # by one element
        return LoadedObject(body.tobytes())

    monkeypatch.setattr(kernel_runner, "_loaded_object", spoiled)
    problem = Problem(ConvSpec.parse(DENSE[0]), 3)
    found, _ = run(problem, "direct", True, False)
    assert np.array_equal(found, -problem.expected(problem.arrays(True), True))


@pytest.mark.parametrize("extensions", [(), ("dotprod",)], ids=str)
@pytest.mark.parametrize("precision", [U8S8, S8S8, U8U8, S16], ids=str)
@pytest.mark.parametrize(
    "text",
    ["ic3ih5iw7oc5oh5ow7kh3ph1pw1", "ic17ih4iw5oc9oh4ow5kh1", "mb2ic6ih7iw9oc8oh4ow5kh3sh2ph1pw1"],
)
def test_integers_are_convolved_exactly(
    text: str, precision: Precision, extensions: tuple[str, ...]
) -> None:
    spec = ConvSpec.parse(text, precision=precision, bias=True)
    check(spec, replace(NEON, extensions=extensions), *operands(spec))


@pytest.mark.parametrize("precision", [U8S8, S8S8, U8U8], ids=str)
def test_dot_products_of_extreme_bytes_are_exact(precision: Precision) -> None:
    spec = ConvSpec.parse("ic16ih3iw5oc8oh3ow5kh1", precision=precision, bias=True)
    given, weights = precision.x, precision.w
    for number in (given.low, given.high):
        for weight in (weights.low, weights.high):
            x, w = np.full(spec.input_shape, number, given), np.full(spec.weight_shape, weight)
            check(spec, NEON, x, w.astype(weights), np.zeros(spec.out_channels, np.int32))
