"""Matrix products compiled once for all extents: what is shared, and that the bits stay."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from leanconv.codegen.forms import emitted, instance_of
from leanconv.codegen.host import host
from leanconv.codegen.lowered import Lowered
from leanconv.kernels import matmul
from leanconv.kernels.matmul_kernel import MatMul, PackedMatMul
from leanconv.target import Target, preset
from support.covering import dealt
from support.forms import constant, same_bits
from support.listing import assembly_text
from support.nodes import Case
from support.packing import packed_by

LENGTHS = (*range(8, 60, 3), *range(60, 301, 17))
TARGETS = [host(), preset("znver4"), preset("haswell"), preset("neoverse-n1")]


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def product(
    a: tuple[int, ...], b: tuple[int, ...], target: Target, constants: tuple[int, ...] = ()
) -> Lowered:
    """The product of a network whose lengths are open."""
    arrays = [np.zeros(a, np.float32), numbers(b)]
    case = Case(matmul, "MatMul", arrays, {}, list(constants))
    case.graph = replace(case.graph, open_axes={"x0": (len(a) - 2,)})
    return case.lower(target, False)


def forms(products: list[Lowered], target: Target) -> int:
    return len({instance_of(each.calls[0].kernel, target).digest for each in products})


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("depth", [15, 64])
def test_products_of_activations_of_all_lengths_have_a_handful_of_forms(
    target: Target, depth: int
) -> None:
    scores = [product((8, n, depth), (8, depth, n), target) for n in LENGTHS]
    values = [product((8, n, n), (8, n, depth), target) for n in LENGTHS]
    assert forms(scores, target) <= 6
    assert forms(values, target) <= 2


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_products_with_weights_of_all_lengths_have_two_forms(target: Target) -> None:
    products = [product((n, 120), (120, 130), target, (1,)) for n in LENGTHS if n > 28]
    assert forms(products, target) <= 2


def same(lowered: Lowered, a: np.ndarray, b: np.ndarray) -> None:
    kernel = lowered.calls[0].kernel
    assert isinstance(kernel, MatMul)
    assert isinstance(kernel, PackedMatMul) == bool(lowered.packings)
    y = np.full(prod(kernel.batch) * kernel.m * kernel.n, np.nan, np.float32)
    for packing in lowered.packings:
        (b,) = packed_by(packing).values()
    same_bits(kernel, a, b, y)


# A sum's length is the count of the inner loop, in whatever tile of rows and columns.
ROWS_COLUMNS = list(itertools.product((2, 7, 9, 13, 31, 45), (3, 8, 15, 16, 17, 40, 77)))


@pytest.mark.drawn
@pytest.mark.parametrize(("m", "n", "k"), dealt(ROWS_COLUMNS, (2, 9, 40)))
def test_words_give_the_bits_of_constants(m: int, n: int, k: int) -> None:
    a, b = numbers((3, m, k)), numbers((3, k, n), 1)
    same(product(a.shape, b.shape, host()), a, b)
    weights = product(a.shape, b.shape[1:], host(), (1,))
    same(weights, a, b)


@pytest.mark.parametrize("name", ["znver4", "haswell", "neoverse-n1"])
def test_rows_cost_no_instruction_more_than_with_constants(name: str) -> None:
    target = preset(name)
    for shapes in (((8, 99, 15), (8, 15, 99)), ((8, 99, 99), (8, 99, 15))):
        kernel = product(*shapes, target).calls[0].kernel
        texts = emitted(kernel, target)[0], constant(kernel).emit(target)
        form, plain = (_instructions_of_products(assembly_text(t, target)) for t in texts)
        assert form <= plain


def _instructions_of_products(text: str) -> int:
    """Instructions of the innermost loop with the most products, from its label to its jump."""
    loops = re.split(r"^\.?L\w+:", text, flags=re.MULTILINE)
    most = max(loops, key=lambda body: len(re.findall(r"vfmadd|fmla", body)))
    body = re.split(r"^\s+(?:j\w+|b\.\w+)\s.*\n", most, flags=re.MULTILINE)[0]
    return len(re.findall(r"^\s+[a-z]", body, flags=re.MULTILINE))
