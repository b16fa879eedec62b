"""Elementwise kernels against float64 NumPy: every operation, shape and format."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.ops import pointwise
from leanconv.graph.ops.pointwise import UNARY, Term
from leanconv.kernels import KernelContext, elementwise
from leanconv.kernels.elementwise import Elementwise, accepts_blocked, lower
from leanconv.kernels.expression import Step
from leanconv.spec.format import Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, INT32, INT64, UINT8
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.nodes import TARGETS, Case, integers, one_node, run_in_place, run_node

ATTRIBUTES = {
    "LeakyRelu": {"alpha": 0.1},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Gelu": {"approximate": "none"},
    "Elu": {"alpha": 1.3},
    "Clip": {"min": -0.5, "max": 1.5},
    "Mod": {"fmod": True},
}
BINARY = (*pointwise.BINARY, "PRelu", "Mod")
POSITIVE = ("Sqrt", "Log", "Pow", "Reciprocal", "Div")


def numbers(*shape: int, dtype: str = "float32", positive: bool = False) -> np.ndarray:
    generator = np.random.default_rng(len(shape) * 1000 + sum(shape))
    x = generator.normal(size=shape)
    return (np.abs(x) + 0.25 if positive else x).astype(dtype)


def check(y: np.ndarray, expected: np.ndarray) -> None:
    assert y.shape == expected.shape
    eps = float(np.finfo(y.dtype).eps)
    np.testing.assert_allclose(y, expected, rtol=16 * eps, atol=4 * eps)


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("blocked", [False, True], ids=["plain", "blocked"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_every_operation(op: str, dtype: str, target: Target, blocked: bool) -> None:
    inputs = {"a": numbers(2, 19, 3, 5, dtype=dtype, positive=op in POSITIVE)}
    if op in BINARY:
        inputs["b"] = numbers(2, 19, 3, 5, dtype=dtype, positive=op in POSITIVE)[:, ::-1].copy()
    outcome = run_node(lower, op, inputs, target=target, blocked=blocked, **ATTRIBUTES.get(op, {}))
    check(outcome.y, outcome.expected)
    assert outcome.lowered.calls[0].in_place == tuple(range(len(inputs)))


SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 16383, 16384, 16385, 40001)


TERMS = (("Sub", (0, 1)), ("Less", (2, 0)), ("Mul", (2, 1)), ("Where", (3, 4, 0)), ("Abs", (5,)))


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_expressions(dtype: str, target: Target) -> None:
    """Exactly, on either side of a vector and of the wider ones, with what is spread and is not."""
    terms = tuple(Term(op, args, (), op) for op, args in TERMS)
    for number, size in enumerate(SIZES[:-1]):
        a = integers((3, size) if size < 200 else (size,), dtype, number)
        b = integers(((3, 1), (1,), (size,))[number % 3 if size < 200 else 1], dtype, number + 1)
        outcome = run_node(lower, "Expression", {"a": a, "b": b}, target=target, terms=terms)
        np.testing.assert_array_equal(outcome.y, outcome.expected)
        (call,) = outcome.lowered.calls
        assert call.in_place[:1] == (0,)
        assert call.kernel.flops == a.size * len(terms)


MIXED = (
    ("QuantizeLinear", (0, 1, 2), {"axis": 1}),  # 4, as uint8
    ("Cast", (4,), {"to": INT32}),
    ("Add", (5, 3), {}),
    ("Cast", (6,), {"to": FLOAT32}),
    ("DequantizeLinear", (4, 1, 2), {"axis": 1, "dtype": FLOAT32}),
    ("Less", (8, 7), {}),  # 9, of bool
    ("Where", (9, 7, 8), {}),
    ("Cast", (9,), {"to": INT64}),
    ("Not", (9,), {}),
    ("Cast", (12,), {"to": UINT8}),
    ("BitwiseXor", (13, 4), {}),
)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("last", [7, 8, 9, 10])  # float32, int64, bool, uint8
def test_expressions_of_several_types(last: int, target: Target) -> None:
    kept = [*range(6), *{7: [6], 8: [7], 9: [8], 10: [8, 9, 10]}[last]]
    places = {4 + n: 4 + i for i, n in enumerate(kept)}
    terms = tuple(
        Term(op, tuple(places.get(a, a) for a in args), tuple(given.items()), f"t{n}")
        for n, (op, args, given) in enumerate(MIXED)
        if n in kept
    )
    for number, shape in enumerate(
        [(1,), (7,), (9,), (33,), (129,), (3, 5, 7), (2, 19, 40), (700,)]
    ):
        channels = shape[1] if len(shape) > 1 and number % 2 else 0
        x = integers(shape, FLOAT32, number) / 2
        scale = np.arange(1, channels + 1, dtype="f4") if channels else np.array(0.5, "f4")
        zero = np.arange(channels, dtype="u1") if channels else np.array(9, "u1")
        i = integers(shape[-1:], INT32, number + 1)
        case = Case(elementwise, "Expression", [x, scale, zero, i], {"terms": terms}, (1, 2))
        np.testing.assert_array_equal(case.run(target, False), case.expected())


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("size", SIZES)
def test_flat_sizes(size: int, target: Target) -> None:
    x, z = numbers(size), numbers(size)[::-1].copy()
    outcome = run_node(lower, "Add", {"a": x, "b": z}, target=target, parts=(0.3, 0.6))
    check(outcome.y, outcome.expected)


SHAPES = [
    ((2, 3, 4, 5), (5,)),
    ((2, 3, 4, 5), (4, 1)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (2, 1, 1, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((2, 3, 4, 5), ()),
    ((2, 3, 4, 5), (1,)),
    ((2, 1, 4, 1), (1, 3, 1, 5)),
    ((1,), (7,)),
    ((), ()),
    ((5, 1), (1, 40)),
    ((40, 1), (1, 5)),
    ((3, 129), (129,)),
    ((129, 3), (3,)),
    ((300, 200), (200,)),
    ((300, 200), (300, 1)),
    ((3, 20000), (20000,)),
    ((3, 20000), (3, 1)),
    ((2, 3, 1, 9000), (3, 4, 1)),
    ((70, 9, 50), (9, 1)),
]


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], swap: bool, target: Target
) -> None:
    first, second = reversed(shapes) if swap else shapes
    a, b = numbers(*first), numbers(*second)
    outcome = run_node(lower, "Sub", {"a": a, "b": b}, target=target, parts=(0.4,))
    check(outcome.y, outcome.expected)
    outcome = run_node(lower, "Sub", {"a": a}, {"b": b}, target=target)
    check(outcome.y, outcome.expected)


BLOCKED = [
    ((2, 19, 3, 5), (19, 1, 1)),
    ((2, 19, 3, 5), (1, 19, 1, 1)),
    ((2, 19, 3, 5), (2, 19, 1, 1)),
    ((2, 19, 3, 5), (2, 1, 3, 5)),
    ((2, 19, 3, 5), (1, 1, 3, 1)),
    ((2, 19, 3, 5), (1, 19, 3, 1)),
    ((2, 19, 3, 5), (2, 1, 1, 1)),
    ((2, 19, 3, 5), (1, 1, 1, 1)),
    ((2, 1, 3, 5), (2, 1, 1, 5)),
    ((2, 33, 70), (33, 1)),
    ((1, 64, 70, 70), (1, 64, 1, 1)),
    ((3, 16, 1, 1), (3, 16, 1, 1)),
    ((2, 5, 3, 2, 4), (5, 1, 1, 1)),
]


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("shapes", BLOCKED, ids=str)
def test_broadcasting_in_blocks(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], target: Target
) -> None:
    a, b = numbers(*shapes[0]), numbers(*shapes[1])
    constant = run_node(lower, "Mul", {"a": a}, {"b": b}, blocked=True, target=target)
    check(constant.y, constant.expected)
    if b.ndim == a.ndim or b.size == 1:
        for order in ("ab", "ba"):
            outcome = run_node(
                lower,
                "Sub",
                {"a": a, "b": b},
                order=order,
                blocked=True,
                target=target,
                parts=(0.5,),
            )
            check(outcome.y, outcome.expected)


def test_plain_scalar_beside_blocks() -> None:
    outcome = run_node(lower, "Mul", {"a": numbers(2, 19, 3, 5), "b": numbers(1)}, blocked=True)
    check(outcome.y, outcome.expected)


def test_accepts_blocked_where_channels_align() -> None:
    def accepts(*shapes: tuple[int, ...], constant: bool = False) -> bool:
        arrays = {name: numbers(*s) for name, s in zip("ab", shapes, strict=False)}
        known = {"b": arrays.pop("b")} if constant else {}
        return accepts_blocked(*one_node("Add", arrays, known, "ab", {}), 16)

    image = (2, 19, 3, 5)
    assert accepts(image, image)
    assert accepts(image, (2, 19, 1, 1))
    assert accepts(image, ())
    assert accepts(image, (19, 1, 1), constant=True)
    assert not accepts(image, (19, 1, 1))
    assert not accepts(image, (5,))
    assert not accepts((4, 4), (4, 4))


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.0, 2.0, 3.0, 2.5, 0.0])
def test_constant_exponents(exponent: float) -> None:
    x = numbers(33, positive=True)
    outcome = run_node(lower, "Pow", {"x": x}, {"z": np.float32([exponent])})
    check(outcome.y, outcome.expected)
    assert len(outcome.lowered.calls[0].values) == 2


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_nan_from_either_side(op: str) -> None:
    a, b = np.float32([1, np.nan, 2, np.nan]), np.float32([np.nan, 1, 3, np.nan])
    outcome = run_node(lower, op, {"a": a, "b": b})
    np.testing.assert_array_equal(outcome.y, outcome.expected)


def test_one_value_twice_is_one_operand() -> None:
    x = numbers(40)
    outcome = run_node(lower, "Mul", {"x": x}, order="xx")
    check(outcome.y, outcome.expected)
    assert outcome.lowered.calls[0].values == ("x", "y")


def test_a_chain_of_steps() -> None:
    """sigmoid((x + z) 2) x, with no memory between the steps."""
    x, z = numbers(3, 40), numbers(3, 1)
    steps = (
        Step("Add", (0, 1)),
        Step("Mul", (3, 2)),
        Step("sigmoid", (4,)),
        Step("Mul", (5, 0)),
    )
    kernel = Elementwise(FLOAT32, (3, 40), ((40, 1), (1, 0)), (2.0,), steps)
    y = run_kernel(kernel, x, z, np.full_like(x, np.nan))
    wide = x.astype(np.float64)
    check(y, wide / (1 + np.exp(-2 * (wide + z))))


def test_constant_of_a_plain_value_is_not_copied() -> None:
    table = numbers(3, 40)
    node, graph = one_node("Add", {"x": numbers(3, 40)}, {"t": table}, "xt", {})
    lowered = lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, host()))
    assert np.shares_memory(next(iter(lowered.constants.values())), table)


def test_loops_stay_short_and_call_nothing() -> None:
    for name in ("neoverse-n1", "icelake-server", "haswell"):
        target = preset(name)
        for op in ("Relu", "Add", "Pow", "Gelu"):
            inputs = {"a": numbers(1, 35, 9, 9)}
            if op in BINARY:
                inputs["b"] = numbers(1, 35, 1, 1)
            node, graph = one_node(op, inputs, {}, tuple(inputs), ATTRIBUTES.get(op, {}))
            block = Format(target.lanes(FLOAT32))
            lowered = lower(KernelContext(node, graph, dict.fromkeys("aby", block), target))
            text = assembly(lowered.calls[0].kernel, target)
            assert "call" not in text
            assert "\tbl\t" not in text
            assert len(text.splitlines()) < 500


@pytest.mark.parametrize("index", [0, 1])
def test_in_place(index: int) -> None:
    x, z = numbers(3, 40, 50), numbers(3, 40, 50)[::-1].copy()
    outcome = run_node(lower, "Sub", {"x": x, "z": z})
    np.testing.assert_array_equal(run_in_place(outcome, index, x, z), outcome.y)
    bias = numbers(40, 1)
    outcome = run_node(lower, "Sub", {"x": x, "z": bias})
    assert outcome.lowered.calls[0].in_place == (0,)
    np.testing.assert_array_equal(run_in_place(outcome, 0, x, bias), outcome.y)
