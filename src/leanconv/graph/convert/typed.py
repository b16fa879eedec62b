"""Operations between types: casts, comparisons, logic, selection, places of extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import narrow_codes
from leanconv.graph.convert.elementwise import aligned
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops.base import check_rank
from leanconv.graph.ops.typed import COMPARISONS, LOGIC
from leanconv.graph.value import Value
from leanconv.types import BFLOAT16, BOOL, FLOAT32, INT8, INT64, UINT8, DType


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
        x = call.cast(x, FLOAT32)
        saturate, mode = call.flag("saturate", 1), call.attribute("round_mode", "up")
        codes = narrow_codes.encoded(call, x, kind, saturate, mode)
    return call.builder.as_narrow(codes, kind)


def _cast(call: Call) -> list[Value]:
    """Change the dtype; float32, and float16 once rounded, are in the dtype of the network."""
    target = call.attribute("to", None)
    if call.node.op == "CastLike":
        target = call.declared(1)
    if target is None:
        raise ModelError("attribute to is missing; expected a data type")
    if target == BFLOAT16:
        codes = narrow_codes.to_bfloat16(call, widened(call))
        return [narrow_codes.from_bfloat16(call, codes, call.builder.single)]
    if target.held != target:
        same = call.declared(0) == target
        return [call.value() if same else narrowed(call, widened(call), target)]
    x, builder = widened(call), call.builder
    if builder.is_promoted(target):
        x = call.emit("Cast", [x], to=target)
    target = builder.kept(target)
    return [call.cast(x, target)]


def _bit_cast(call: Call) -> list[Value]:
    """Take the bits as another dtype; float32 must be the dtype in which the network computes."""
    x, target = call.value(), call.attribute("to", None)
    if target is None:
        raise ModelError("attribute to is missing; expected a data type")
    if FLOAT32 in (x.type.dtype, target) and call.builder.single != FLOAT32:
        raise UnsupportedError("takes bits of float32, which is float64 here; load with float32")
    same = x.type.dtype == target
    op = "Cast" if x.type.dtype == BOOL and target in (INT8, UINT8) else "BitCast"
    return [x if same else call.emit(op, [x], to=target)]


def _alike(call: Call) -> tuple[Value, Value]:
    """Two inputs of one dtype, broadcast as the opset says."""
    a, b = call.value(0), aligned(call)
    if a.type.dtype != b.type.dtype:
        raise ModelError(
            f"got inputs of {a.type.dtype} and {b.type.dtype}; expected one dtype for both; insert "
            "a Cast"
        )
    return a, b


def _same(op: str) -> Callable[[Call], list[Value]]:
    """An operation of two inputs of one dtype, without attributes."""

    def convert(call: Call) -> list[Value]:
        return [call.emit(op, _alike(call))]

    return convert


def _plain(call: Call) -> list[Value]:
    """An operation that the normal form has under the same name, without attributes."""
    return [call.emit(call.node.op, [call.value(index) for index in range(len(call))])]


def _modulo(call: Call) -> list[Value]:
    a, b = _alike(call)
    return [call.emit("Mod", [a, b], fmod=call.flag("fmod"))]


def _shift(call: Call) -> list[Value]:
    direction = call.attribute("direction", None)
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"attribute direction is {direction!r}; expected LEFT or RIGHT")
    return [call.emit("BitShift", _alike(call), left=direction == "LEFT")]


def _infinite(call: Call) -> list[Value]:
    positive, negative = call.flag("detect_positive", 1), call.flag("detect_negative", 1)
    return [call.emit("IsInf", [call.value()], positive=positive, negative=negative)]


def _place(call: Call) -> list[Value]:
    """ArgMax and ArgMin."""
    x = call.value()
    attributes = {
        "axis": call.axis(call.attribute("axis", 0), len(x.shape)),
        "keepdims": call.flag("keepdims", 1),
        "last": call.flag("select_last_index"),
    }
    return [call.emit(call.node.op, [x], **attributes)]


def _top(call: Call) -> Sequence[Value]:
    """TopK, whose k is an attribute before opset 10."""
    x = call.value()
    check_rank(x.type, 1, len(x.shape))
    if call.opset < 10:
        k = call.attribute("k", None)
    elif call.builder.bounds and call.value(1).array is None:
        k = x.shape[call.axis(call.attribute("axis", -1), len(x.shape))]
    else:
        k = call.scalar(1)
    if k is None or isinstance(k, float):
        raise ModelError(f"k is {k}; expected an integer")
    attributes = {
        "axis": call.axis(call.attribute("axis", -1), len(x.shape)),
        "k": k,
        "largest": call.flag("largest", 1),
        "sorted": call.flag("sorted", 1),
    }
    return call.emit_all("TopK", [x], **attributes)


_BROADCAST = Older(7, {"axis": "int", "broadcast": "int"})
_TO_FLOAT8 = {"saturate": "int", "round_mode": "string"}


def _two(op: str, since: int, gives: DType | None) -> Rule:
    return Rule(_same(op), {}, 2, 2, running=None, since=since, older=_BROADCAST, gives=gives)


_CASTS: dict[str, Any] = {"moves": True, "narrow": True}
_EACH: dict[str, Rule] = {
    "Cast": Rule(_cast, {"to": "element type", **_TO_FLOAT8}, **_CASTS),
    "BitCast": Rule(_bit_cast, {"to": "dtype"}, since=26),
    **{
        op: _two(op, since=12 if op.endswith("OrEqual") else 1, gives=BOOL)
        for op in (*COMPARISONS, *LOGIC)
    },
    "Mod": Rule(_modulo, {"fmod": "int"}, 2, 2, running=None, since=10),
    "Where": Rule(_plain, {}, 3, 3, running=None, since=9, moves=True),
    **{f"Bitwise{op}": _two(f"Bitwise{op}", since=18, gives=None) for op in LOGIC},
    "BitwiseNot": Rule(_plain, since=18),
    "BitShift": Rule(_shift, {"direction": "string"}, 2, 2, running=None, since=11),
    "Not": Rule(_plain, gives=BOOL),
    "IsNaN": Rule(_plain, since=9, gives=BOOL),
    "IsInf": Rule(
        _infinite, {"detect_negative": "int", "detect_positive": "int"}, since=10, gives=BOOL
    ),
}
_PLACE = {"axis": "int", "keepdims": "int", "select_last_index": "int"}
RULES: dict[str, Rule] = {
    **{op: replace(rule, follows="each") for op, rule in _EACH.items()},
    "CastLike": Rule(_cast, _TO_FLOAT8, 2, 2, running=(0, 1), typed=(1,), since=15, **_CASTS),
    "ArgMax": Rule(_place, _PLACE, gives=INT64),
    "ArgMin": Rule(_place, _PLACE, gives=INT64),
    "TopK": Rule(
        _top,
        {"axis": "int", "k": "int", "largest": "int", "sorted": "int"},
        1,
        2,
        moved=(10, ("k",)),
        outputs=2,
    ),
}
