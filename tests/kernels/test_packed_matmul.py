"""Products with weights of 2, 4 and 8 bits that stay codes, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.ops.quantised_layers import packed_bits, unpacked_bits
from leanconv.kernels import KernelContext, packed_matmul
from leanconv.spec.format import PLAIN
from leanconv.target import Target, preset
from leanconv.types import FLOAT32
from support.listing import assembly
from support.nodes import TARGETS, all_constants, one_node, run_lowered

# Rows, outputs, bits, codes of a block, sums; zero points for each block, a bias.
CASES: list[tuple] = [
    (1, 1, 4, 16, 1, False, False),
    (1, 130, 4, 32, 100, True, True),
    (2, 17, 8, 4, 37, True, False),
    (3, 40, 2, 16, 50, True, True),
    (5, 70, 4, 8, 64, False, True),
    (13, 33, 4, 64, 129, True, False),
    (21, 16, 8, 32, 33, False, False),
    (100, 9, 4, 16, 45, True, True),
]


# Of rows that become bytes: blocks of several lengths, whole and not.
OF_BYTES: list[tuple] = [
    (1, 1, 4, 16, 1, False, False),
    (1, 130, 4, 32, 100, True, True),
    (2, 17, 4, 64, 37, True, False),
    (3, 40, 4, 16, 50, False, True),
    (5, 70, 4, 128, 300, True, True),
    (21, 33, 4, 32, 129, True, False),
    (40, 9, 4, 256, 600, False, True),
]
_NO_VNNI = [preset("skylake-avx512")] if host().isa == "avx512" else []
X86 = [*(target for target in TARGETS if target.isa in ("avx2", "avx512")), *_NO_VNNI]


def rounded(x, block):
    """Rows as their bytes stand for them, in float64: the largest number of a block is 127."""
    rows, inner = x.shape
    whole = np.zeros((rows, -(-inner // block) * block), np.float32)
    whole[:, :inner] = x
    blocks = whole.reshape(rows, -1, block)
    size = np.abs(blocks).max(-1, keepdims=True)
    size[size < 2.0**-119] = 0
    with np.errstate(all="ignore"):
        ratio = np.where(size == 0, np.float32(0), np.float32(127) / size)
        codes = np.rint(blocks.astype(np.float64) * ratio)
    return (codes * (size / np.float32(127))).reshape(rows, -1)[:, :inner]


def node_of(case, in_bytes=False, x=None):
    """A node of one product, its graph, its inputs and what it should give in float64."""
    rows, outputs, bits, block, inner, own_zeros, biased = case
    rng, blocks = np.random.default_rng(sum(case)), -(-inner // block)
    codes = rng.integers(0, 1 << bits, (outputs, blocks * block)).astype(np.uint8)
    held = {
        "codes": packed_bits(codes, bits),
        "scales": rng.uniform(-0.1, 0.1, (outputs, blocks)).astype(np.float32),
    }
    zeros, middle = np.full((outputs, blocks), 1 << (bits - 1)), 1 << (bits - 1)
    if own_zeros:
        zeros = rng.integers(0, 1 << bits, (outputs, blocks))
        held["zeros"] = zeros.astype(np.uint8)
    if biased:
        held["bias"] = rng.standard_normal(outputs).astype(np.float32)
    if x is None:
        x = rng.standard_normal((rows, inner)).astype(np.float32)
    given = {"bits": bits, "block": block, "inner": inner, "outputs": outputs, "middle": middle}
    given["bytes"] = in_bytes
    order = ("x", "codes", "scales", "zeros" * own_zeros, *("bias",) * biased)
    node, graph = one_node("MatMulNBits", {"x": x}, held, order, given)
    floats = (codes - np.repeat(zeros, block, 1)) * np.repeat(held["scales"], block, 1)
    read = rounded(x, block) if in_bytes else x.astype(np.float64)
    y = read @ floats[:, :inner].T.astype(np.float64)
    return node, graph, {"x": x}, y + held.get("bias", np.zeros(1))


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(case: tuple, target: Target) -> None:
    node, graph, inputs, wanted = node_of(case)
    formats = dict.fromkeys(graph.types, PLAIN)
    lowered = packed_matmul.lower(KernelContext(node, graph, formats, target))
    found = run_lowered(lowered, graph, formats, inputs, target)
    most = case[4] * FLOAT32.roundoff * (1 << case[2]) * 0.1 * 8
    np.testing.assert_allclose(found, wanted, rtol=0, atol=max(most, 1e-6))


def run(case, target, in_bytes=True, x=None):
    """What a product gives, and what it should."""
    node, graph, inputs, wanted = node_of(case, in_bytes, x)
    formats = dict.fromkeys(graph.types, PLAIN)
    lowered = packed_matmul.lower(KernelContext(node, graph, formats, target))
    return run_lowered(lowered, graph, formats, inputs, target), wanted


@pytest.mark.drawn
@pytest.mark.parametrize("target", X86, ids=lambda t: t.name)
@pytest.mark.parametrize("case", OF_BYTES, ids=str)
def test_rows_of_bytes(case: tuple, target: Target) -> None:
    """Sums of bytes and codes are exact: all else is the error of rows that are rounded once."""
    found, wanted = run(case, target)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("target", X86, ids=lambda t: t.name)
@pytest.mark.parametrize("number", [0.0, 1e-37, -1.0, 1e36, np.inf, np.nan])
def test_extreme_rows_of_bytes(number: float, target: Target) -> None:
    """Blocks of zeros and of tiny numbers are zeros; what is not finite stays in its row."""
    x = np.ones((3, 70), np.float32)
    x[1, 32:64] = number
    with np.errstate(all="ignore"):
        found, wanted = run((3, 9, 4, 32, 70, False, False), target, x=x)
    if not np.isfinite(number):
        assert not np.isfinite(found[1]).any()
        found, wanted = found[::2], wanted[::2]
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("target", X86, ids=lambda t: t.name)
def test_the_largest_sums_of_bytes(target: Target) -> None:
    """No pair of the largest codes and bytes saturates, whatever their signs."""
    case, codes = (2, 17, 4, 256, 512, False, False), np.full((17, 256), 255, np.uint8)
    node, graph, _, _ = node_of(case, True)
    graph.constants["codes"][:] = codes.reshape(graph.constants["codes"].shape)
    graph.constants["scales"][:] = 1.0
    x = np.ones((2, 512), np.float32) * np.array([[1.0], [-1.0]], np.float32)
    formats = dict.fromkeys(graph.types, PLAIN)
    lowered = packed_matmul.lower(KernelContext(node, graph, formats, target))
    found = run_lowered(lowered, graph, formats, {"x": x}, target)
    np.testing.assert_allclose(found, x[:, :1] * np.full(17, 512.0 * 7), rtol=1e-6)


def test_which_products_multiply_bytes() -> None:
    """Those of 4 bits in short blocks, on machines that multiply bytes in pairs or fours."""
    for case, name, wanted in (
        ((1, 64, 4, 32, 64, False, False), "icelake-server", "vpdpbusd"),
        ((1, 64, 4, 32, 64, False, False), "haswell", "vpmaddubsw"),
        ((1, 64, 4, 512, 512, False, False), "haswell", ""),
        ((1, 64, 8, 32, 64, False, False), "haswell", ""),
        ((1, 64, 4, 32, 64, False, False), "neoverse-n1", ""),
    ):
        node, graph, _, _ = node_of(case, True)
        target = preset(name)
        lowered = packed_matmul.lower(KernelContext(node, graph, {}, target))
        assert len(lowered.calls) == 1 + bool(wanted)
        assert wanted in assembly(lowered.calls[-1].kernel, target)


def test_weights_take_their_bytes() -> None:
    """4 bits of each code, and of each block a scale; what is stated is what is made."""
    node, graph, _, _ = node_of((1, 128, 4, 32, 256, False, False))
    lowered = packed_matmul.lower(KernelContext(node, graph, {}, preset("icelake-server")))
    sizes = {name: size for p in lowered.packings for name, size in p.bytes.items()}
    assert sizes == {name: array.nbytes for name, array in all_constants(lowered).items()}
    assert sum(sizes.values()) == 128 * 256 // 2 + 128 * 8 * 4


def test_four_bits_are_looked_up_in_a_register() -> None:
    node, graph, _, _ = node_of((1, 128, 4, 32, 256, False, False))
    for name, word in (
        ("icelake-server", "vpermps"),
        ("haswell", "vcvtdq2ps"),
        ("neoverse-n1", "fmla"),
    ):
        target = preset(name)
        (call,) = packed_matmul.lower(KernelContext(node, graph, {}, target)).calls
        assert word in assembly(call.kernel, target)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 16)).astype(np.uint8)
    np.testing.assert_array_equal(unpacked_bits(packed_bits(codes, bits), bits), codes)
