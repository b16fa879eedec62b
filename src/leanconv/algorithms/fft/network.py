"""Fourier transforms of short real and complex sequences as straight-line vector code.

A transform is a network of additions, subtractions and multiplications by constants, built in
Python by the split-radix recursion in its conjugate-pair form (Kamar and Elcherif 1989)

    X[k]         = E[k]         +  (w^k O[k] + w^-k P[k])          w = e^(-2 pi i / N)
    X[k + N/2]   = E[k]         -  (w^k O[k] + w^-k P[k])
    X[k + N/4]   = E[k + N/4]   - i(w^k O[k] - w^-k P[k])
    X[k + 3N/4]  = E[k + N/4]   + i(w^k O[k] - w^-k P[k])

with E, O, P the transforms of x[2n], x[4n + 1], x[4n - 1]; for real sequences only half of the
outputs are built. Equal terms exist once, signs are moved into the additions, products that are
used once become fused multiply-adds, and what no wanted output needs is left out. The inverse of a
real transform is the transposed network: every edge reversed.

A real transform of N numbers gives N numbers, packed as [re 0, re N/2, re 1, im 1, re 2, im 2 …].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import cos, pi, sin
from typing import Literal

from leanconv.records import cached_property, dataclass
from leanconv.winograd.program import LinearProgram, Op


@dataclass(frozen=True)
class Term:
    """A node's value, perhaps negated; node -1 is zero."""

    node: int
    negative: bool = False

    def __neg__(self) -> Term:
        return Term(self.node, not self.negative) if self.node >= 0 else self


ZERO = Term(-1)


@dataclass(frozen=True)
class Node:
    """An input, `a + b`, `a - b`, or `constant * a` with a positive constant."""

    kind: Literal["input", "add", "sub", "mul"]
    a: int
    b: int = -1
    constant: float = 1.0


@dataclass(frozen=True)
class Network:
    """A linear map as nodes in the order of execution, the inputs first.

    Attributes:
        inputs: number of inputs.
        nodes: `nodes[i]` for i < inputs is input i.
        outputs: the values that the map gives.
    """

    inputs: int
    nodes: tuple[Node, ...]
    outputs: tuple[Term, ...]

    def keep(self, outputs: Sequence[int]) -> Network:
        """The network of these outputs only."""
        return Network(self.inputs, self.nodes, tuple(self.outputs[i] for i in outputs))

    @cached_property
    def operations(self) -> int:
        """Vector instructions besides loads, stores and changes of sign."""
        return sum(op.kind != "neg" for op in self.program.ops)

    def _uses(self) -> list[int]:
        """Count how often each node is read; 0 for nodes that no output needs."""
        uses = [0] * len(self.nodes)
        for term in self.outputs:
            if term.node >= 0:
                uses[term.node] += 1
        for i in range(len(self.nodes) - 1, self.inputs - 1, -1):
            node = self.nodes[i]
            if uses[i]:
                uses[node.a] += 1
                if node.b >= 0:
                    uses[node.b] += 1
        return uses

    def _fused(self, uses: list[int]) -> dict[int, int]:
        """For each product that becomes part of a multiply-add, the addition that takes it."""
        stored = {term.node for term in self.outputs}
        fused: dict[int, int] = {}
        for i, node in enumerate(self.nodes):
            if not uses[i] or node.kind not in ("add", "sub"):
                continue
            for operand in (node.b, node.a):
                product = self.nodes[operand].kind == "mul"
                if product and uses[operand] == 1 and operand not in stored:
                    fused[operand] = i
                    break
        return fused

    @cached_property
    def program(self) -> LinearProgram:
        """The network in the order of execution, without nodes that no output needs."""
        uses = self._uses()
        fused = self._fused(uses)
        numbers = {i: i for i in range(self.inputs)}
        ops: list[Op] = []
        outputs: list[int | None] = [None] * len(self.outputs)
        wanted: dict[int, list[int]] = {}
        for number, term in enumerate(self.outputs):
            wanted.setdefault(term.node, []).append(number)

        def append(op: Op) -> int:
            ops.append(op)
            return self.inputs + len(ops) - 1

        for i, node in enumerate(self.nodes):
            if not uses[i] or i in fused:
                continue
            if node.kind != "input":
                numbers[i] = append(self._op(i, fused, numbers))
            for output in wanted.get(i, ()):
                here = numbers[i]
                negative = self.outputs[output].negative
                outputs[output] = append(Op("neg", here, here)) if negative else here
        return LinearProgram(self.inputs, tuple(ops), tuple(outputs))

    def _op(self, i: int, fused: Mapping[int, int], numbers: Mapping[int, int]) -> Op:
        """A node as an operation on numbered values, with the product that is part of it."""
        node = self.nodes[i]
        assert node.kind != "input"
        a, b = numbers.get(node.a, -1), numbers.get(node.b, -1)
        if node.kind == "mul":
            return Op("mul", a, a, Fraction(node.constant))
        if fused.get(node.b) == i:
            product = self.nodes[node.b]
            constant = Fraction(product.constant if node.kind == "add" else -product.constant)
            return Op("fma", numbers[product.a], a, constant)
        if fused.get(node.a) == i:
            product = self.nodes[node.a]
            kind: Literal["fma", "fms"] = "fma" if node.kind == "add" else "fms"
            return Op(kind, numbers[product.a], b, Fraction(product.constant))
        return Op(node.kind, a, b)


class _Builder:
    """Makes nodes; equal nodes are made once."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.nodes = [Node("input", i) for i in range(inputs)]
        self._known: dict[Node, int] = {}

    def _node(self, node: Node) -> Term:
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return Term(self._known[node])

    def add(self, a: Term, b: Term) -> Term:
        if a.node < 0:
            return b
        if b.node < 0:
            return a
        if a.negative and b.negative:
            return -self.add(-a, -b)
        if a.negative:
            a, b = b, a
        if b.negative:
            opposite = self._known.get(Node("sub", b.node, a.node))
            if opposite is not None:
                return Term(opposite, True)
            return self._node(Node("sub", a.node, b.node))
        return self._node(Node("add", *sorted((a.node, b.node))))

    def sub(self, a: Term, b: Term) -> Term:
        return self.add(a, -b)

    def scale(self, constant: float, a: Term) -> Term:
        if a.node < 0 or abs(constant) < 1e-15:
            return ZERO
        if constant < 0:
            return -self.scale(-constant, a)
        if abs(constant - 1.0) < 1e-15:
            return a
        return -self._scaled(constant, -a) if a.negative else self._scaled(constant, a)

    def _scaled(self, constant: float, a: Term) -> Term:
        return self._node(Node("mul", a.node, -1, constant))

    def finish(self, outputs: Sequence[Term]) -> Network:
        return Network(self.inputs, tuple(self.nodes), tuple(outputs))


Complex = tuple[Term, Term]


def _rotated(b: _Builder, k: int, n: int, z: Complex) -> Complex:
    """z times e^(-2 pi i k / n)."""
    re, im = z
    if 8 * k in (n, -n):
        half = cos(pi / 4)
        if k > 0:
            return b.scale(half, b.add(re, im)), b.scale(half, b.sub(im, re))
        return b.scale(half, b.sub(re, im)), b.scale(half, b.add(im, re))
    c, s = cos(2 * pi * k / n), sin(2 * pi * k / n)
    return (
        b.add(b.scale(c, re), b.scale(s, im)),
        b.sub(b.scale(c, im), b.scale(s, re)),
    )


def _plus(b: _Builder, x: Complex, y: Complex) -> Complex:
    return b.add(x[0], y[0]), b.add(x[1], y[1])


def _minus(b: _Builder, x: Complex, y: Complex) -> Complex:
    return b.sub(x[0], y[0]), b.sub(x[1], y[1])


def _by_i(x: Complex) -> Complex:
    return -x[1], x[0]


def _conjugate(x: Complex) -> Complex:
    return x[0], -x[1]


def _complex(b: _Builder, x: list[Complex]) -> list[Complex]:
    n = len(x)
    if n == 1:
        return x
    if n == 2:
        return [_plus(b, *x), _minus(b, *x)]
    quarter = n // 4
    even = _complex(b, x[0::2])
    odd = _complex(b, x[1::4])
    before = _complex(b, [x[(4 * i - 1) % n] for i in range(quarter)])
    result = [(ZERO, ZERO)] * n
    for k in range(quarter):
        p, q = _rotated(b, k, n, odd[k]), _rotated(b, -k, n, before[k])
        total, rotated = _plus(b, p, q), _by_i(_minus(b, p, q))
        result[k] = _plus(b, even[k], total)
        result[k + 2 * quarter] = _minus(b, even[k], total)
        result[k + quarter] = _minus(b, even[k + quarter], rotated)
        result[k + 3 * quarter] = _plus(b, even[k + quarter], rotated)
    return result


def _real(b: _Builder, x: list[Term]) -> list[Complex]:
    """Outputs 0 … n/2 of a real sequence."""
    n = len(x)
    if n == 1:
        return [(x[0], ZERO)]
    if n == 2:
        return [(b.add(*x), ZERO), (b.sub(*x), ZERO)]
    quarter = n // 4
    even = _real(b, x[0::2])
    odd = _real(b, x[1::4])
    before = _real(b, [x[(4 * i - 1) % n] for i in range(quarter)])
    result = [(ZERO, ZERO)] * (n // 2 + 1)
    for k in range(n // 8 + 1):
        p, q = _rotated(b, k, n, odd[k]), _rotated(b, -k, n, before[k])
        total, rotated = _plus(b, p, q), _by_i(_minus(b, p, q))
        above = _conjugate(even[quarter - k])  # even[k + quarter]
        result[k] = _plus(b, even[k], total)
        result[2 * quarter - k] = _conjugate(_minus(b, even[k], total))
        if 8 * k != n:
            result[quarter + k] = _minus(b, above, rotated)
            if k:
                result[quarter - k] = _conjugate(_plus(b, above, rotated))
        else:
            result[3 * n // 8] = _minus(b, above, rotated)
    return result


def _check(n: int) -> None:
    assert n >= 4
    assert n & (n - 1) == 0, f"a transform of {n} numbers; expected a power of two"


@lru_cache(maxsize=64)
def real_forward(n: int) -> Network:
    """X[k] = sum over j of x[j] e^(-2 pi i j k / n), packed, of n real numbers."""
    _check(n)
    b = _Builder(n)
    result = _real(b, [Term(i) for i in range(n)])
    packed = [result[0][0], result[n // 2][0]]
    for z in result[1 : n // 2]:
        packed += z
    return b.finish(packed)


@lru_cache(maxsize=64)
def complex_forward(n: int) -> Network:
    """X[k] of n complex numbers; (re, im) alternate in inputs and outputs."""
    _check(n)
    b = _Builder(2 * n)
    result = _complex(b, [(Term(2 * i), Term(2 * i + 1)) for i in range(n)])
    return b.finish([part for z in result for part in z])


@lru_cache(maxsize=16)
def _complex_inverse(n: int) -> Network:
    _check(n)
    b = _Builder(2 * n)
    # Swapping real and imaginary parts, before and after, changes the sign of i.
    result = _complex(b, [(Term(2 * i + 1), Term(2 * i)) for i in range(n)])
    return b.finish([part for re, im in result for part in (im, re)])


@lru_cache(maxsize=16)
def _real_inverse(n: int) -> Network:
    return transposed(real_forward(n))


@lru_cache(maxsize=256)
def complex_inverse(n: int, kept: int) -> Network:
    """The first `kept` of x[j] = sum over k of X[k] e^(+2 pi i j k / n), not divided by n."""
    return _complex_inverse(n).keep(range(2 * kept))


@lru_cache(maxsize=256)
def real_inverse(n: int, kept: int) -> Network:
    """The transpose of `real_forward`: its inverse for packed inputs that are scaled.

    Outputs the first `kept` of x[j] = R[0] + (-1)^j R[n/2] + sum over 0 < k < n/2 of
    R[k] cos(2 pi j k / n) - I[k] sin(2 pi j k / n), which is n times the inverse transform when
    R and I are twice the real and imaginary parts for 0 < k < n/2.
    """
    return _real_inverse(n).keep(range(kept))


def transposed(network: Network) -> Network:
    """The network of the transposed matrix."""
    b = _Builder(len(network.outputs))
    sums = [ZERO] * len(network.nodes)

    def give(node: int, term: Term) -> None:
        sums[node] = b.add(sums[node], term)

    for i, output in enumerate(network.outputs):
        if output.node >= 0:
            give(output.node, -Term(i) if output.negative else Term(i))
    for i in range(len(network.nodes) - 1, network.inputs - 1, -1):
        node, term = network.nodes[i], sums[i]
        if node.kind == "mul":
            give(node.a, b.scale(node.constant, term))
        else:
            give(node.a, term)
            give(node.b, term if node.kind == "add" else -term)
    return b.finish(sums[: network.inputs])
