"""Compiled code packs constants as NumPy does.

What is only moved is equal bit by bit. What Winograd sums in float64 is added tap by tap; BLAS may
add in another order at the edges of its tiles, which float32 does not see. Spectra are sums of
other products than those of NumPy's transform.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.parameters import parse_choice
from leanconv.algorithms.problem import Problem
from leanconv.codegen.forms import instance_of
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.codegen.lowered import PackCall
from leanconv.errors import SpecError
from leanconv.graph.ops.quantised_layers import numbers_of
from leanconv.half_arrays import in_memory
from leanconv.kernels import packing
from leanconv.kernels.recurrence import PackedPanels
from leanconv.operators import NodeContext
from leanconv.operators.conv_node import ConvNode
from leanconv.operators.conv_pieces import product_of
from leanconv.operators.transposed import joined
from leanconv.spec import PLAIN, Activation, ConvSpec, Format
from leanconv.spec.requantise import Quantisation
from leanconv.target import Target, preset
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, DType, Precision
from support import integer_conv, packers
from support.guard_pages import SIDES, Region
from support.nodes import formats_of, one_node
from support.packing import made_by, packed_constants
from support.small_kernels import problem

pytestmark = pytest.mark.vectors


# -- weights -----------------------------------------------------------------------------------
def drawn(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Numbers of a type, some of them negative zeros, or any bytes."""
    rng = np.random.default_rng(5)
    if dtype.is_float:
        made = rng.standard_normal(shape).astype(FLOAT64 if dtype == FLOAT64 else FLOAT32)
        made[rng.random(shape) < 0.1] = -0.0
        return in_memory(made, dtype)
    return rng.integers(-128, 128, shape, INT8)


def unaligned(w: np.ndarray) -> np.ndarray:
    """A copy that begins beside a multiple of its elements' size."""
    raw = bytes(1) + w.tobytes()
    return np.frombuffer(raw, np.uint8)[1:].view(w.dtype).reshape(w.shape)


def at_a_page(w: np.ndarray, side: str) -> np.ndarray:
    """A copy that ends or begins at a page that nobody may touch."""
    region = Region(w.nbytes, w.itemsize, at=side)
    made = region.data.view(w.dtype).reshape(w.shape)
    made[...] = w
    return made


def views(w: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays of the same numbers as these: none of them row-major from its start to its end."""
    axes = tuple(range(w.ndim))
    yield unaligned(w)
    for order in (axes[::-1], (1, 0, *axes[2:]), (0, *axes[2:], 1)):
        back = np.argsort(order)
        yield np.ascontiguousarray(w.transpose(order)).transpose(back)
    for flipped in (axes, axes[2:], axes[:1], axes[1:2]):
        yield np.flip(np.flip(w, flipped).copy(), flipped)
    wide = np.zeros([2 * n + 1 for n in w.shape], w.dtype)
    spread = wide[tuple(slice(1, None, 2) for _ in w.shape)]
    spread[...] = w
    yield spread
    yield from (at_a_page(w, side) for side in SIDES)


# -- what is compared --------------------------------------------------------------------------
def held(
    found: Candidate,
    given: Problem,
    w: np.ndarray,
    channels: dict[str, np.ndarray] | None = None,
    expected: dict[str, np.ndarray] | None = None,
    threads: int = 1,
    target: Target | None = None,
) -> dict[str, np.ndarray]:
    """Hold what calls make to NumPy's; gives that."""
    there = channels or {}
    wanted = expected or packers.constants(found, given, w, there)
    made = packed_constants(found, w, there, threads, **({"target": target} if target else {}))
    assert made.keys() == wanted.keys() == found.constant_bytes.keys()
    for role, array in made.items():
        assert array.dtype.itemsize == wanted[role].dtype.itemsize, role
        if not _is_close(found, role, array, wanted[role]):
            places = np.flatnonzero(array != wanted[role])
            raise AssertionError(f"{found.choice}: {role} differs at {places[:9]} of {array.size}")
    return wanted


def _is_close(found: Candidate, role: str, made: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether constants are equal bit by bit; sums of float64 within some roundings of the largest.

    Such a sum is now and then at the middle of two numbers of float32, but for its last bit.
    """
    name, summed = found.choice.algorithm, role.startswith("w") and made.dtype.kind == "f"
    if not summed or name not in ("fft", "winograd"):
        return made.tobytes() == wanted.tobytes()
    assert made.size == wanted.size
    assert np.isfinite(made).all()
    if name == "winograd" and made.dtype == FLOAT32:
        others = np.flatnonzero(made.view(np.uint32) != wanted.view(np.uint32))
        beside = np.nextafter(made[others], wanted[others]) == wanted[others]
        return len(others) <= 2 + made.size // 2**13 and bool(beside.all())
    bound = 8 * np.finfo(made.dtype).eps * np.abs(wanted).max()
    return bool(np.abs(made - wanted).max(initial=0.0) <= bound)


def numbers_for(spec: ConvSpec, dtype: DType = FLOAT32) -> dict[str, np.ndarray]:
    """A bias and a slope for each output channel."""
    rng = np.random.default_rng(6)
    return {
        name: rng.standard_normal(spec.out_channels).astype(dtype) for name in ("bias", "slope")
    }


# -- all algorithms ----------------------------------------------------------------------------
LAYERS = [
    "ic24ih14oc40kh3ph1",
    "ic1ih9oc1kh3ph1",
    "ic1ih9oc37kh1",
    "ic37ih9oc1kh1",
    "mb2ic20ih13iw11oc35kh1",
    "g4ic24ih14oc60kh3ph1",
    "g3ic3ih9oc21kh3ph1",  # several outputs of a channel
    "g40ic40ih14oc40kh3ph1",
    "g37ic37ih19oc37kh5sh2ph2",
    "ic5ih23oc33kh7sh2ph3",
    "mb3ic8ih17oc24kh5ph4dh1",
    "ic8id5oc16kd3",
    "ic3ih40oc9kh11ph5",
    "g12ic12ih40oc12kh15ph7",
]
MACHINES = ["haswell", "znver4", "neoverse-n1"]


def all_candidates(given: Problem, target: Target) -> list[Candidate]:
    """One of each kind of packing."""
    found = [each for _, each in select.choices(given, target, lean=True)]
    for name in ("im2col:rows=whole", "mec:solution=B", "im2win:form=base", "im2win:form=vector",
                 "im2win:form=printed", "im2win:form=high,vectorise=off", "naive", "fft:products=3",
                 "winograd:form=stages"):  # fmt: skip
        try:
            found.append(select.choose(given, target, select.choice_named(name)))
        except SpecError:
            continue
    return found


@pytest.mark.drawn
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("machine", MACHINES)
def test_all_algorithms(layer: str, machine: str) -> None:
    line = layer if "mb" in layer else f"mb2{layer}"
    spec, target = ConvSpec.parse(line, bias=True, activation=Activation("prelu")), preset(machine)
    w, seen = drawn(spec.weight_shape, FLOAT32), set[tuple[str, tuple[object, ...]]]()
    for form in (PLAIN, Format(target.channel_block(FLOAT32))):
        x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
        given = Problem.of(spec, x, y)
        for found in all_candidates(given, target):
            keys = [use.kernel.packing for use in found.kernels if use.kernel.packing]
            key = found.choice.algorithm, tuple(keys)
            if key not in seen:
                seen.add(key)
                held(found, given, w, numbers_for(spec))
    assert len({name for name, _ in seen}) >= 3


# -- views of weights --------------------------------------------------------------------------
# The text of a problem, an algorithm, whether channels are in blocks.
VIEWED = [
    ("ic67ih5iw9oc45oh5ow9kh1", "direct", True),
    ("ic24ih9oc40oh9kh3ph1", "direct", False),
    ("ic1ih9oc37kh3oh9ph1", "direct", True),
    ("ic37ih9oc1kh3oh9ph1", "direct", True),
    ("g4ic64ih9oc192oh9kh3ph1", "direct", True),
    ("ic20ih9iw9oc35oh9kh1", "planar", False),
    ("g37ic37ih9oc37oh9kh3ph1", "depthwise", True),
    ("ic24ih14oc40oh14kh3ph1", "im2col", False),
    ("ic24ih14oc40oh14kh3ph1", "mec", False),
    ("ic24ih14oc40oh14kh3ph1", "im2win:form=base", False),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=4", True),
    ("g2ic20ih14oc36oh14kh3ph1", "winograd:form=stages", False),
    ("ic3ih28oc33oh14kh7sh2ph3", "winograd:m=2", False),
    ("ic5ih40oc19oh40kh9ph4", "fft", False),
    ("g20ic20ih40oc20oh40kh9ph4", "fft", True),
    ("g12ic12ih40oc12oh40kh15ph7", "fft", False),
]


@pytest.mark.parametrize(("text", "algorithm", "blocked"), VIEWED)
def test_any_view_of_weights_is_packed(text: str, algorithm: str, blocked: bool) -> None:
    given, spec = problem(text, preset("znver4"), blocked), ConvSpec.parse(text)
    found = select.choose(given, preset("znver4"), parse_choice(algorithm, select.PARAMETERS))
    w = drawn(spec.weight_shape, FLOAT32)
    expected = packers.constants(found, given, w, {})
    for each in views(w):
        assert np.array_equal(each, w)
        held(found, given, each, expected=expected)


# -- sizes and types ---------------------------------------------------------------------------
CASES = [
    ("ic64ih7oc96oh7kh1", "direct", True),
    ("ic67ih5iw9oc45oh5ow9kh1", "direct", True),
    ("ic67ih5iw9oc45oh5ow9kh1", "direct", False),
    ("ic24ih9oc1000oh9kh1", "direct", True),
    ("ic2000ih1oc1300oh1kh1", "direct", True),  # in pieces
    ("ic300ih14oc310oh14kh3ph1", "winograd:m=2", True),  # in pieces
    ("ic33ih9oc50oh9kh3ph1", "direct", True),
    ("ic600ih9iw9oc20oh4ow4kh3kw2sh2sw2ph0pw0", "direct", True),
    ("g4ic256ih9oc384oh9kh3ph1", "direct", True),
    ("g2ic20ih9oc28oh9kh3ph1", "direct", False),
    ("ic32ih14oc48oh14kh3ph1", "winograd", True),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=4", True),
    ("ic35ih14oc45oh14kh3ph1", "winograd:m=2", False),
    ("ic32ih14oc40oh7kh3sh2ph1", "winograd:m=2", True),
    ("ic3ih28oc33oh14kh7sh2ph3", "winograd:m=2", False),
    ("ic16ih14oc24oh7kh5sh2ph2", "winograd:m=2", True),
    ("ic32ih14oc70oh14kh5ph2", "winograd:m=2", True),
    ("ic32ih14oc32oh14kh3ph2dh1", "winograd:m=2", True),
    ("g2ic64ih14oc192oh14kh3ph1", "winograd:m=3", True),
    ("ic128ih14oc256oh14kh3ph1", "winograd:form=stages", True),
    ("ic200ih28oc300oh28kh5ph2", "fft", True),  # slices
    ("ic200ih28oc300oh28kh5ph2", "fft:products=3", False),
    ("g256ic256ih28oc256oh28kh9ph4", "fft", True),
    ("g600ic600ih28oc600oh28kh9ph4", "fft", False),
    ("g2000ic2000ih9oc2000oh9kh3ph1", "depthwise", True),
    ("g64ic128ih9oc64oh9kh3ph1", "depthwise", True),
]


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(("text", "algorithm", "blocked"), CASES)
def test_large_and_small_layers(text: str, algorithm: str, blocked: bool, dtype: DType) -> None:
    given, shape = problem(text, host(), blocked, dtype=dtype), ConvSpec.parse(text).weight_shape
    found = select.choose(given, host(), parse_choice(algorithm, select.PARAMETERS))
    held(found, given, unaligned(drawn(shape, dtype)), threads=2, target=host())


U8S8 = integer_conv.U8S8
INTEGERS = [
    ("ic32ih14oc48oh14kh3ph1", "winograd:m=4"),
    ("ic35ih14iw13oc45oh14ow13kh3ph1", "winograd:m=4"),  # an odd number of channels
    ("ic300ih14oc310oh14kh3ph1", "winograd:m=2"),  # in pieces
    ("ic33ih14oc40oh7kh3sh2ph1", "winograd:m=2"),
    ("g2ic64ih14oc192oh14kh3ph1", "winograd:m=4x2"),
    ("ic5ih4iw4oc3oh4ow4kh1", "direct"),
    ("ic70ih9oc67oh9kh3ph1", "direct"),
    ("ic1100ih1oc1000oh1kh1", "direct"),
    ("g3ic48ih9oc48oh9kh3ph1", "direct"),
    ("g40ic40ih9oc40oh9kh3ph1", "depthwise"),
    ("g37ic37ih9oc37oh5kh5sh2ph2", "depthwise"),
]


TILES = [
    ("ic64ih14oc64oh14kh3ph1", "amx"),
    ("ic3ih20iw21oc20oh10ow11kh7sh2sw2ph3pw3", "amx"),
    ("ic1000oc300ih4oh4kh1", "amx"),
]
OF_BYTES = [
    *((*each, machine) for each in INTEGERS for machine in (*MACHINES, "sapphirerapids")),
    *((*each, "sapphirerapids") for each in TILES),
]


@pytest.mark.drawn
@pytest.mark.parametrize(("text", "algorithm", "machine"), OF_BYTES)
def test_bytes_are_packed_exactly(text: str, algorithm: str, machine: str) -> None:
    target, spec = preset(machine), ConvSpec.parse(text, precision=U8S8, bias=True)
    w, given = drawn(spec.weight_shape, INT8), integer_conv.problem(spec, target)
    given = replace(given, sum_bits=26 if "winograd" in algorithm else given.sum_bits)
    found = select.choose(given, target, parse_choice(algorithm, select.PARAMETERS))
    bias = np.arange(1, spec.out_channels + 1, dtype=np.int32)
    expected = held(found, given, w, {"bias": bias})
    for each in views(w):
        held(found, given, each, {"bias": bias}, expected)


FLOAT16_STORED = Precision(FLOAT16, FLOAT16, FLOAT32, FLOAT16)
BFLOAT16_GIVEN = Precision(BFLOAT16, BFLOAT16, FLOAT32, FLOAT32)
WEIGHTS_ONLY = Precision(FLOAT32, BFLOAT16, FLOAT32, FLOAT32)
HALVED = [
    (text, algorithm, precision)
    for text, algorithm in (
        ("ic64ih14oc96oh14kh3ph1", "direct"),
        ("ic5ih9oc7oh9kh1", "direct"),
        ("ic300ih9oc400oh9kh3ph1", "direct"),  # in pieces
        ("g37ic37ih9oc37oh9kh3ph1", "depthwise"),
        ("ic35ih14oc45oh14kh3ph1", "winograd:m=4"),
        ("ic24ih14oc40oh14kh3ph1", "winograd:form=stages"),
        ("ic5ih40oc19oh40kh9ph4", "fft"),
        ("ic64ih14oc96oh14kh3ph1", "amx"),
        ("ic60ih9iw12oc16oh9ow10kh3ph2dh2pw1", "amx"),
    )
    for precision in (FLOAT16_STORED, BFLOAT16_GIVEN, WEIGHTS_ONLY)
    if algorithm != "amx" or precision != FLOAT16_STORED  # there are no such tiles
]


@pytest.mark.drawn
@pytest.mark.parametrize(("text", "algorithm", "precision"), HALVED, ids=str)
def test_halves_given_and_halves_kept(text: str, algorithm: str, precision: Precision) -> None:
    target, spec = preset("sapphirerapids"), ConvSpec.parse(text, precision=precision, bias=True)
    form, bias = Format(16), numbers_for(spec)["bias"]
    x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    given = Problem.of(spec, x, y, max_error=0.02)
    found = select.choose(given, target, parse_choice(algorithm, select.PARAMETERS))
    for w in (drawn(spec.weight_shape, precision.w), drawn(spec.weight_shape, FLOAT32)):
        expected = held(found, given, w, {"bias": bias})
        for each in views(w):
            held(found, given, each, {"bias": bias}, expected)


# -- other constants ---------------------------------------------------------------------------
def test_scales_and_what_else_rounds_codes() -> None:
    for text, algorithm in (("ic20ih9oc33oh9kh3ph1", "direct"), ("ic20ih9oc33oh9kh3ph1", "amx")):
        quantisation = Quantisation(3, 0, 255)
        spec = ConvSpec.parse(text, precision=replace(U8S8, y=U8S8.x), bias=True)
        spec = replace(spec, requantise=quantisation.form)
        target = preset("sapphirerapids")
        found = integer_conv.candidate(spec, target, algorithm)
        channels = {
            "bias": np.arange(33, dtype=np.int32),
            "scale": integer_conv.scales(spec, False),
            "quantisation": numbers_of(quantisation),
        }
        w = drawn(spec.weight_shape, INT8)
        held(found, integer_conv.problem(spec, target), w, channels)


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_columns_of_a_transposed_convolution(groups: int, blocked: bool) -> None:
    for outputs, kernel in ((16, (4, 4)), (20, (3, 5)), (1, (2, 2))):
        shape = (groups * 5, outputs, *kernel)
        w, x = drawn(shape, FLOAT32), np.zeros((1, groups * 5, 6, 7), np.float32)
        attributes = {
            "pads": (0,) * 4, "dilations": (1, 1), "group": groups, "output_padding": (0, 0),
            "strides": (2, 2), "activation": None,
        }  # fmt: skip
        bias = drawn((groups * outputs,), FLOAT32)
        arrays, channels = {"w": w, "b": bias}, {"bias": bias}
        node, graph = one_node("ConvTranspose", {"x": x}, arrays, ["x", "w", "b"], attributes)
        for target in map(preset, MACHINES):
            formats = formats_of(graph, target, blocked and groups == 1)
            given, found = product_of(ConvNode(NodeContext(node, graph, formats, target)))
            expected = held(found, given, w, channels)
            for each in views(w):
                held(found, given, each, channels, expected)


def test_phases_of_one_kernel_lie_one_after_the_other() -> None:
    given = problem("ic24ih9oc40oh9kh3ph1", preset("znver4"), True)
    found = select.choose(given, preset("znver4"), select.choice_named("direct"))
    w = drawn((3, 40, 24, 3, 3), FLOAT32)
    bias = {"bias": np.arange(40, dtype=np.float32)}
    wanted = packers.constants(found, given, w[0], bias)
    parts = [packers.constants(found, given, each, {})["w"] for each in w]
    wanted |= {"w": np.concatenate(parts), "offsets": np.array([0, 1, 2])}
    phases = joined([(with_conv(given, y_offset=n), found) for n in range(3)])
    calls = phases.packing(w[0], bias)
    for part in w[1:]:
        calls["w"] += phases.packing(part, {})["w"]
    made = made_by(calls)
    assert {n: a.tobytes() for n, a in made.items()} == {n: a.tobytes() for n, a in wanted.items()}


def test_panels_of_matrices_are_of_any_view() -> None:
    for shape in ((1, 1, 1), (3, 5, 7), (2, 33, 16), (1, 700, 2000)):
        for dtype in (np.float32, np.float64, np.uint8):
            w = np.random.default_rng(1).integers(0, 255, shape).astype(dtype)
            wanted = packers.matrix_panels(w, 16).tobytes()
            for each in (w, w.transpose(2, 0, 1).copy().transpose(1, 2, 0), unaligned(w)):
                made = made_by({"w": packing.matrix_panels(each, 16)}, threads=2)["w"]
                assert made.tobytes() == wanted


def test_gates_lie_in_panels() -> None:
    cases = (
        (1, ((0, 1), (2, 3)), 40, 16),
        (2, ((0, 1), (2,)), 7, 8),
        (1, ((0, 1, 2, 3),), 5, 4),
        (2, ((0,),), 16, 4),
    )
    for directions, parts, hidden, lanes in cases:
        for dtype in (FLOAT32, FLOAT64):
            r = drawn((directions, sum(map(len, parts)) * hidden, hidden), dtype)
            kernel = PackedPanels(dtype, lanes, directions, hidden, parts)
            size = kernel.elements * dtype.bytes
            made = made_by({"r": [PackCall(kernel, partial(np.asarray, r), tuple, size)]})["r"]
            assert made.tobytes() == packers.gate_panels(r, parts, lanes).tobytes()


def test_arrays_as_they_are() -> None:
    for size in (1, 7, 16384, 16385, 100_000):
        for dtype in (np.uint8, np.float16, np.float32, np.int64):
            array = np.random.default_rng(size).integers(0, 200, size).astype(dtype)
            for each in (array, array.reshape(1, -1), np.repeat(array, 2)[::2], array[::-1]):
                made = made_by({"array": packing.copied(each)}, threads=2)["array"]
                assert made.tobytes() == each.tobytes()


# -- code --------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["direct", "winograd:m=2"])
def test_one_code_packs_all_layers(algorithm: str) -> None:
    digests = set()
    for text in (
        "ic64ih14oc64oh14kh3ph1",
        "ic96ih14oc40oh14kh3ph1",
        "ic512ih7oc1000oh7kh3ph1",
        "g2ic128ih14oc64oh7kh3sh2ph1",
        "ic64ih14oc64oh14kh5ph2",
    ):
        choice = parse_choice(algorithm, select.PARAMETERS)
        found = select.choose(problem(text, host(), True), host(), choice)
        calls = found.packing(np.zeros(ConvSpec.parse(text).weight_shape, np.float32), {})
        digests |= {instance_of(call.kernel, host()).digest for call in calls["w"]}
    assert len(digests) == 1
