"""LSTM, GRU and RNN: one product of all steps' inputs, then the steps themselves.

X (T, N, I)  ->  X W^T + Wb + Rb  (T, N, directions * gates * H)  ->  Recurrence
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops.base import check_rank
from leanconv.graph.ops.recurrent import GATE_FUNCTIONS, GATES, RESULTS, Cell, Gate
from leanconv.graph.value import Value
from leanconv.types import INT32

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_DEFAULTS = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
# Functions that have an alpha, a beta, and what these are where none is given.
_ALPHA = {
    "LeakyRelu": 0.01,
    "ThresholdedRelu": 1.0,
    "HardSigmoid": 0.2,
    "Elu": 1.0,
    "Affine": 1.0,
    "ScaledTanh": 1.0,
}
_BETA = {"HardSigmoid": 0.5, "Affine": 0.0, "ScaledTanh": 1.0}
_NAMES = {name.lower(): name for name in GATE_FUNCTIONS}


def _recurrent(call: Call) -> list[Value]:
    """All three: they differ in their gates, their states and what a step computes."""
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
    product = call.emit(
        "Gemm", [flat, matrix, added], transA=False, transB=True, alpha=1.0, beta=1.0
    )
    product = call.reshape(product, (steps, batch, directions * rows))
    lengths = _lengths(call, batch)
    states = [_state(call, 5), _state(call, 6) if call.node.op == "LSTM" else None]
    peepholes = call.optional(7) if call.node.op == "LSTM" else None
    names = [name for name, used in zip(RESULTS, call.node.outputs, strict=False) if used]
    found = call.emit_all(
        "Recurrence",
        [product, recurrent, *states, peepholes, behind, lengths],
        cells=cells,
        results=tuple(names),
    )
    made = dict(zip(names, found, strict=True))
    if call.flag("layout"):
        perms = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
        made = {n: call.emit("Transpose", [v], perm=perms[n]) for n, v in made.items()}
    return [made.get(name, product) for name in RESULTS]


def _cells(call: Call) -> tuple[Cell, ...]:
    """What each direction computes."""
    kind, direction = call.node.op, call.attribute("direction", "forward")
    if direction not in _DIRECTIONS:
        raise ModelError(f"direction is {direction!r}; expected {', '.join(_DIRECTIONS)}")
    reversals = _DIRECTIONS[direction]
    count = len(_DEFAULTS[kind])
    names = call.attribute("activations", _DEFAULTS[kind] * len(reversals))
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
        alpha = next(left, _ALPHA[name]) if name in _ALPHA else 0.0
        beta = next(right, _BETA[name]) if name in _BETA else 0.0
        made.append(Gate(name, alpha, beta))
    return made


def _biases(call: Call, cell: Cell, directions: int, hidden: int) -> tuple[Value | None, ...]:
    """What is added to the input's product, and to a GRU's last recurrent product alone."""
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
    return Rule(
        _recurrent, {**common, **kinds}, 3, inputs, running=None, outputs=outputs, older=old
    )


RULES: dict[str, Rule] = {
    "LSTM": _rule(8, 3, input_forget="int"),
    "GRU": _rule(6, 2, linear_before_reset="int"),
    "RNN": _rule(6, 2),
}
