"""A file's values from and to element types of at most 8 bits: see `graph.narrow_codes`."""

from __future__ import annotations

from leanconv.graph import float_codes, narrow_codes
from leanconv.graph.convert.rule import Call
from leanconv.graph.value import Value
from leanconv.types import FLOAT32, DType


def widened(call: Call, index: int = 0) -> Value:
    """An input as a value of a type that networks compute in: a narrow float as a float."""
    x, kind = call.value(index), call.declared(index)
    if kind.held == kind:
        return x
    if not kind.is_float:
        return call.emit("Cast", [x], to=kind.held)  # a value that is known as nothing else
    single = call.builder.single
    numbers = call.fold(lambda: narrow_codes.table(kind).astype(single), (256,), single)
    return narrow_codes.decoded(call, x, numbers)


def narrowed(call: Call, x: Value, kind: DType) -> Value:
    """A value as codes of a narrow type, as the node's attributes say."""
    if not kind.is_float:
        codes = narrow_codes.wrapped(call, x, kind)
    else:
        x = float_codes.cast(call, x, FLOAT32)
        saturate, mode = call.flag("saturate", 1), call.attribute("round_mode", "up")
        codes = narrow_codes.encoded(call, x, kind, saturate, mode)
    return call.builder.as_narrow(codes, kind)
