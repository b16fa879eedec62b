"""The main kernel by pointers and by tensor copies, in every tile and arithmetic."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.gpu.device.arrays import Memory
from leanconv.gpu.device.compiler import Module
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue, Lowered, stored, unstored
from leanconv.gpu.lowering.gemm import Product, lower_product
from leanconv.gpu.lowering.patches import (
    TAPS,
    WINDOWS,
    lower_patches,
    patches_reject,
    patchings,
)
from leanconv.gpu.lowering.pointwise import (
    boxes_reject,
    boxings,
    lower_pointwise,
    slices_reject,
    slicings,
)
from leanconv.gpu.lowering.product_tiles import tiles
from leanconv.gpu.lowering.windows import conv_windows
from leanconv.gpu.machine import Arithmetic, machine_of
from leanconv.reference import direct
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, Precision
from support.errors import relative_error
from support.gpu.configurations import KINDS
from support.gpu.stand import Case, Row, Stand

# Of odd extents, padded; and in place with all that alignment allows. Partial tiles in both.
TILED = ("mb2ic24ih13iw11oc200kh3ph1", "mb2ic64ih14iw11oc136kh3")
STRIDED = "mb2ic24ih29iw23oc136kh3sh2"
IN_BOXES = ("mb2ic40ih13iw11oc136kh1", "mb1ic264ih13iw11oc72kh1")
FEW_ROWS = ("mb1ic600ih7oc136kh1", "mb2ic50ih5iw3oc40kh1")


def run_lowered(stand: Stand, lowered: Lowered, spec: ConvSpec, x: np.ndarray) -> np.ndarray:
    """Run launches that read x and write y, both channels last."""
    driver = stand.driver
    driver.enter()
    memory, places = Memory(driver), {}
    for name, array in (*lowered.constants.items(), ("x", stored(x, spec.dtype))):
        places[name] = ctypes.c_uint64(memory.allocate(aligned(array.nbytes)))
        memory.upload(places[name].value, array)
    for name, size in lowered.temporaries.items():
        places[name] = ctypes.c_uint64(memory.allocate(aligned(size)))
    y = memory.array(spec.output_shape, spec.dtype)
    places["y"] = ctypes.c_uint64(y.address)
    module = Module(driver, (each.code for each in lowered.launches), stand.compile_code)
    for launch in lowered.launches:
        module.bind(launch, places)()
    found = y.numpy()
    stand.check_guards()
    return found


def tile(stand: Stand, spec: ConvSpec, make: Callable[[np.ndarray], Lowered]) -> Row:
    """One tile in one arithmetic, against float64 on the same rounded numbers."""
    random = np.random.default_rng(0)
    kept = FLOAT32 if spec.dtype == BFLOAT16 else spec.dtype

    def rounded(shape: Sequence[int]) -> np.ndarray:
        made = random.standard_normal(shape).astype(kept)
        return unstored(stored(made, spec.dtype), spec.dtype)

    x, w = rounded(spec.input_shape), rounded(spec.weight_shape)
    lowered = make(w)
    found = run_lowered(stand, lowered, spec, x)
    expected = direct.convolve(
        replace(spec, precision=Precision.of("float64")), x.astype(np.float64), w.astype(np.float64)
    )
    half = {FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}.get(spec.dtype, 0.0)
    return {
        "error": relative_error(found.astype(np.float64), expected),
        "allowed": 8 * max(lowered.error, half),
        "predicted": lowered.error,
        "arithmetic": lowered.arithmetic,
    }


def tile_cases(stand: Stand) -> Iterator[Case]:
    """The main kernel by pointers and by tensor copies, in every tile and arithmetic."""
    driver = stand.driver
    machine = machine_of(driver)
    for arithmetic, dtype in KINDS:
        for problem in TILED:
            spec = ConvSpec.parse(problem, dtype=dtype, layout="NHWC")
            windows = conv_windows(spec, 32)
            product = Product(windows, spec.out_channels, dtype, "x", "y", Epilogue(), "c")
            for each in tiles(arithmetic, dtype, driver.arch):

                def pointers(w: np.ndarray, a: Any = arithmetic, p: Any = product, t: Any = each):
                    shape = (p.columns, p.windows.segments, p.windows.length)
                    segments = np.moveaxis(w, 1, -1).reshape(shape)
                    return lower_product(p, segments, (a,), machine, "direct", t)

                yield (
                    f"{arithmetic.name} {dtype} {each} {problem}",
                    lambda s=spec, m=pointers: tile(stand, s, m),
                )
            yield from _patch_tiles(stand, spec, arithmetic)
        yield from _patch_tiles(stand, ConvSpec.parse(STRIDED, dtype=dtype), arithmetic)
        for problem in IN_BOXES:
            yield from _boxes(stand, ConvSpec.parse(problem, dtype=dtype), arithmetic)
        for problem in FEW_ROWS:
            yield from _slices(stand, ConvSpec.parse(problem, dtype=dtype), arithmetic)


def _patch_tiles(stand: Stand, spec: ConvSpec, arithmetic: Arithmetic) -> Iterator[Case]:
    """Every way to cut a convolution for tensor copies, in both forms of its input."""
    machine, spec = machine_of(stand.driver), replace(spec, layout="NHWC")
    conv = ConvProblem(spec, spec.dtype, (arithmetic,), "x", "y", Epilogue(), "c")
    for form in (TAPS, WINDOWS):
        if patches_reject(conv, machine, form) is None:
            for cut in patchings(conv, machine, True, form):
                yield (
                    f"{arithmetic.name} {spec.dtype} {cut} {spec}",
                    lambda c=cut: tile(stand, spec, lambda w: lower_patches(conv, w, c)),
                )


def _boxes(stand: Stand, spec: ConvSpec, arithmetic: Arithmetic) -> Iterator[Case]:
    """Every tile of products whose operands are both copied in boxes."""
    machine, spec = machine_of(stand.driver), replace(spec, layout="NHWC")
    conv = ConvProblem(spec, spec.dtype, (arithmetic,), "x", "y", Epilogue(), "c")
    if boxes_reject(conv, machine) is None:
        for each in boxings(conv, machine):
            yield (
                f"{arithmetic.name} {spec.dtype} {each} {spec}",
                lambda e=each: tile(stand, spec, lambda w: lower_pointwise(conv, w, e)),
            )


def _slices(stand: Stand, spec: ConvSpec, arithmetic: Arithmetic) -> Iterator[Case]:
    """Every tile whose warps share k."""
    machine, spec = machine_of(stand.driver), replace(spec, layout="NHWC")
    conv = ConvProblem(spec, spec.dtype, (arithmetic,), "x", "y", Epilogue(), "c")
    if slices_reject(conv) is None:
        for each in slicings(conv, machine, True):
            yield (
                f"{arithmetic.name} {spec.dtype} {each} {spec}",
                lambda e=each: tile(stand, spec, lambda w: lower_pointwise(conv, w, e)),
            )


def sampled_tiles(stand: Stand) -> Iterator[Case]:
    """A few of `tile_cases`: that these run at all."""
    return (case for number, case in enumerate(tile_cases(stand)) if number % 43 == 0)
