"""im2col and MEC as methods of the gradient of weights: bytes, images at a time, forms, errors."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.weight_gradient.lowered_kernel import LoweredProduct
from leanconv.codegen.forms import instance_of
from leanconv.errors import SpecError
from leanconv.reference.layers import NAMES, layer
from leanconv.spec import NHWC, PLAIN, ConvSpec, Format
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support import gradients

pytestmark = pytest.mark.vectors

METHODS = (
    "im2col",
    "im2col:images=batch",
    "im2col:images=2",
    "mec",
    "mec:images=1",
    "mec:images=2",
)
# Rows of padding, several runs of a partition, few channels, long rows, groups, one and three axes.
PROBLEMS = (
    "mb3ic16ih9iw11oc8kh3ph1",
    "mb3ic5ih14oc9kh3sh2dh1ph2",
    "mb3ic3ih17oc16kh5sh2",
    "mb3g2ic16ih8oc16kh3ph1",
    "mb3ic4iw40oc6kw7sw3",
    "mb3ic3id5ih6iw7oc4kd2kh3kw3pd1ph1pw1",
)


def arrays(spec: ConvSpec, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """x and dy of a spec."""
    rng = np.random.default_rng(3)
    made = [
        rng.integers(-3, 4, shape) if whole else rng.uniform(-1, 1, shape)
        for shape in (spec.input_shape, spec.output_shape)
    ]
    return made[0].astype(spec.dtype), made[1].astype(spec.dtype)


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("name", METHODS)
def test_images_at_a_time(name: str, text: str) -> None:
    """All divisions of a batch into images that are lowered together give the sum."""
    spec = ConvSpec.parse(text, dtype=FLOAT32)
    x, dy = arrays(spec, True)
    expected = gradients.expected(spec, x, dy)
    for threads in (1, 3):
        got = gradients.computed(spec, x, dy, name, threads=threads)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("name", ["im2col", "mec"])
def test_errors_are_within_what_is_stated(name: str, dtype: DType) -> None:
    spec = ConvSpec.parse("mb4ic24ih19oc20kh3ph1", dtype=dtype)
    x, dy = arrays(spec, False)
    exact = gradients.expected(spec, x.astype(np.longdouble), dy.astype(np.longdouble))
    got = gradients.computed(spec, x, dy, name)
    problem, choice = gradients.gradient_problem(spec), select.gradient_choice_named(name)
    stated = select.choose(problem, preset("haswell"), choice).choice.error
    assert np.abs(got - exact).max() <= stated * np.abs(exact).max()


@pytest.mark.parametrize("name", METHODS)
def test_bits_do_not_depend_on_threads(name: str) -> None:
    spec = ConvSpec.parse("mb5ic20ih13iw17oc40kh3ph1", dtype=FLOAT32)
    x, dy = arrays(spec, False)
    found = [gradients.computed(spec, x, dy, name, threads=threads) for threads in (1, 2, 5)]
    assert all(np.array_equal(found[0], each) for each in found[1:])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_the_documents(name: str, batch: int) -> None:
    """Equations 2 and 3 of MEC: im2col's matrix and L, of one image or of the batch."""
    target = preset("znver4")
    spec = layer(name, batch=batch)
    (oh, ow), (kh, kw) = spec.output_size, spec.kernel
    matrix = oh * ow * kh * kw * spec.in_channels * spec.itemsize
    lowered = ow * spec.size[0] * kw * spec.in_channels * spec.itemsize
    assert matrix > lowered
    problem = gradients.gradient_problem(spec)
    for method, size in (
        ("im2col", matrix),
        ("im2col:images=batch", batch * matrix),
        ("mec", batch * lowered),
        ("mec:images=1", lowered),
    ):
        found = select.choose(problem, target, select.gradient_choice_named(method))
        assert found.temporaries == {"lowered": size}
        for threads in (1, 4):
            scratch = found.workspace_bytes(threads) - found.shared_bytes
            assert scratch == threads * found.scratch_bytes <= threads * target.l2_bytes


def test_a_limit_of_memory_has_choices() -> None:
    problem = gradients.gradient_problem(layer("cv11", batch=8))
    found = select.choices(problem, preset("znver4"), lean=True)
    texts = [str(choice) for choice, _ in found]
    for text in ("im2col:images=1", "im2col:images=batch", "mec:images=1", "mec:images=batch"):
        assert text in texts
    sizes = {str(c): candidate.workspace_bytes(1) for c, candidate in found}
    assert sizes["mec:images=1"] < sizes["im2col:images=1"] < sizes["mec:images=batch"]
    usual = [choice.algorithm for choice, _ in select.choices(problem, preset("znver4"))]
    assert not {"mec", "im2col"} & set(usual), "only on request, as forward"


@pytest.mark.parametrize("form", [PLAIN, NHWC, Format(8)])
@pytest.mark.parametrize(("name", "height"), [("im2col", 56), ("mec", 40)])
def test_sizes_and_batches_have_one_code(name: str, height: int, form: Format) -> None:
    """Only MEC's columns, which are as far apart as all rows are long, have a code for a height."""
    target, digests = preset("haswell"), []
    for text in ("mb8ic32ih40iw40oc32kh3ph1", f"mb4ic32ih{height}iw48oc32kh3ph1"):
        problem = gradients.gradient_problem(ConvSpec.parse(text, dtype=FLOAT32), form, form)
        found = select.choose(problem, target, select.gradient_choice_named(f"{name}:images=batch"))
        digests.append([instance_of(use.kernel, target).digest for use in found.kernels])
    assert digests[0] == digests[1]


def test_all_flops_are_counted() -> None:
    spec = layer("cv9", batch=3)
    problem = gradients.gradient_problem(spec)
    for name in METHODS:
        choice = select.gradient_choice_named(name)
        kernels = select.choose(problem, preset("haswell"), choice).kernels
        found = sum(u.kernel.flops for u in kernels if isinstance(u.kernel, LoweredProduct))
        assert found == 2 * prod(spec.output_shape) * prod(spec.weight_shape[1:])


def test_refusals_are_those_of_the_forward_methods() -> None:
    spec = ConvSpec.parse("mb1g3ic12ih8oc12kh3", dtype=FLOAT32)
    problem = gradients.gradient_problem(spec, Format(8), Format(8))
    with pytest.raises(SpecError, match="groups of 4 input channels do not fill blocks of 8"):
        select.choose(problem, preset("haswell"), select.gradient_choice_named("mec"))
    problem = gradients.gradient_problem(replace(spec, batch=1025))
    with pytest.raises(SpecError, match="1025 images"):
        select.choose(problem, preset("haswell"), select.gradient_choice_named("im2col"))
