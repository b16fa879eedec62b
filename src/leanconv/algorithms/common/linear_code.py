"""Linear programs as vector code: the transforms of Winograd and of Fourier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.math import negate
from leanconv.winograd.program import LinearProgram, Op


def emit_program(
    e: Function,
    program: LinearProgram,
    load: Callable[[int], Value],
    store: Callable[[int, Value], None],
) -> None:
    """Emit a straight-line program on vectors; constants are rounded to the vectors' type;
    integers are modulo 2^bits.

    Args:
        e: the function to append to.
        program: with an input at least that is read.
        load: gives an input; called once for each that is read, just before its first use.
        store: takes an output; called as soon as it is known.
    """
    known: dict[int, Value] = {}
    wanted: dict[int | None, list[int]] = {}
    for number, output in enumerate(program.outputs):
        wanted.setdefault(output, []).append(number)

    def value(number: int) -> Value:
        if number not in known:
            assert number < program.inputs
            known[number] = load(number)
        return known[number]

    for number in range(program.inputs + len(program.ops)):
        if number >= program.inputs:
            op = program.ops[number - program.inputs]
            known[number] = _emit(e, op, value(op.a), value(op.b))
        for output in wanted.get(number, ()):
            store(output, value(number))
    for output in wanted.get(None, ()):
        store(output, e.zero(next(iter(known.values())).kind))


def _emit(e: Function, op: Op, a: Value, b: Value) -> Value:
    if op.kind == "add":
        return a + b
    if op.kind == "sub":
        return a - b
    if op.kind == "neg":
        return negate(e, a)
    if not a.is_float:
        return _of_integers(op, a, b)
    constant = e.const(a.kind, float(op.constant))
    if op.kind == "mul":
        return a * constant
    return e.fma(a, constant, b if op.kind == "fma" else negate(e, b))


def _of_integers(op: Op, a: Value, b: Value) -> Value:
    """A product with an integer, and a sum with it."""
    assert op.constant.denominator == 1, "a fraction of an integer"
    constant = int(op.constant)
    if op.kind == "mul":
        return a * constant
    if op.kind == "fms":
        return a * constant - b
    return b - a * -constant if constant < 0 else a * constant + b


def emit_values(e: Function, program: LinearProgram, inputs: Sequence[Value]) -> list[Value]:
    """Emit a program whose inputs are known; return its outputs."""
    values = [e.zero(inputs[0].kind)] * len(program.outputs)
    if any(output is not None for output in program.outputs):
        emit_program(e, program, inputs.__getitem__, values.__setitem__)
    return values
