"""MatMul, Gemm, and Einsum as transpositions, products and sums of two operands at a time.

An operand of Einsum is a value with a letter for each axis. Before products, an axis of extent 1
where others have more is dropped, as it is broadcast; a letter twice in one operand is its
diagonal; and a letter that nothing else has, and that the result lacks, is summed over. Of the
operands that are left those two are joined next whose product is the smallest, until one is left.
Their letters are in both and kept (a batch), in both and summed over, or in one of them: with
letters of the last kind that is a product of matrices, else one element by element.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.packed_weights import product_of_codes
from leanconv.graph.convert.reductions import sum_over
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops import infer
from leanconv.graph.ops.base import MAX_RANK, same_dtype
from leanconv.graph.value import Value
from leanconv.records import dataclass
from leanconv.types import FLOATS, INT32, INT64
from leanconv.units import format_bytes, shape_text

MOST_OPERANDS = 64
MOST_BYTES = 1 << 34  # of a product on the way
_LETTERS = frozenset(string.ascii_letters)


@dataclass(frozen=True)
class Operand:
    """A value whose axes have letters, each once."""

    value: Value
    letters: str

    def extent(self, letter: str) -> int:
        """Return the extent of a letter's axis."""
        return self.value.shape[self.letters.index(letter)]


def _einsum(call: Call) -> list[Value]:
    values = [call.value(index) for index in range(len(call))]
    if len(values) > MOST_OPERANDS:
        raise UnsupportedError(f"got {len(values)} inputs; expected at most {MOST_OPERANDS}")
    dtype = same_dtype([value.type for value in values])
    if dtype not in (*FLOATS, INT32, INT64):
        values = [call.cast(value, INT32 if dtype.bytes < 4 else INT64) for value in values]
    terms, result = _parsed(call.attribute("equation", ""), values)
    extents = _extents(terms, values)
    operands = [
        _single(call, value, term, extents) for value, term in zip(values, terms, strict=True)
    ]
    if missing := [letter for letter in result if letter not in extents]:
        raise ModelError(f"the result has the letter {missing[0]}; expected one of the inputs")
    operands = [
        _summed(call, each, result, [o for o in operands if o is not each]) for each in operands
    ]
    while len(operands) > 1:
        first, second = _next_pair(operands, result, extents)
        others = [each for each in operands if each is not first and each is not second]
        wanted = set(result).union(*(each.letters for each in others))
        operands = [*others, _joined(call, first, second, wanted)]
    return [call.cast(_in_order(call, operands[0], result, extents), dtype)]


def _parsed(equation: str, values: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of each input and of the result; dots become characters of their own.

    Raises:
        ModelError: the equation is none, or is not for these inputs.
    """
    if not equation.isascii():
        raise ModelError(f"the equation {equation[:80]!r} is no ASCII text; expected letters")
    given, arrow, result = equation.replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != len(values):
        raise ModelError(
            f"the equation {equation[:80]!r} has {len(terms)} terms; expected {len(values)}"
        )
    dotted = max(
        (len(v.shape) - len(t) + 3 for t, v in zip(terms, values, strict=True) if "..." in t),
        default=0,
    )
    if not 0 <= dotted <= MAX_RANK:
        raise ModelError(f"the equation {equation[:80]!r} has more letters than an input has axes")
    dots = "".join(map(chr, range(0x2460, 0x2460 + dotted)))  # a character for each axis
    made = []
    for term, value in zip(terms, values, strict=True):
        left = len(value.shape) - (len(term) - 3)
        term = term.replace("...", dots[dotted - left :] if left > 0 else "", 1)
        if len(term) != len(value.shape) or not set(term) <= _LETTERS | set(dots):
            raise ModelError(
                f"the equation {equation[:80]!r} has the term {term[:40]!r} for {value.type}; "
                "expected a letter for each axis, or ..."
            )
        made.append(term)
    if not arrow:
        counts = Counter("".join(made))
        result = dots + "".join(sorted(c for c, n in counts.items() if n == 1 and c in _LETTERS))
    else:
        result = result.replace("...", dots, 1)
    if not set(result) <= _LETTERS | set(dots) or len(set(result)) != len(result):
        raise ModelError(
            f"the equation {equation[:80]!r} gives {result[:40]!r}; expected letters, each once"
        )
    return made, result


def _extents(terms: Sequence[str], values: Sequence[Value]) -> dict[str, int]:
    """The extent of each letter: those of an input are equal, or 1.

    Raises:
        ModelError: the extents of a letter differ.
    """
    found: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        for letter, extent in zip(term, value.shape, strict=True):
            known = found.setdefault(letter, extent)
            if known == 1:
                found[letter] = extent
            elif extent not in (1, known):
                raise ModelError(
                    f"the letter {letter} has extents {known} and {extent}; expected equal ones"
                )
    return found


def _single(call: Call, x: Value, term: str, extents: dict[str, int]) -> Operand:
    """An input, each letter once: diagonals, and without axes that are broadcast."""
    pairs = list(zip(term, x.shape, strict=True))
    kept = [(letter, extent) for letter, extent in pairs if extent != 1 or extents[letter] == 1]
    x = call.reshape(x, [extent for _, extent in kept])
    letters = "".join(letter for letter, _ in kept)
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            others = [i for i in range(len(letters)) if i not in (first, second)]
            x = call.emit("Transpose", [x], perm=(*others, first, second))
            *outer, extent, _ = x.shape
            x = call.reshape(x, (*outer, extent * extent))
            sizes = (*outer, extent)
            steps = (*(1,) * len(outer), extent + 1)
            x = call.emit("Slice", [x], starts=(0,) * len(sizes), steps=steps, sizes=sizes)
            letters = "".join(letters[i] for i in others) + letter
    return Operand(x, letters)


def _summed(call: Call, x: Operand, result: str, others: Sequence[Operand]) -> Operand:
    """Sum an operand over the letters that nothing else has."""
    wanted = set(result).union(*(each.letters for each in others))
    axes = tuple(i for i, letter in enumerate(x.letters) if letter not in wanted)
    if not axes:
        return x
    letters = "".join(letter for letter in x.letters if letter in wanted)
    return Operand(sum_over(call, x.value, axes, False), letters)


def _next_pair(
    operands: Sequence[Operand], result: str, extents: dict[str, int]
) -> tuple[Operand, Operand]:
    """The two operands whose product has the fewest elements, of equals the first."""

    def size(pair: tuple[Operand, Operand]) -> int:
        wanted = set(result)
        for other in operands:
            if other is not pair[0] and other is not pair[1]:
                wanted.update(other.letters)
        kept = [c for c in {*pair[0].letters, *pair[1].letters} if c in wanted]
        return math.prod(extents[c] for c in kept)

    if len(operands) > 8:  # one after the other
        return operands[0], operands[1]
    return min(combinations(operands, 2), key=size)


def _joined(call: Call, a: Operand, b: Operand, wanted: Collection[str]) -> Operand:
    """The product of two operands, summed over the letters that are not wanted."""
    both = [letter for letter in a.letters if letter in b.letters]
    batch = [letter for letter in both if letter in wanted]
    inner = [letter for letter in both if letter not in wanted]
    rows = [letter for letter in a.letters if letter not in both]
    columns = [letter for letter in b.letters if letter not in both]
    _check(a, b, [*batch, *rows, *columns])
    if inner and (rows or columns) and a.value.type.dtype in FLOATS:
        left = _grouped(call, a, batch, rows, inner)
        right = _grouped(call, b, batch, inner, columns)
        y = call.emit("MatMul", [left, right])
        letters = (*batch, *rows, *columns)
        shape = [(a if c in a.letters else b).extent(c) for c in letters]
        return Operand(call.reshape(y, shape), "".join(letters))
    letters = (*batch, *rows, *columns, *inner)
    _check(a, b, letters)
    y = call.emit("Mul", [_spread(call, a, letters), _spread(call, b, letters)])
    first = len(letters) - len(inner)
    if inner:
        y = sum_over(call, y, tuple(range(first, len(letters))), False)
    return Operand(y, "".join(letters[:first]))


def _check(a: Operand, b: Operand, letters: Sequence[str]) -> None:
    """Refuse a product that is too large.

    Raises:
        UnsupportedError: the product would have too many axes or bytes.
    """
    shape = tuple((a if c in a.letters else b).extent(c) for c in letters)
    size = math.prod(shape) * a.value.type.dtype.bytes
    if len(shape) > MAX_RANK or size > MOST_BYTES:
        raise UnsupportedError(
            f"multiplies {a.value.type} and {b.value.type}, which makes {len(shape)} axes "
            f"{shape_text(shape)[:100]} and {format_bytes(size)}; expected at most {MAX_RANK} axes "
            f"and {format_bytes(MOST_BYTES)}; sum over more letters before"
        )


def _grouped(
    call: Call, x: Operand, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Value:
    """The operand as (batch..., rows, columns)."""
    order = (*batch, *rows, *columns)
    y = call.emit("Transpose", [x.value], perm=tuple(map(x.letters.index, order)))
    two = (math.prod(map(x.extent, rows)), math.prod(map(x.extent, columns)))
    return call.reshape(y, (*map(x.extent, batch), *two))


def _spread(call: Call, x: Operand, letters: Sequence[str]) -> Value:
    """The operand with an axis for each letter, of extent 1 where it has none."""
    own = [letter for letter in letters if letter in x.letters]
    y = call.emit("Transpose", [x.value], perm=tuple(map(x.letters.index, own)))
    return call.reshape(y, [x.extent(c) if c in x.letters else 1 for c in letters])


def _in_order(call: Call, x: Operand, result: str, extents: dict[str, int]) -> Value:
    """The last operand with its axes in the result's order, broadcast where it has none."""
    y = _spread(call, x, result)
    return call.emit("Expand", [y], shape=tuple(extents[letter] for letter in result))


def _matmul(call: Call) -> list[Value]:
    a, b = call.value(0), call.value(1)
    return [product_of_codes(call, a, b, 0) or call.emit("MatMul", [a, b])]


def _gemm(call: Call) -> list[Value]:
    inputs = [call.value(0), call.value(1)]
    added = call.optional(2)
    if added is not None:
        inputs.append(added)
    attributes: dict[str, Any] = {
        "transA": call.flag("transA"),
        "transB": call.flag("transB"),
        "alpha": call.attribute("alpha", 1.0),
        "beta": call.attribute("beta", 1.0),
    }
    (result,) = infer("Gemm", [value.type for value in inputs], attributes)
    if added is not None and result.elements and not inputs[0].type.elements:
        scaled = call.emit("Mul", [added, call.number(attributes["beta"], added)])
        return [call.emit("Expand", [scaled], shape=result.shape)]
    plain = not attributes["transA"] and attributes["alpha"] == 1
    y = product_of_codes(call, inputs[0], inputs[1], int(attributes["transB"])) if plain else None
    if y is None:
        return [call.emit("Gemm", inputs, **attributes)]
    if added is None or not attributes["beta"]:
        return [y]
    if attributes["beta"] != 1:
        added = call.emit("Mul", [added, call.number(attributes["beta"], added)])
    return [call.emit("Add", [y, added])]


RULES: dict[str, Rule] = {
    "Einsum": Rule(_einsum, {"equation": "string"}, 1, 1 << 31, None, since=12, products=True),
    "Gemm": Rule(
        _gemm,
        {"transA": "int", "transB": "int", "alpha": "float", "beta": "float"},
        2,
        3,
        running=None,
        older=Older(7, {"broadcast": "int"}),
        products=True,
    ),
    "MatMul": Rule(_matmul, {}, 2, 2, running=None, products=True),
}
