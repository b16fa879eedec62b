"""LSTM, GRU and RNN: one product of all steps' inputs, then the steps themselves.

X (T, N, I)  ->  X W^T + Wb + Rb  (T, N, directions * gates * H)  ->  Recurrence

Layers of opset 27 that hand a state from one call to the next are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.elementwise import floating
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.convert.windows import convolution
from leanconv.graph.ops.base import check_rank
from leanconv.graph.ops.recurrent import (
    GATE_FUNCTIONS,
    GATES,
    RESULTS,
    USUAL_FUNCTIONS,
    Cell,
    Gate,
)
from leanconv.graph.value import Value
from leanconv.types import INT32

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
MOST_STEPS = 128  # of a recurrence, each a dozen nodes
_RULES = ("linear", "gated", "delta", "gated_delta")


_NAMES = {name.lower(): name for name in GATE_FUNCTIONS}


# Multiplies rows by a matrix (columns, size) and adds a bias, if there is one.
Multiply = Callable[[Value, Value, Value | None], Value]


def _recurrent(call: Call) -> list[Value]:
    """Convert LSTM, GRU and RNN: they differ in gates, states and the computation of a step."""

    def multiply(rows: Value, matrix: Value, added: Value | None) -> Value:
        how = {"transA": False, "transB": True, "alpha": 1.0, "beta": 1.0}
        return call.emit("Gemm", [rows, matrix, added], **how)

    return layers(call, multiply)


def layers(call: Call, multiply: Multiply, coded: Sequence[Value | None] = ()) -> list[Value]:
    """Recurrent layers.

    Args:
        call: the node.
        multiply: computes the input's product.
        coded: scales and zero points (directions, gates * H) of recurrent weights that are codes.
    """
    x, weights, recurrent = (call.value(index) for index in range(3))
    for index, value in enumerate((x, weights, recurrent)):
        check_rank(value.type, 3, 3, f"input {index}")
    cells = _cells(call)
    if call.flag("layout"):
        x = call.emit("Transpose", [x], perm=(1, 0, 2))
    (steps, batch, size), (directions, rows, hidden) = x.shape, recurrent.shape
    wanted = (len(cells), GATES[call.node.op] * hidden, size)
    if weights.shape != wanted or recurrent.shape != (*wanted[:2], hidden):
        raise ModelError(
            f"got {x.type}, weights {weights.type} and recurrent weights {recurrent.type} for "
            f"{len(cells)} direction(s); expected {GATES[call.node.op]} gates of hidden_size rows"
        )
    if steps < 1:
        raise UnsupportedError(
            "the sequence has no steps; expected at least one; bind a longer one"
        )
    if call.attribute("hidden_size", hidden) != hidden:
        raise ModelError(
            f"attribute hidden_size is {call.attribute('hidden_size', None)}; expected {hidden}, "
            "as the recurrent weights have"
        )
    added, behind = _biases(call, cells[0], directions, hidden)
    flat = call.reshape(x, (steps * batch, size))
    matrix = call.reshape(weights, (directions * rows, size))
    product = call.reshape(multiply(flat, matrix, added), (steps, batch, directions * rows))
    lengths = _lengths(call, batch)
    states = [_state(call, 5), _state(call, 6) if call.node.op == "LSTM" else None]
    peepholes = call.optional(7) if call.node.op == "LSTM" else None
    names = [name for name, used in zip(RESULTS, call.node.outputs, strict=False) if used]
    found = call.emit_all(
        "Recurrence",
        [product, recurrent, *states, peepholes, behind, lengths, *coded],
        cells=cells,
        results=tuple(names),
    )
    made = dict(zip(names, found, strict=True))
    if call.flag("layout"):
        perms = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
        made = {n: call.emit("Transpose", [v], perm=perms[n]) for n, v in made.items()}
    return [made.get(name, product) for name in RESULTS]


def _cells(call: Call) -> tuple[Cell, ...]:
    """Return the cell of each direction."""
    kind, direction = call.node.op, call.attribute("direction", "forward")
    if direction not in _DIRECTIONS:
        raise ModelError(f"direction is {direction!r}; expected {', '.join(_DIRECTIONS)}")
    reversals = _DIRECTIONS[direction]
    functions = USUAL_FUNCTIONS[kind]
    count = len(functions)
    names = call.attribute("activations", functions * len(reversals))
    if len(names) != count * len(reversals):
        raise ModelError(
            f"got {len(names)} activations; expected {count} for each direction, "
            f"{count * len(reversals)}"
        )
    parameters = (call.attribute(f"activation_{name}", ()) for name in ("alpha", "beta"))
    gates = _gates(names, *parameters)
    clip = call.attribute("clip", math.inf)
    if not clip > 0:
        raise ModelError(f"attribute clip is {clip}; expected a positive number")
    return tuple(
        Cell(
            kind,
            tuple(gates[count * number : count * (number + 1)]),
            clip,
            call.flag("input_forget"),
            call.flag("linear_before_reset"),
            reverse,
        )
        for number, reverse in enumerate(reversals)
    )


def _gates(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Gate]:
    """Activation functions; parameters are listed for those alone that have them."""
    left, right = iter(alphas), iter(betas)
    made = []
    for given in names:
        name = _NAMES.get(given.lower())
        if name is None:
            raise UnsupportedError(
                f"the activation {given!r} is not supported; expected one of "
                f"{', '.join(GATE_FUNCTIONS)}"
            )
        _, usual = GATE_FUNCTIONS[name]
        made.append(Gate(name, *map(next, (left, right), usual)))
    return made


def _biases(call: Call, cell: Cell, directions: int, hidden: int) -> tuple[Value | None, ...]:
    """Return the bias of the input's product, and that of a GRU's last recurrent product alone."""
    both = call.optional(3)
    if both is None:
        return None, None
    rows = GATES[cell.kind] * hidden
    if both.shape != (directions, 2 * rows):
        raise ModelError(f"the bias is {both.type}; expected {directions} x {2 * rows}")

    def part(value: Value, start: int, size: int) -> Value:
        return call.emit(
            "Slice", [value], starts=(0, start), steps=(1, 1), sizes=(directions, size)
        )

    own, recurrent = part(both, 0, rows), part(both, rows, rows)
    if not (cell.kind == "GRU" and cell.linear_before_reset):
        return call.reshape(call.emit("Add", [own, recurrent]), (directions * rows,)), None
    early = call.emit("Add", [part(own, 0, 2 * hidden), part(recurrent, 0, 2 * hidden)])
    added = call.emit("Concat", [early, part(own, 2 * hidden, hidden)], axis=1)
    return call.reshape(added, (directions * rows,)), part(recurrent, 2 * hidden, hidden)


def _lengths(call: Call, batch: int) -> Value | None:
    """The sequences' lengths, None if there are none."""
    lengths = call.optional(4)
    if lengths is not None and (lengths.type.dtype != INT32 or lengths.shape != (batch,)):
        raise ModelError(f"sequence_lens is {lengths.type}; expected one int32 for each sequence")
    return lengths


def _state(call: Call, index: int) -> Value | None:
    """An initial state as (directions, N, H), None if it is zero."""
    state = call.optional(index)
    if state is None or not call.flag("layout"):
        return state
    check_rank(state.type, 3, 3, f"input {index}")
    return call.emit("Transpose", [state], perm=(1, 0, 2))


def _rule(inputs: int, outputs: int, **kinds: str) -> Rule:
    common = {
        "activation_alpha": "floats",
        "activation_beta": "floats",
        "activations": "strings",
        "clip": "float",
        "direction": "string",
        "hidden_size": "int",
        "layout": "int",
    }
    old = Older(7, {"output_sequence": "int"})
    facts: dict[str, Any] = {"running": None, "products": True, "older": old}
    return Rule(_recurrent, {**common, **kinds}, 3, inputs, outputs=outputs, **facts)


def _causal_conv(call: Call) -> list[Value]:
    """A convolution of each channel over earlier elements, whose end is the next state."""
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
    """Join each step's result, (batch, groups, heads of one, width), to (batch, steps, width)."""
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
    "LSTM": _rule(8, 3, input_forget="int"),
    "GRU": _rule(6, 2, linear_before_reset="int"),
    "RNN": _rule(6, 2),
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
