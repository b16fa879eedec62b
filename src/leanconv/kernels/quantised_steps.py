"""Steps of elementwise expressions between floats and codes, the integers of quantised tensors.

    QuantizeLinear    y = clamp(rint(x / scale) + zero), also QuantizeFloats
    DequantizeLinear  y = (x - zero) * scale
    QLinearAdd        y = clamp(rint(fma(a, scale_a, fma(b, scale_b, fixed))))
    QLinearMul        y = clamp(rint((a - zero_a) * (b - zero_b) * scale + zero))

Numbers are float32 (of the first two those of the node's float type), rint goes to the even one of
two neighbours: the bits are those of `graph.ops.quantised`, and so onnxruntime's. What a code lacks
becomes its nearest number; NaN becomes the least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from leanconv.codegen.activations import clamped, rounded
from leanconv.codegen.emitter import Function, Value, lanes_of, vector
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.quantised import add_factors, along
from leanconv.target import Target
from leanconv.types import FLOAT32, INT32, DType


# -- values ---------------------------------------------------------------------------------------
def as_float(e: Function, x: Value, dtype: DType, real: DType = FLOAT32) -> Value:
    """Codes as floats: exact for as many bits as a float has."""
    if dtype.is_float:
        return x
    if dtype.bytes < INT32.bytes:  # words, whose conversion every target has
        words = vector(INT32.llvm, lanes_of(x.kind))
        x = e.convert("sext" if dtype.kind == "int" else "zext", x, words)
    return e.convert("sitofp", x, vector(real.llvm, lanes_of(x.kind)))


def as_codes(e: Function, x: Value, low: Value, high: Value, dtype: DType) -> Value:
    """The nearest codes of floats from `low` to `high`, which are codes, too; of NaN `low`."""
    found = rounded(e, clamped(e, x, low, high))
    return e.convert("trunc", found, vector(dtype.llvm, lanes_of(x.kind)))


def _quantised(e: Function, x: Value, scale: Value, zero: Value) -> Value:
    return e.unary("rint", x / scale) + zero


def _dequantised(_: Function, x: Value, scale: Value, zero: Value) -> Value:
    return (x - zero) * scale


def _added(e: Function, a: Value, b: Value, scale_a: Value, scale_b: Value, fixed: Value) -> Value:
    return e.exact_fma(a, scale_a, e.exact_fma(b, scale_b, fixed))


def _multiplied(
    _: Function, a: Value, b: Value, zero_a: Value, zero_b: Value, scale: Value, zero: Value
) -> Value:
    return (a - zero_a) * (b - zero_b) * scale + zero


# Of operands as floats; those that give codes have `low` and `high` as operands past these.
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "QuantizeLinear": _quantised,
    "QuantizeFloats": _quantised,
    "DequantizeLinear": _dequantised,
    "QLinearAdd": _added,
    "QLinearMul": _multiplied,
}
OPS = tuple(_FUNCTIONS)
_MOST_CODE = 2  # bytes
_LEAST_LINE = 256  # elements of one scale that are worth its reciprocal
_MOST_SCALE = 2.0**60  # with it, or its reciprocal, no step of a code's quotient is subnormal


def _divided(
    e: Function, x: Value, scale: Value, zero: Value, low: Value, high: Value, dtype: DType
) -> Value:
    """The codes of QuantizeLinear, of an integer as zero point: bounds of the quotient keep it."""
    bounded = clamped(e, x / scale, low - zero, high - zero)
    return _narrowed(e, rounded(e, bounded) + rounded(e, zero), dtype)


def _narrowed(e: Function, words: Value, dtype: DType) -> Value:
    """Words that a code has: bounds let LLVM pack them on x86, which bounds them at no cost."""
    words = e.smin(e.smax(words, int(dtype.low)), int(dtype.high))
    return e.convert("trunc", words, vector(dtype.llvm, lanes_of(words.kind)))


def _by_reciprocal(
    e: Function, x: Value, scale: Value, zero: Value, low: Value, high: Value, dtype: DType
) -> Value:
    """The codes of QuantizeLinear, of one scale in all lanes, by products with its reciprocal.

    What such a product lacks is exact in a fused sum. The first correction gives a neighbour of the
    quotient, and of such a one the second rounds correctly, if no step is subnormal (P. Markstein,
    Computation of elementary functions on the IBM RISC System/6000 processor, 1990). Numbers are
    bounded before, by those of the least and the largest code; NaN becomes the least.
    """
    inverse, away = 1.0 / scale, scale * -1.0
    bounded = clamped(e, x, (low - zero) * scale, (high - zero) * scale)
    quotient = bounded * inverse
    for _ in range(2):
        quotient = e.exact_fma(e.exact_fma(quotient, away, bounded), inverse, quotient)
    words = rounded(e, quotient) + rounded(e, zero)
    kind = vector(dtype.llvm, lanes_of(x.kind))
    one, result = e.extract(scale, 0), [e.convert("trunc", words, kind)]
    within = one.compare("olt", _MOST_SCALE) & one.compare("ogt", 1 / _MOST_SCALE)
    with e.when(within ^ 1, [result]):
        result[0] = as_codes(e, _quantised(e, x, scale, zero), low, high, dtype)
    return result[0]


# -- steps ----------------------------------------------------------------------------------------
def real_type(node: Node, graph: Graph) -> DType:
    """The float type in which a node is computed."""
    types = (graph.types[name].dtype for name in (node.inputs[0], node.output))
    return next((dtype for dtype in types if dtype.is_float), FLOAT32)


def operands(node: Node, graph: Graph) -> list[str | np.ndarray]:
    """Return the operands of a node's step: names of values, then arrays that broadcast."""
    attributes, real = node.attributes, real_type(node, graph)
    gives = graph.types[node.output].dtype
    low, high = attributes.get("low", gives.low), attributes.get("high", gives.high)
    bounds = [] if gives.is_float else [low, high]
    if "scales" in attributes:
        numbers = _numbers_of_two(node.op, attributes["scales"], attributes["zeros"])
        return [*node.inputs, *(np.asarray(each, FLOAT32) for each in (*numbers, *bounds))]
    x, *parameters = node.inputs
    if node.op == "QuantizeFloats":
        return [*node.inputs, *(np.asarray(each, real) for each in bounds)]
    rank, axis = len(graph.types[x].shape), attributes["axis"]
    found = [along(graph.constants[name], rank, axis).astype(real) for name in parameters]
    return [x, *found, *(np.asarray(each, real) for each in bounds)]


def _numbers_of_two(op: str, scales: Sequence[float], zeros: Sequence[int]) -> list[np.ndarray]:
    """The numbers of QLinearAdd or QLinearMul; each operation is rounded to float32."""
    if op == "QLinearAdd":
        return [*add_factors(scales, zeros)]
    a, b, y = (np.asarray(scale, FLOAT32) for scale in scales)
    zero_a, zero_b, zero = (np.asarray(zero, FLOAT32) for zero in zeros)
    with np.errstate(all="ignore"):  # scales are a file's
        return [zero_a, zero_b, np.asarray(a * b / y), zero]


def step_types(node: Node, types: Sequence[DType]) -> tuple[DType, ...]:
    """The types that `apply` takes, of those of a node's inputs and of its output."""
    return tuple(types) if "scales" in node.attributes else (types[0], types[-1])


def is_by_reciprocal(node: Node, types: Sequence[DType], line: int, target: Target) -> bool:
    """Return whether a step multiplies by reciprocals: 64-byte vectors divide in two halves.

    Args:
        node: an operation of codes or floats.
        types: of its inputs and of its output.
        line: elements side by side that have one scale.
        target: the CPU.
    """
    if _FUNCTIONS.get(node.op) != _quantised or types[0] != FLOAT32:
        return False
    return types[-1].bytes <= _MOST_CODE and target.vector_bytes >= 64 and line >= _LEAST_LINE


def apply(
    e: Function,
    op: str,
    args: Sequence[Value],
    types: Sequence[DType],
    by_reciprocal: bool = False,
) -> Value:
    """Append the code of a step.

    Args:
        e: the function under construction.
        op: one of `OPS`.
        args: x, or a and b, as registers hold them; then the numbers of the formula, floats.
        types: of x, or of a and b, and of the result.
        by_reciprocal: as `is_by_reciprocal` says.
    """
    *takes, gives = types
    real = next((dtype for dtype in types if dtype.is_float), FLOAT32)
    given, numbers = args[: len(takes)], list(args[len(takes) :])
    codes = [as_float(e, x, dtype, real) for x, dtype in zip(given, takes, strict=True)]
    if gives.is_float:
        return _FUNCTIONS[op](e, *codes, *numbers)
    if _FUNCTIONS[op] == _quantised:
        scale, zero, low, high = numbers
        divided = _by_reciprocal if by_reciprocal else _divided
        return divided(e, codes[0], scale, zero, low, high, gives)
    *numbers, low, high = numbers
    return as_codes(e, _FUNCTIONS[op](e, *codes, *numbers), low, high, gives)
