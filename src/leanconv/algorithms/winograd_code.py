"""Linear programs of the transforms as vector code."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.codegen.emitter import Function, Value
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
        else:
            known.append(e.fma(a, e.const(kind, float(op.constant)), b))
    return [e.zero(kind) if i is None else known[i] for i in program.outputs]
