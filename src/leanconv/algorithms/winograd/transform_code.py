"""Linear programs of the transforms as vector code."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.math import negate
from leanconv.winograd.program import LinearProgram


def emit_program(e: Function, program: LinearProgram, inputs: Sequence[Value]) -> list[Value]:
    """Emit a straight-line program on vectors; constants are rounded to the vectors' type."""
    kind = inputs[0].kind
    known = list(inputs)
    for op in program.ops:
        a, b = known[op.a], known[op.b]
        if op.kind == "add":
            known.append(a + b)
        elif op.kind == "sub":
            known.append(a - b)
        elif op.kind == "mul":
            known.append(a * e.const(kind, float(op.constant)))
        elif op.kind == "fma":
            known.append(e.fma(a, e.const(kind, float(op.constant)), b))
        else:
            assert op.kind == "fms", f"an operation {op.kind} that is not known"
            known.append(e.fma(a, e.const(kind, float(op.constant)), negate(e, b)))
    return [e.zero(kind) if i is None else known[i] for i in program.outputs]
