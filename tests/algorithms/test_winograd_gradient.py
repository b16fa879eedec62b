"""Winograd's gradient of weights: tiles, blocks, strides, dilations, cut kernels; bytes; errors."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.weight_gradient.winograd_sums import PointSums, WeightSums
from leanconv.errors import SpecError
from leanconv.runtime.calibration import planning_target
from leanconv.spec import NHWC, PLAIN, ConvSpec
from support import gradients

# Remainders of channels and of tiles, padding on one side, groups; a few tiles and many.
CASES = (
    "mb2ic20ih15oc24oh15kh3ph1",
    "g2mb3ic34ih13iw18oc40kh2kw3ph0pw1",
    "mb2ic7ih19iw19oc5kh1kw3",
    "mb2ic9ih21oc17oh10kh3sh2",
    "ic16ih23oc16kh5sh3",
    "mb2ic8ih20oc9oh14kh3dh2",
    "ic5ih24oc6oh14kh11",
    # Few channels: those of all phases of a stride, one way or both, lie side by side.
    "mb2ic3ih29oc18oh14kh7sh2ph2",
    "mb2ic1ih20iw21oc5oh10ow10kh3kw3sh2ph1",
    "ic5ih33oc4oh7kh11sh4",
    "g3mb2ic6ih22iw25oc12oh7ow12kh5kw2sh3sw2ph1pw0",
    "ic3ih21iw30oc7oh21ow8kh3kw3sh1sw4ph1",
    # Phases with a tap less than others, which take no products at the last point.
    "mb2ic33ih23oc17oh12kh3sh2ph1",
    "g2mb2ic36ih30iw32oc8oh10ow10kh5kw6sh3sw4ph2pw5",
)


def _error(spec: ConvSpec, name: str, x_format: object = PLAIN) -> tuple[float, float]:
    """The error of dw against float64, and the one that is stated."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, spec.input_shape).astype(spec.dtype)
    dy = rng.uniform(-1, 1, spec.output_shape).astype(spec.dtype)
    got = gradients.computed(spec, x, dy, name, x_format=x_format, dy_format=x_format)
    exact = gradients.expected(spec, x.astype("f8"), dy.astype("f8"))
    problem = gradients.gradient_problem(spec, x_format, x_format)
    chosen = select.choose(problem, planning_target(), select.gradient_choice_named(name))
    return float(np.abs(got - exact).max() / np.abs(exact).max()), chosen.choice.error


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("given", ["m=2", "m=4x3", "m=3,tiles=16", "tiles=1"])
def test_any_tiles_in_any_blocks(text: str, given: str) -> None:
    spec = ConvSpec.parse(text, layout="NCHW")
    for form in (PLAIN, NHWC):
        error, stated = _error(spec, f"winograd:{given}", form)
        assert 0 < error <= stated


def test_an_error_does_not_grow_with_the_batch() -> None:
    """Sums are of few tiles each, and one transform back ends them all."""
    few, many = (ConvSpec.parse(f"mb{n}ic4ih26oc4oh24kh3", layout="NCHW") for n in (4, 64))
    assert _error(many, "winograd:m=4")[1] < 2 * _error(few, "winograd:m=4")[1]
    for spec in (few, many):
        error, stated = _error(spec, "winograd:m=4")
        assert stated / 12 < error <= stated <= 2e-5


def test_a_block_or_two() -> None:
    """A single block has no M in memory; of several the first writes it and the last reads it."""
    problem = gradients.gradient_problem(ConvSpec.parse("ic32ih34oc32oh32kh3", layout="NCHW"))
    target = planning_target()

    def sums(given: str) -> list[object]:
        choice = select.gradient_choice_named(f"winograd:m=4,tiles={given}")
        made = select.choose(problem, target, choice)
        found = [
            use.kernel for use in made.kernels if isinstance(use.kernel, (PointSums, WeightSums))
        ]
        assert ("M" in made.temporaries) == (len(found) > 1)
        return [(type(kernel), kernel.tiles, kernel.adds) for kernel in found]

    assert sums("64") == [(WeightSums, 64, False)]
    assert sums("24") == [(PointSums, 24, False), (PointSums, 24, True), (WeightSums, 16, True)]


@pytest.mark.parametrize(
    ("text", "products"),
    [
        ("ic32ih23oc16oh12kh3sh2ph1", (5 + 4) ** 2),  # by axis: 2 taps at 5 points, 1 tap at 4
        ("ic32ih23oc16kh4sh2ph1", (5 + 5) ** 2),
        ("ic32ih23oc16kh3ph1", 6**2),
    ],
)
def test_products_of_shorter_phases(text: str, products: int) -> None:
    """Where a phase has a tap less, its products at infinity are left out."""
    problem = gradients.gradient_problem(ConvSpec.parse(text, layout="NCHW"))
    choice = select.gradient_choice_named("winograd:m=4")
    made = select.choose(problem, planning_target(), choice)
    (work,) = {use.kernel.work for use in made.kernels if isinstance(use.kernel, WeightSums)}
    assert work.products == products


def test_lean_choices_need_less_memory() -> None:
    problem = gradients.gradient_problem(ConvSpec.parse("mb4ic64ih58oc64oh56kh3", layout="NCHW"))
    found = [
        (choice.cycles, candidate.workspace_bytes(1))
        for choice, candidate in select.choices(problem, planning_target(), lean=True)
        if choice.algorithm == "winograd"
    ]
    assert found == sorted(found, key=lambda pair: pair[0])
    assert min(size for _, size in found) < 0.7 * found[0][1]


def test_what_is_refused() -> None:
    target = planning_target()
    choice = select.gradient_choice_named("winograd")
    for text, reason in (
        ("ic4ih8oc4oh8kh1", "nothing to save"),
        ("ic4id6ih8oc4od4oh6kd3kh3", "a depth axis"),
    ):
        problem = gradients.gradient_problem(ConvSpec.parse(text, layout="NCHW"))
        assert reason in (select.refusal(choice, problem, target) or "")
    problem = gradients.gradient_problem(ConvSpec.parse("ic4ih30oc4oh28kh3", layout="NCHW"))
    with pytest.raises(SpecError, match="too large"):
        select.choose(problem, target, select.gradient_choice_named("winograd:m=15"))
