"""Products with weights of 2, 4 and 8 bits that stay codes, against float64."""

from __future__ import annotations

import numpy as np
import pytest

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


def node_of(case):
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
    x = rng.standard_normal((rows, inner)).astype(np.float32)
    given = {"bits": bits, "block": block, "inner": inner, "outputs": outputs, "middle": middle}
    order = ("x", "codes", "scales", "zeros" * own_zeros, *("bias",) * biased)
    node, graph = one_node("MatMulNBits", {"x": x}, held, order, given)
    floats = (codes - np.repeat(zeros, block, 1)) * np.repeat(held["scales"], block, 1)
    y = x.astype(np.float64) @ floats[:, :inner].T.astype(np.float64)
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
