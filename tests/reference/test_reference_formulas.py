"""The documents' formulas and tables, reproduced."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

import formulas
from leanconv.reference import im2col, im2win, mec
from leanconv.reference.layers import NAMES, RESNET101, layer
from leanconv.spec import ConvSpec
from support.small_specs import operands, specs

MIB = 2**20
# name: output, GMAC, MiB of input, im2col, MEC = im2win, output; im2col/MEC, im2col/input
TABLE = {
    "cv1": (55, 0.1054, 0.590, 4.189, 1.572, 1.108, 2.67, 7.10),
    "cv2": (56, 0.1093, 0.611, 4.343, 1.628, 1.148, 2.67, 7.11),
    "cv3": (111, 0.1159, 0.590, 6.909, 2.018, 3.008, 3.42, 11.72),
    "cv4": (109, 2.3846, 12.25, 142.131, 41.727, 2.901, 3.41, 11.60),
    "cv5": (20, 0.2458, 0.211, 3.662, 0.879, 0.391, 4.17, 17.36),
    "cv6": (10, 0.1180, 0.141, 0.879, 0.352, 0.195, 2.50, 6.25),
    "cv7": (222, 0.0852, 0.574, 5.076, 1.707, 12.032, 2.97, 8.84),
    "cv8": (110, 0.8921, 3.062, 26.587, 9.023, 5.908, 2.95, 8.68),
    "cv9": (54, 0.1075, 0.766, 6.407, 2.215, 0.712, 2.89, 8.37),
    "cv10": (26, 0.0997, 0.383, 2.971, 1.066, 0.330, 2.79, 7.76),
    "cv11": (12, 0.0849, 0.191, 1.266, 0.492, 0.141, 2.57, 6.61),
    "cv12": (5, 0.0590, 0.096, 0.439, 0.205, 0.049, 2.14, 4.59),
}


def ratio(a: int, b: int) -> float:
    return float(Fraction(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_table_of_layers(name: str) -> None:
    spec = layer(name)
    out, gmac, x, lowered, compact, y, over_mec, over_input = TABLE[name]
    assert spec.output_size == (out, out)
    assert formulas.float_operations(spec) == spec.flops
    assert spec.flops / 2e9 == pytest.approx(gmac, abs=5e-5)
    sizes = [
        formulas.input_elements(spec),
        formulas.im2col_elements(spec),
        formulas.mec_elements(spec),
        formulas.im2win_elements(spec),
    ]
    got = [elements * spec.itemsize / MIB for elements in sizes]
    assert got == pytest.approx([x, lowered, compact, compact], abs=6e-4)
    assert sizes[2] == sizes[3], "equal on square problems"
    assert spec.output_bytes / MIB == pytest.approx(y, abs=6e-4)
    assert spec.input_bytes / MIB == pytest.approx(x, abs=6e-4)
    assert ratio(sizes[1], sizes[2]) == pytest.approx(over_mec, abs=5e-3)
    assert ratio(sizes[1], sizes[0]) == pytest.approx(over_input, abs=5e-3)
    assert formulas.im2col_over_mec(spec) == Fraction(sizes[1], sizes[2])
    assert formulas.im2col_over_im2win(spec) == Fraction(sizes[1], sizes[3])


def test_means_of_the_table() -> None:
    ratios = [float(formulas.im2col_over_mec(layer(name))) for name in NAMES]
    assert min(ratios) == pytest.approx(2.14, abs=5e-3)
    assert max(ratios) == pytest.approx(4.17, abs=5e-3)
    assert np.mean(ratios) == pytest.approx(2.93, abs=5e-3)
    both = [
        sum(f(layer(name)) for name in NAMES)
        for f in (formulas.im2col_elements, formulas.mec_elements)
    ]
    assert ratio(*both) == pytest.approx(3.26, abs=5e-3)
    assert np.mean([1 / r for r in ratios]) == pytest.approx(0.351, abs=5e-4)


def test_sweep_of_figure_4a() -> None:
    """cv1 with s from 1 to 10: the factor of memory over im2col, k_h·o_h / i_h."""
    sweep = [10.52, 5.28, 3.54, 2.67, 2.13, 1.79, 1.50, 1.36, 1.21, 1.07]
    got = [float(formulas.im2col_over_mec(layer("cv1", stride=s))) for s in range(1, 11)]
    assert got == pytest.approx(sweep, abs=5e-3)


def test_weights_of_resnet_101() -> None:
    """MEC's table 3 in MiB: 203.6 for im2col, 64.6 for MEC, 3.15 times less."""

    def total(elements: object) -> float:
        return sum(n * elements(layer(name)) * 4 / MIB for name, n in RESNET101.items())  # type: ignore[operator]

    conv, lean = total(formulas.im2col_elements), total(formulas.mec_elements)
    assert conv == pytest.approx(203.6, abs=0.1)
    assert lean == pytest.approx(64.6, abs=0.1)
    assert conv / lean == pytest.approx(3.15, abs=5e-3)


@pytest.mark.parametrize(
    ("m", "factors"),
    [
        (2, {"cv6": 26, "cv7": 29.5, "cv8": 4.0, "cv9": 2.7, "cv10": 3.4, "cv11": 10, "cv12": 81}),
        (4, {"cv6": 54, "cv7": 16.9, "cv8": 2.4, "cv9": 1.8, "cv10": 3.7, "cv11": 20, "cv12": 178}),
    ],
)
def test_workspace_of_separate_stages_over_mec(m: int, factors: dict[str, float]) -> None:
    for name, factor in factors.items():
        spec = layer(name)
        got = ratio(formulas.winograd_elements(spec, m), formulas.mec_elements(spec))
        assert got == pytest.approx(factor, rel=0.05), name


@settings(deadline=None, max_examples=100)
@given(specs(plain=True))
def test_sizes_are_those_of_the_buffers(spec: ConvSpec) -> None:
    x, *_ = operands(spec, True)
    matrices = [
        im2col.lower(image, spec.kernel, spec.stride, range(spec.output_size[0])) for image in x
    ]
    assert sum(m.size for m in matrices) == formulas.im2col_elements(spec)
    lowered = mec.lower(x.transpose(0, 2, 3, 1), spec.kernel[1], spec.stride[1])
    assert lowered.size == formulas.mec_elements(spec)
    planes, _ = im2win.transform(x, spec.kernel, spec.stride)
    assert planes.size == formulas.im2win_elements(spec)


@settings(deadline=None, max_examples=200)
@given(specs(plain=True))
def test_savings_are_the_differences_where_strides_divide(spec: ConvSpec) -> None:
    (sh, sw), (kh, kw), (ih, iw) = spec.stride, spec.kernel, spec.size
    whole = formulas.im2col_elements(spec)
    if (ih - kh) % sh == 0:
        assert formulas.mec_saving(spec) == whole - formulas.mec_elements(spec)
    if (iw - kw) % sw == 0 and kh > sh:
        assert formulas.im2win_saving(spec) == whole - formulas.im2win_elements(spec)
    # Printed condition: there is something to save if and only if k > s.
    assert (formulas.mec_saving(spec) > 0) == (kh > sh and ih > kh)


def test_padding_counts_as_input() -> None:
    padded = ConvSpec.parse("ic4ih8oc4oh8kh3ph1")
    applied = ConvSpec.parse("ic4ih10oc4oh8kh3ph0")
    for formula in (
        formulas.input_elements,
        formulas.im2col_elements,
        formulas.mec_elements,
        formulas.im2win_elements,
    ):
        assert formula(padded) == formula(applied)
    with pytest.raises(ValueError, match="expected two spatial axes"):
        formulas.mec_elements(ConvSpec.parse("ic4iw8oc4kw3pw1"))


def test_gflops_and_tile_bounds() -> None:
    assert formulas.gflops(layer("cv4", batch=2), 1e9) == pytest.approx(2 * 2 * 2.3846, abs=1e-3)
    # AVX2: 16 registers of 8 lanes, two units of latency 5.
    assert formulas.tile_bounds(16, 8, 2, 5) == (80, 128)
    # AVX-512: 32 registers of 16 lanes, two units of latency 4: 8 to 32 vectors.
    assert formulas.tile_bounds(32, 16, 2, 4) == (8 * 16, 32 * 16)
