"""Convolution by matrix tiles equals NumPy's int64; its text is looked at on any machine."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.amx import AMX
from leanconv.algorithms.amx.kernel import TileConv
from leanconv.algorithms.select import choose, rejections
from leanconv.codegen.forms import emitted
from leanconv.codegen.host import host
from leanconv.codegen.matrix_tiles import ROWS
from leanconv.reference.direct import convolve
from leanconv.spec import Activation, ConvSpec, Format
from leanconv.spec.requantise import Quantisation, ResidualCodes
from leanconv.target import preset
from leanconv.types import FLOAT32, INT8, INT32, UINT8, DType, Precision
from support.integer_conv import (
    S8S8,
    S16,
    SHAPES,
    U8S8,
    U8U8,
    blocked,
    candidate,
    check,
    operands,
    plain,
    problem,
    scales,
)
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.packing import packed_channels, packed_weights

S8U8 = Precision(INT8, UINT8, INT32, INT32)
MORE = [
    "ic64ih14iw16oc32oh14ow16kh1",  # whole tiles
    "mb2ic64ih7oc48oh7kh3ph1pw1",  # narrow rows, an odd number of panels and of tiles
    "ic256ih15iw19oc64oh8ow10kh1sh2sw2",
    "ic96ih9iw12oc16oh9ow10kh3ph2dh2pw1",
    "ic3ih20iw21oc20oh10ow11kh7sh2sw2ph3pw3",
    "mb2g2ic160ih6iw5oc96oh4ow4kh3kw2",  # rows that go on in the next, without padding
    "ic70ih9iw3oc20oh9ow3kh3kw3ph2dh2pw2dw2",
    "ic7ih9iw30oc16oh9ow8kh1kw7sw4pw3",  # pixels of 8 bytes
    "g3ic144ih6iw5oc48oh6ow5kh3ph1pw1",
    "ic32ih4iw40oc32oh4ow36kw5",
    "mb2ic3ih60iw70oc20oh60ow70kh3ph1pw1",  # one window of all taps; several chunks
    "ic6ih9iw11oc20oh9ow11kh3ph1pw1",  # windows of two rows, and one
    "ic2ih17iw20oc16oh5ow6kh5sh3sw3",  # of three rows, and two, at every third row
    "ic4ih12iw9oc16oh6ow9kh2kw1sh2",
    "mb17ic70ih1iw1oc40oh1ow1kh1",  # images as columns
    "mb5ic20ih3iw2oc33oh1ow1kh3kw2",
    "mb3g2ic32ih4iw1oc32oh1ow1kh4kw1",
    "ic3ih30iw9oc16oh9ow9kh7kw1sh3ph2",
    "ic3ih20iw21oc20oh12ow19kh5kw3dh2",  # rows apart: a window has one
]
HAS_TILES = pytest.mark.skipif(
    "amx_int8" not in host().extensions, reason="this machine has no matrix tiles, or gives none"
)


@HAS_TILES
@pytest.mark.parametrize("precision", [U8S8, S8S8, U8U8, S8U8], ids=str)
def test_bytes_are_convolved_exactly(precision: Precision) -> None:
    for text in [*SHAPES, *MORE] if precision == U8S8 else SHAPES[2:5]:
        spec = ConvSpec.parse(text, precision=precision, bias=True)
        check(spec, host(), *operands(spec), choice="amx")
    spec = ConvSpec.parse(MORE[1], precision=precision)
    x, w, bias = operands(spec)
    check(spec, host(), x, w, 0 * bias, choice="amx")


@HAS_TILES
@pytest.mark.parametrize(
    "text",
    [
        "ic64oc40kh3ph1pw1",
        "ic70oc64kh1",
        "ic16oc40kh3ph1pw1",
        "ic64oc20kh3sh2ph1pw1",
        "mb2ic9oc9kh2",
    ],
)
def test_one_code_for_images_of_any_size(text: str) -> None:
    made = set()
    for size in ("ih6iw17", "ih48iw100", "ih7iw40", "ih2iw7", "ih3iw2", "ih4iw1"):
        text_of_size = text.replace("oc", f"{size}oc")
        if size == "ih4iw1" and "kh2" in text:
            continue
        spec = ConvSpec.parse(text_of_size, precision=U8S8, bias=True)
        check(spec, host(), *operands(spec), choice="amx", any_size=(1, 2))
        (use,) = candidate(spec, host(), "amx", any_size=(1, 2)).kernels
        if spec.output_shape[-1] >= ROWS:
            made.add(emitted(use.kernel, host())[0])
    assert len(made) == 1


@HAS_TILES
@pytest.mark.parametrize("dtype", [UINT8, INT8, FLOAT32])
def test_sums_become_codes(dtype: DType) -> None:
    low, high = (0, 200) if dtype == UINT8 else (-120, 127) if dtype == INT8 else (-0.5, 1.5)
    given = Quantisation(0 if dtype == FLOAT32 else low + 90, low, high)
    for text in (SHAPES[3], SHAPES[5], *MORE[:3]):
        spec = ConvSpec.parse(
            text, precision=replace(U8S8, y=dtype), bias=True, requantise=given.form
        )
        check(spec, host(), *operands(spec), given, scales(spec, False), "amx")


@HAS_TILES
@pytest.mark.parametrize("first", [False, True])
def test_codes_are_added(first: bool) -> None:
    own = ResidualCodes(91, 3, 250, 0.031, 0.0172, 0.0403, 120, first)
    given = Quantisation(77, 5, 255, own)
    for text in (SHAPES[3], *MORE[:3], "ic70ih5iw6oc40oh3ow4kh3"):
        spec = ConvSpec.parse(
            text,
            precision=replace(U8S8, y=UINT8),
            bias=True,
            residual=True,
            requantise=given.form,
        )
        check(spec, host(), *operands(spec), given, scales(spec, False), "amx")


@HAS_TILES
@pytest.mark.parametrize(
    "text", ["ic4000oc80ih1oh1kh1", "ic1000oc300ih4oh4kh1", "mb9ic40ih7oc40oh7kh3ph1"]
)
def test_weights_are_prefetched_beside_the_products(text: str) -> None:
    """A few panels ahead, or a few KiB where the next ones are far; only beyond the end is new."""
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    given = replace(problem(spec, host()), weights_from_dram=True)
    (use,) = AMX.candidate(given, host()).kernels
    assert isinstance(use.kernel, TileConv)
    assert use.kernel.ahead > 0
    rng, (x, w, bias) = np.random.default_rng(2), operands(spec)
    packed = [packed_weights(use.kernel, given.weights_3d(w)), packed_channels(use.kernel, bias)]
    y = np.zeros(Format(16).physical_shape(spec.output_shape), np.int32)
    found = run_kernel(use.kernel, blocked(x, 16, rng), *packed, y)
    exact = convolve(spec, x.astype(np.int64), w.astype(np.int64), bias.astype(np.int64))
    assert np.array_equal(plain(found, spec.out_channels), exact)


def test_products_of_tiles_are_instructions_in_order() -> None:
    target = preset("sapphirerapids")
    for precision, word in ((U8S8, "tdpbusd"), (S8S8, "tdpbssd"), (S8U8, "tdpbsud")):
        spec = ConvSpec.parse("ic64ih14oc64oh14kh3ph1pw1", precision=precision, bias=True)
        (use,) = candidate(spec, target, "amx").kernels
        text = assembly(use.kernel, target)
        words = ("ldtilecfg", "tileloadd", word, "tilestored", "tilerelease")
        places = [text.index(each) for each in words]
        assert places == sorted(places)


def test_the_target_decides_whether_tiles_are_chosen() -> None:
    spec = ConvSpec.parse("ic64ih28oc64oh28kh3ph1pw1", precision=U8S8, bias=True)
    target = preset("sapphirerapids")
    given = problem(spec, target)
    chosen = choose(given, target).choice
    assert (chosen.algorithm, chosen.error) == ("amx", 0.0)
    without = replace(target, extensions=("vnni",))
    assert choose(given, without).choice.algorithm == "direct"
    assert rejections(given, without)["amx"] == "the target has no matrix tiles for uint8 by int8"


def test_what_tiles_do_not_take_is_refused_with_a_reason() -> None:
    target = preset("sapphirerapids")

    def reason(text: str, precision: Precision = U8S8, activation: str = "") -> str:
        chosen = Activation.parse(activation) if activation else None
        spec = ConvSpec.parse(text, precision=precision, activation=chosen)
        return str(AMX.refusal(problem(spec, target), target))

    assert "int16" in reason("ic16oc16ih4oh4kh1", S16)
    assert "activation" in reason("ic16oc16ih4oh4kh1", activation="relu")
    assert "three axes" in reason("ic16oc16id4od2ih4oh2kh3kd3")
    assert "groups of 24 input channels" in reason("g2ic48oc64ih4oh4kh1")


@HAS_TILES
def test_threads_and_forked_children_have_tiles_of_their_own() -> None:
    specs = [ConvSpec.parse(text, precision=U8S8, bias=True) for text in MORE[:2]]

    def run(spec: ConvSpec) -> bool:
        for _ in range(5):
            check(spec, host(), *operands(spec), choice="amx")
        return True

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, specs)) == [True, True]
    child = os.fork()
    if not child:
        os._exit(0 if run(specs[0]) else 1)
    assert os.waitpid(child, 0)[1] == 0
