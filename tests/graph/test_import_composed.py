"""Operations that are composed of others against ONNX Runtime: bound, and compiled many in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import LeanConvError
from support.composed_cases import CASES, X
from support.hostile import network, node, refused
from support.joined_cases import check_compiled, opsets
from support.onnx_models import agree, imported, model, reference, single


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


@pytest.mark.parametrize("opset", opsets(CASES))
def test_all_compiled_in_one_network(opset: int) -> None:
    check_compiled(CASES, opset, 1e-5)


EQUATIONS = (
    *("abc,cd->abd", "abc,acd->abd", "abc,abd->cd", "ab,cd->acbd", "aab,bc->ca", "abc,adc,de->abe"),
    *(
        "...a,ab->...b",
        "a...b,b...->a...",
        "abc->bc",
        "ab,ab,ab->b",
        "ab,bc,cd,de->ae",
        "aa,bb->ab",
    ),
)


@pytest.mark.parametrize("seed", range(30))
def test_any_equation(seed: int) -> None:
    """Random terms over few letters, so that they meet in all ways."""
    random = np.random.default_rng(seed)
    letters = dict(zip("abcdef", random.choice([1, 2, 3, 4], 6).tolist(), strict=True))
    terms = ["".join(random.choice(list(letters), random.integers(0, 5))) for _ in range(3)]
    terms = terms[: random.integers(1, 4)]
    used = sorted(set("".join(terms)))
    result = "".join(random.permutation(used)[: random.integers(0, len(used) + 1)])
    equation = ",".join(terms) + ("->" + result if random.random() < 0.8 else "")
    arrays = [random.normal(size=[letters[c] for c in term]).astype("f4") for term in terms]
    proto, given = single("Einsum", arrays, 12, equation=equation)
    found = imported(proto, given)["out0"]
    expected = np.einsum(equation, *(each.astype(float) for each in arrays))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=equation)


def test_dots_of_different_lengths() -> None:
    """As NumPy has them."""
    a, b = X[:, :, :, :4], X[0]
    found = imported(*single("Einsum", [a, b], 12, equation="...ij,...jk->...ik"))["out0"]
    np.testing.assert_allclose(found, np.matmul(a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_open_sizes(equation: str) -> None:
    """The same network for extents that are bound later."""
    terms = equation.partition("->")[0].split(",")
    for sizes in ({}, dict.fromkeys("abcde", 3), {"a": 1, "b": 4, "c": 2, "d": 6, "e": 5}):
        shapes = [term.replace("...", "yz") for term in terms]
        names = {f"x{i}": list(shape) for i, shape in enumerate(shapes)}
        each = helper.make_node("Einsum", list(names), ["y"], equation=equation)
        proto = model([each], names, ["y"], opset=12)
        if not sizes:
            net = lc.load(proto.SerializeToString(), threads=1)
            continue
        sizes = {"y": 2, "z": 3, **sizes}
        random = np.random.default_rng(1)
        given = {
            n: random.normal(size=[sizes[c] for c in s]).astype("f4") for n, s in names.items()
        }
        expected = reference(proto, given)["y"]
        np.testing.assert_allclose(net.run(given)["y"], expected, rtol=1e-4, atol=1e-5)


def test_patterns_of_open_sizes() -> None:
    """One load, bound to several sizes."""
    nodes = [
        helper.make_node("Hardmax", ["x"], ["h"], axis=1),
        helper.make_node("Trilu", ["h"], ["t"], upper=0),
        helper.make_node("EyeLike", ["x"], ["e"]),
        helper.make_node("Add", ["t", "e"], ["s"]),
        helper.make_node("CumSum", ["s", "axis"], ["y"]),
        helper.make_node("ArgMax", ["x"], ["places"], axis=1, keepdims=0),
        helper.make_node("OneHot", ["places", "depth", "values"], ["z"], axis=0),
        helper.make_node("LpNormalization", ["x"], ["n"], axis=0, p=2),
        helper.make_node("ReduceLogSumExp", ["n"], ["r"], axes=[1]),
    ]
    held = {"axis": np.array(0), "depth": np.array(6), "values": np.float32([0, 2])}
    proto = model(nodes, {"x": ["N", "M"]}, ["y", "z", "r"], held, 17)
    net = lc.load(proto.SerializeToString(), threads=1)
    for shape in ((3, 5), (1, 1), (17, 6), (6, 2), (1, 4), (40, 3)):
        x = np.random.default_rng(sum(shape)).normal(size=shape).astype("f4")
        found = net.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, err_msg=f"{name} {shape}")


LONG = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("equation", "shapes", "what"),
    [
        (",".join(LONG) + "->" + LONG, [(2,)] * 26, "26 axes.* MiB"),
        (",".join(LONG), [(1000,)] * 26, "bytes|GiB|TiB|axes"),
        ("ab,cd->abcd", [(60000, 60000)] * 2, "EiB|TiB|GiB"),
        ("ij,jk", [(2, 3)], "has 1 terms|2 terms"),
        ("ij->ij->", [(2, 3)], "expected letters"),
        ("ijk->i", [(2, 3)], "expected a letter for each axis"),
        ("i1->i", [(2, 3)], "expected a letter for each axis"),
        ("i......->i", [(2, 3)], "more letters"),
        ("ij->iq", [(2, 3)], "the letter q"),
        ("ij->ii", [(2, 3)], "each once"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "extents 3 and 4"),
        ("\u2460i->i", [(2, 3)], "ASCII"),
        ("i" * 100000, [(2, 3)], "expected a letter"),
        ("," * 100000, [(2, 3)], "terms"),
    ],
)
def test_equations_that_are_refused(equation: str, shapes: Any, what: str) -> None:
    names = {f"x{i}": shape for i, shape in enumerate(shapes)}
    each = helper.make_node("Einsum", list(names), ["y"], equation=equation)
    proto = model([each], names, ["y"], opset=12)
    with pytest.raises(LeanConvError, match=what):
        lc.load(proto.SerializeToString())


def test_bits() -> None:
    """Of an opset that ONNX Runtime does not know yet."""
    found = imported(*single("BitCast", [X], 26, to=6))["out0"]
    np.testing.assert_array_equal(found, X.view(np.int32))
    proto, given = single("BitCast", [X.view(np.int32)], 26, to=1)
    back = lc.load(proto.SerializeToString(), threads=1).run(given)["out0"]
    np.testing.assert_array_equal(back, X)


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniformLike", "Bernoulli", "Multinomial"])
def test_random_numbers_are_refused(op: str) -> None:
    refused(network([node(op, "x")], {}, 15), f"{op}.*draws random numbers")
