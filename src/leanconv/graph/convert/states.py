"""Layers of opset 27 that hand a state from one call to the next."""

from __future__ import annotations

import math

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.arithmetic import floating
from leanconv.graph.convert.data_weights import convolution
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ops.base import check_rank
from leanconv.graph.value import Value

MOST_STEPS = 128  # of a recurrence, each a dozen nodes
_RULES = ("linear", "gated", "delta", "gated_delta")


def _causal_conv(call: Call) -> list[Value]:
    """A convolution of each channel over what came before, whose end is the next state."""
    x, w = floating(call), call.value(1)
    check_rank(x.type, 3, 3, "input 0")
    check_rank(w.type, 3, 3, "the weight")
    activation = call.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise ModelError(f"attribute activation is {activation!r}; expected none, silu or swish")
    batch, channels, _ = x.shape
    before = w.shape[2] - 1
    past = call.optional(3)
    if past is None:
        pads = (0, 0, before, 0, 0, 0)
        padded = call.emit("Pad", [x], pads=pads, mode="constant", value=0.0) if before else x
    else:
        if past.shape != (batch, channels, before):
            raise ModelError(f"got the state {past.type}; expected {before} numbers a channel")
        padded = call.emit("Concat", [past, x], axis=2) if before else x
    attributes = {"strides": (1,), "dilations": (1,), "pads": (0, 0), "group": channels}
    y = convolution(call, padded, w, call.optional(2), attributes)
    y = y if activation == "none" else call.emit("Silu", [y])
    state = part_of(call, padded, 2, padded.shape[2] - before, 1, before)
    return [y, state][: len(call.node.outputs)]


def _linear_attention(call: Call) -> list[Value]:
    """A state S (keys x values) of each head, step by step:

        S = e^decay S;  v = beta (v - S^T k);  S = S + k v^T;  y = scale S^T q

    where `gated` rules have the first and `delta` rules the second.
    """
    rule, heads, groups = _checked_rule(call)
    q, k, v = (_by_heads(call, i, n) for i, n in enumerate((heads, groups, groups)))
    batch, _, steps, width = q.shape
    if int(steps) > MOST_STEPS:
        raise UnsupportedError(f"goes on for {steps} steps; expected at most {MOST_STEPS}")
    if k.shape != (batch, groups, steps, width) or v.shape[:3] != k.shape[:3]:
        raise ModelError(f"got queries {q.type}, keys {k.type}, values {v.type}; expected alike")
    decay = _spread(call, 4, groups) if "gated" in rule else None
    beta = _spread(call, 5, groups) if "delta" in rule else None
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(width)
    state = call.optional(3)
    shape = (batch, groups, width, v.shape[3])
    if state is None:
        state = call.emit("Expand", [call.number(0, q)], shape=shape)
    elif state.shape != shape or state.type.dtype != q.type.dtype:
        raise ModelError(f"got the state {state.type}; expected {shape} of {q.type.dtype}")
    results = []
    for step in range(int(steps)):
        column = call.reshape(part_of(call, k, 2, step, 1, 1), (batch, groups, width, 1))
        row = part_of(call, v, 2, step, 1, 1)
        if decay is not None:
            gate = call.emit("Exp", [part_of(call, decay, 2, step, 1, 1)])
            gate = call.reshape(gate, (*gate.shape[:2], gate.shape[3], 1))
            state = call.emit("Mul", [state, gate])
        if beta is not None:
            flat = call.reshape(column, (batch, groups, 1, width))
            known = call.emit("MatMul", [flat, state])
            share = part_of(call, beta, 2, step, 1, 1)
            row = call.emit("Mul", [share, call.emit("Sub", [row, known])])
        state = call.emit("Add", [state, call.emit("Mul", [column, row])])
        asked = part_of(call, q, 2, step, 1, 1)
        asked = call.reshape(asked, (batch, groups, heads // groups, width))
        results.append(call.emit("MatMul", [asked, state]))
    y = _joined(call, results, batch, heads, v.shape[3])
    y = call.emit("Mul", [y, call.number(scale, y)])
    return [y, state][: len(call.node.outputs)]


def _joined(call: Call, results: list[Value], batch: int, heads: int, width: int) -> Value:
    """What each step gave, (batch, groups, heads of one, width), as (batch, steps, width)."""
    rows = [call.reshape(each, (batch, 1, heads * width)) for each in results]
    return rows[0] if len(rows) == 1 else call.emit("Concat", rows, axis=1)


def _checked_rule(call: Call) -> tuple[str, int, int]:
    """The rule, and the heads of queries and of keys."""
    floating(call)
    rule = call.attribute("update_rule", "gated_delta")
    heads, groups = (call.attribute(f"{name}_num_heads", 0) for name in ("q", "kv"))
    if rule not in _RULES or min(heads, groups) < 1 or heads % groups:
        raise ModelError(
            f"got the rule {rule!r} and {heads} and {groups} heads; expected one of "
            f"{', '.join(_RULES)}, and a multiple of heads"
        )
    for index, what, needed in ((4, "decay", "gated" in rule), (5, "beta", "delta" in rule)):
        if (call.optional(index) is not None) != needed:
            raise ModelError(f"the rule {rule} goes {'with' if needed else 'without'} {what}")
    return rule, heads, groups


def _by_heads(call: Call, index: int, heads: int) -> Value:
    """(batch, steps, heads x width) as (batch, heads, steps, width)."""
    x = call.value(index)
    check_rank(x.type, 3, 3, f"input {index}")
    batch, steps, width = x.shape
    if not steps or width % heads:
        raise ModelError(f"input {index} is {x.type}; expected steps, and a multiple of {heads}")
    x = call.reshape(x, (batch, steps, heads, width // heads))
    return call.emit("Transpose", [x], perm=(0, 2, 1, 3))


def _spread(call: Call, index: int, groups: int) -> Value:
    """A number for each step, of each head or of all."""
    x = call.value(index)
    check_rank(x.type, 3, 3, f"input {index}")
    return _by_heads(call, index, 1 if x.shape[2] == 1 else groups)


RULES: dict[str, Rule] = {
    "CausalConvWithState": Rule(
        _causal_conv, {"activation": "string"}, 2, 4, None, since=27, outputs=2
    ),
    "LinearAttention": Rule(
        _linear_attention,
        {
            **dict.fromkeys(("chunk_size", "kv_num_heads", "q_num_heads"), "int"),
            "scale": "float",
            "update_rule": "string",
        },
        3,
        6,
        None,
        since=27,
        outputs=2,
    ),
}
