"""Every configuration of a kernel that a plan can choose, as codes to compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from leanconv.gpu.launch import Code
from leanconv.gpu.lowering.conv import choose_algorithm
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue
from leanconv.gpu.lowering.depthwise import fused_tiles, lower_fused
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
from leanconv.gpu.lowering.product_tiles import Tile, tiles
from leanconv.gpu.lowering.unfold_methods import Im2winForm
from leanconv.gpu.lowering.windows import conv_windows
from leanconv.gpu.machine import (
    BRAIN,
    DOUBLE,
    FP16X3,
    HALF,
    IEEE,
    PRESETS,
    TF32,
    TF32X3,
    Arithmetic,
    Machine,
)
from leanconv.spec import Activation, ConvSpec
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Precision

RELU6 = Activation("clip", (0.0, 6.0))
KINDS: tuple[tuple[Arithmetic, str], ...] = (
    (IEEE, FLOAT32),
    (TF32, FLOAT32),
    (TF32X3, FLOAT32),
    (FP16X3, FLOAT32),
    (HALF, FLOAT16),
    (BRAIN, BFLOAT16),
    (DOUBLE, FLOAT64),
)
MACHINES = {80: PRESETS["a100"], 90: PRESETS["h200"]}
EPILOGUE = Epilogue("bias", "residual", "", RELU6)
# Padded, so that every load is checked; and in place, with all that alignment allows.
CHECKED = ConvSpec.parse("mb32ic24ih28oc192oh28kh3ph1")
ALIGNED = ConvSpec.parse("mb32ic256ih30oc256oh28kh3")
STRIDED = ConvSpec.parse("mb32ic24ih29oc192oh14kh3sh2")  # for tensor copies of its windows


def product_codes(
    spec: ConvSpec, arithmetic: Arithmetic, dtype: str, machine: Machine, tile: Tile
) -> list[Code]:
    """The main kernel's codes for one tile."""
    windows = conv_windows(spec, 32)
    product = Product(windows, spec.out_channels, dtype, "x", "y", EPILOGUE, "c")
    segments = np.ones((spec.out_channels, windows.segments, windows.length), np.float32)
    done = lower_product(product, segments, (arithmetic,), machine, "direct", tile)
    return [launch.code for launch in done.launches]


def gemm_codes(arch: int) -> Iterator[tuple[str, Code]]:
    """The main kernel in every tile and arithmetic, checked and aligned."""
    machine = MACHINES[arch]
    for arithmetic, dtype in KINDS:
        for tile in tiles(arithmetic, dtype, arch):
            for name, spec in (("checked", CHECKED), ("aligned", ALIGNED)):
                if arithmetic is BRAIN and (name, tile) != ("aligned", _largest(dtype, arch)):
                    continue  # differs from float16 in the type of the products alone
                if arithmetic is TF32X3 and name == "checked":
                    continue  # the same code makes flagged tiles of fp16x3 again, in these tiles
                for code in product_codes(spec, arithmetic, dtype, machine, tile):
                    yield f"{name} {arithmetic.name} {dtype} {tile}", code
    volume = ConvSpec.parse("mb8ic64id9ih30oc64od9oh30kd3kh3")
    for code in product_codes(volume, FP16X3, FLOAT32, machine, tiles(FP16X3, FLOAT32, 80)[0]):
        yield "volume fp16x3 float32", code
    forms = (Im2winForm(), Im2winForm(micro=False), Im2winForm(prefetch=False))
    for tile in dict.fromkeys(form.tile(arch) for form in forms):
        for code in product_codes(ALIGNED, IEEE, FLOAT32, machine, tile):
            yield f"aligned ieee float32 {tile}", code


def _largest(dtype: str, arch: int) -> Tile:
    return tiles(BRAIN, dtype, arch)[0]


def patch_codes(arch: int) -> Iterator[tuple[str, Code]]:
    """Implicit GEMM by tensor copies in both forms, in every tile."""
    machine = MACHINES[arch]
    for arithmetic, dtype in KINDS:
        for form, problem in ((TAPS, CHECKED), (WINDOWS, STRIDED)):
            spec = replace(problem, precision=Precision.of(dtype), layout="NHWC", activation=RELU6)
            conv = ConvProblem(spec, dtype, (arithmetic,), "x", "y", EPILOGUE, "c")
            if patches_reject(conv, machine, form):
                continue
            for number, cut in enumerate(patchings(conv, machine, True, form)):
                if not (arithmetic is BRAIN and number):
                    for launch in lower_patches(conv, np.ones(spec.weight_shape), cut).launches:
                        yield f"{arithmetic.name} {dtype} {cut}", launch.code


def _conv(spec: ConvSpec, arithmetic: Arithmetic, dtype: str) -> ConvProblem:
    named = replace(spec, precision=Precision.of(dtype), activation=RELU6)
    return ConvProblem(named, dtype, (arithmetic,), "x", "y", EPILOGUE, "c")


def slice_codes(arch: int) -> Iterator[tuple[str, Code]]:
    """Products of few rows, whose warps share k, in every tile."""
    spec = replace(ConvSpec.parse("mb1ic384ih14oc64oh14kh1"), layout="NHWC")
    for arithmetic, dtype in KINDS:
        conv = _conv(spec, arithmetic, dtype)
        if slices_reject(conv) is None:
            for each in slicings(conv, MACHINES[arch], True):
                for launch in lower_pointwise(conv, np.ones(spec.weight_shape), each).launches:
                    yield f"{arithmetic.name} {dtype} {each}", launch.code


def box_codes(arch: int) -> Iterator[tuple[str, Code]]:
    """Products of boxes of both operands, long and short sums, in every tile."""
    for problem in ("mb32ic384ih14oc256oh14kh1", "mb32ic48ih28oc192oh28kh1"):
        spec = replace(ConvSpec.parse(problem), layout="NHWC")
        for arithmetic, dtype in KINDS:
            conv = _conv(spec, arithmetic, dtype)
            if boxes_reject(conv, MACHINES[arch]) is None:
                for each in boxings(conv, MACHINES[arch]):
                    for launch in lower_pointwise(conv, np.ones(spec.weight_shape), each).launches:
                        yield f"{arithmetic.name} {dtype} {each}", launch.code


def depthwise_codes(arch: int) -> Iterator[tuple[str, Code]]:
    """Depthwise kernels of MobileNetV2 and others, and those with the 1x1 behind."""
    machine = MACHINES[arch]
    for problem in (
        "g96mb1ic96ih56oc96oh56kh3ph1",
        "g96mb8ic96ih56oc96oh56kh3ph1",
        "g96mb32ic96ih56oc96oh28kh3sh2ph1",
        "g64mb64ic64ih28oc64oh28kh5ph2",
        "g16mb8ic16ih28oc32oh28kh5ph2",
        "g64mb8ic64ih28oc64oh28kh7ph3",
    ):
        spec = ConvSpec.parse(problem)
        for arithmetic, dtype in ((IEEE, FLOAT32), (HALF, FLOAT16), (DOUBLE, FLOAT64)):
            w = np.ones(spec.weight_shape)
            done = choose_algorithm(_conv(spec, arithmetic, dtype), w, machine, "depthwise")
            yield f"depthwise {dtype} {problem}", done.launches[0].code
    depth = replace(ConvSpec.parse("g96mb8ic96ih56oc96oh56kh3ph1"), activation=RELU6)
    point = ConvSpec.parse("mb8ic96ih56oc64oh56kh1")
    for arithmetic, dtype in ((IEEE, FLOAT32), (TF32X3, FLOAT32), (HALF, FLOAT16)):
        for tile in fused_tiles(arithmetic):
            w_depth, w = np.ones((96, 1, 3, 3)), np.ones((64, 96, 1, 1))
            conv = _conv(point, arithmetic, dtype)
            done = lower_fused(conv, depth, w_depth, "b", w, machine, tile)
            yield f"fused {arithmetic.name} {dtype} {tile}", done.launches[0].code


def method_codes(arch: int) -> Iterator[tuple[str, Code]]:
    """What the documents' methods add: copies, and Winograd's transforms."""
    spec = ConvSpec.parse("mb8ic64ih30oc64oh28kh3")
    for algorithm in (
        "im2col",
        "mec:solution=A",
        "im2win",
        "winograd:m=2",
        "winograd:m=4",
        "winograd:m=8",
    ):
        conv = replace(_conv(spec, IEEE, FLOAT32), epilogue=Epilogue("bias", "", "", RELU6))
        done = choose_algorithm(conv, np.ones(spec.weight_shape), MACHINES[arch], algorithm)
        for launch in done.launches:
            if launch.code.function != "gemm.segment_gemm":
                yield f"{algorithm} {launch.code.function}", launch.code
