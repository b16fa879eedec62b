"""Attention and rotary embeddings of opset 23 and later, as products, masks and a softmax.

    S = scale · Q K^T, capped, plus the mask;  P = softmax(S);  Y = P V          for each head

Several heads of queries that share one of keys are rows of one product: nothing is repeated. A row
whose keys are all masked gives 0: there Y is chosen, which is smaller than P.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.convert.elementwise import floating
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ops.base import broadcast, check_broadcasts_to, check_rank
from leanconv.graph.value import Value
from leanconv.records import dataclass
from leanconv.types import BOOL, FLOAT64, INT64

_DOUBLE = 11  # TensorProto.DataType.DOUBLE


@dataclass(frozen=True, eq=False)
class _Mask:
    """A mask: numbers to add to the scores, and rows in which nothing may be attended to.

    Attributes:
        bias: broadcasts to the scores, None for no mask; -infinity where masked.
        empty: of each row (..., 1), whether all of it is masked; None if no row is.
    """

    bias: Value | None = None
    empty: Value | None = None


def _attention(call: Call) -> list[Value]:
    heads = _heads(call)
    q, k, v = (_by_heads(call, index, count) for index, count in enumerate(heads))
    if len(call.value().shape) != len(call.value(1).shape):
        raise ModelError(f"got {call.value().type} and {call.value(1).type}; expected equal ranks")
    past, past_value = call.optional(4), call.optional(5)
    if past is not None and past_value is not None:
        k = call.emit("Concat", [past, k], axis=2)
        v = call.emit("Concat", [past_value, v], axis=2)
    elif past is not None or past_value is not None:
        raise ModelError("got one of past_key and past_value; expected both or none")
    batch, q_heads, rows, size = q.shape
    groups, keys = k.shape[1], k.shape[2]
    if q_heads % max(groups, 1) or v.shape[:3] != k.shape[:3] or k.shape[::3] != (batch, size):
        raise ModelError(
            f"got queries {q.type}, keys {k.type} and values {v.type} as (batch, heads, sequence, "
            "size); expected equal batches, sequences and sizes, and a multiple of heads"
        )
    scale = call.attribute("scale", None)
    scale = 1 / math.sqrt(max(size, 1)) if scale is None else scale
    scaled = call.emit("Mul", [q, call.number(scale, q)])
    joined = call.reshape(scaled, (batch, groups, q_heads // max(groups, 1) * rows, size))
    product = call.emit("MatMul", [joined, call.emit("Transpose", [k], perm=(0, 1, 3, 2))])
    raw = call.reshape(product, (batch, q_heads, rows, keys))
    capped = _capped(call, raw)
    mask = _mask(call, (batch, q_heads, rows, keys), 0 if past is None else past.shape[2])
    scores = capped if mask.bias is None else call.emit("Add", [capped, mask.bias])
    shares = _shares(call, scores)
    y = call.emit("MatMul", [call.reshape(shares, product.shape), v])
    y = call.reshape(y, (batch, q_heads, rows, v.shape[3]))
    y = _chosen(call, mask, y)
    if len(call.value().shape) == 3:
        y = call.emit("Transpose", [y], perm=(0, 2, 1, 3))
        y = call.reshape(y, (batch, rows, q_heads * v.shape[3]))
    outputs = call.node.outputs
    results = [y, k, v]
    if len(outputs) > 3 and outputs[3]:
        mode = call.attribute("qk_matmul_output_mode", 0)
        if mode not in range(4):
            raise ModelError(f"attribute qk_matmul_output_mode is {mode}; expected 0 to 3")
        last = _chosen(call, mask, shares) if mode == 3 else shares
        results.append((raw, capped, scores, last)[mode])
    return results[: len(outputs)]


def _heads(call: Call) -> tuple[int | None, int | None, int | None]:
    """Return the numbers of heads of queries, keys and values; None where the inputs say them."""
    check_rank(call.value().type, 3, 4, "input 0")
    given = call.attribute("q_num_heads", None), call.attribute("kv_num_heads", None)
    if len(call.value().shape) == 4:
        return None, None, None
    if any(count is None or count < 1 for count in given):
        raise ModelError(
            f"attributes q_num_heads and kv_num_heads are {given[0]} and {given[1]}; expected "
            f"numbers of heads for {call.value().type}"
        )
    return given[0], given[1], given[1]


def _by_heads(call: Call, index: int, count: int | None) -> Value:
    """An input as (batch, heads, sequence, size)."""
    x = floating(call) if not index else call.value(index)
    if count is None:
        check_rank(x.type, 4, 4, f"input {index}")
        return x
    check_rank(x.type, 3, 3, f"input {index}")
    batch, length, width = x.shape
    if width % count:
        raise ModelError(f"input {index} is {x.type}; expected a multiple of {count}, the heads")
    x = call.reshape(x, (batch, length, count, width // count))
    return call.emit("Transpose", [x], perm=(0, 2, 1, 3))


def _capped(call: Call, x: Value) -> Value:
    """softcap · tanh(x / softcap)."""
    cap = call.attribute("softcap", 0.0)
    if not cap > 0:
        return x
    inner = call.emit("Tanh", [call.emit("Div", [x, call.number(cap, x)])])
    return call.emit("Mul", [inner, call.number(cap, x)])


def _shares(call: Call, scores: Value) -> Value:
    """The softmax of each row, in float64 where that is asked for."""
    dtype = scores.type.dtype
    if call.attribute("softmax_precision", None) == _DOUBLE:
        scores = call.cast(scores, FLOAT64)
    return call.cast(call.emit("Softmax", [scores], axis=3), dtype)


def _chosen(call: Call, mask: _Mask, x: Value) -> Value:
    """x, with 0 in rows that are masked as a whole."""
    if mask.empty is None:
        return x
    return call.emit("Where", [mask.empty, call.number(0, x), x])


def _mask(call: Call, shape: tuple[int, ...], past: int) -> _Mask:
    """All masks as one: the input, causal, a window, and the keys that are padding."""
    q, given = call.value(), call.optional(3)
    used = call.optional(6)  # keys of each image, as (batch, 1, 1, 1)
    used = None if used is None else call.reshape(call.cast(used, INT64), (shape[0], 1, 1, 1))
    allowed = _allowed(call, shape, past, used)
    bias = None
    if given is not None:
        given = _padded(call, given, shape)
        if given.type.dtype == BOOL:
            allowed.append(given)
        else:
            bias = call.cast(given, q.type.dtype)
    if allowed:
        both = allowed[0]
        for each in allowed[1:]:
            both = call.emit("And", [both, each])
        held = call.number(0, q) if bias is None else bias
        bias = call.emit("Where", [both, held, call.number(-math.inf, q)])
    if bias is None:
        return _Mask()
    bias = call.reshape(bias, (*(1,) * (4 - len(bias.shape)), *bias.shape))
    largest = call.emit("ReduceMax", [bias], axes=(3,), keepdims=True)
    empty = call.emit("Equal", [largest, call.number(-math.inf, q)])
    known = empty.array is not None and not np.any(empty.array)
    return _Mask(bias, None if known else empty)


def _padded(call: Call, mask: Value, shape: tuple[int, ...]) -> Value:
    """The mask that is given, masked behind its end."""
    check_rank(mask.type, 1, 4, "the mask")
    missing = shape[3] - mask.shape[-1]
    if missing > 0 and mask.shape[-1] != 1:
        pads = (*(0,) * (2 * len(mask.shape) - 1), missing)
        value = 0 if mask.type.dtype == BOOL else -math.inf
        mask = call.emit("Pad", [mask], pads=pads, mode="constant", value=value)
    check_broadcasts_to(mask.type, shape, "the mask")
    return mask


def _allowed(call: Call, shape: tuple[int, ...], past: int, used: Value | None) -> list[Value]:
    """Return masks by places; `past` or unpadded keys lie before the first query."""
    rows, keys = map(int, shape[2:])  # numbers, as what is masked depends on them
    causal = call.flag("is_causal")
    left, right = (call.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    if min(left, right) < -1:
        raise ModelError(f"got windows of {left} and {right}; expected numbers of at least -1")
    right = 0 if causal else right
    windows = [(side, most) for side, most in (("left", left), ("right", right)) if most >= 0]
    found = []
    if windows:
        ahead = call.fold(
            lambda: np.subtract.outer(np.arange(rows, dtype=INT64) + int(past), np.arange(keys)),
            (rows, keys),
            INT64,
            16 * (rows + keys),
        )
        if used is not None:
            offsets = call.emit("Sub", [used, call.number(rows, used)])
            ahead = call.emit("Add", [offsets, ahead])
        for side, most in windows:
            bound = call.number(most if side == "left" else -most, ahead)
            pair = [ahead, bound] if side == "left" else [bound, ahead]
            found.append(call.emit("LessOrEqual", pair))
    if used is not None:
        places = call.fold(lambda: np.arange(keys, dtype=INT64), (keys,), INT64)
        found.append(call.emit("Less", [places, used]))
    return found


# -- rotary embeddings --------------------------------------------------------------------------
def _rotary(call: Call) -> list[Value]:
    """Pairs of numbers of each head are rotated by an angle that depends on the place."""
    x = floating(call)
    check_rank(x.type, 3, 4, "input 0")
    before, cosine, sine = x.shape, _cache(call, 1), _cache(call, 2)
    if len(x.shape) == 3:
        heads = call.attribute("num_heads", 0)
        if heads < 1 or x.shape[2] % heads:
            raise ModelError(f"attribute num_heads is {heads}; expected a divisor for {x.type}")
        x = call.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
    size = x.shape[3]
    turned = call.attribute("rotary_embedding_dim", 0) or size
    if turned % 2 or not 0 < turned <= size:
        raise ModelError(f"rotates {turned} of {size} numbers; expected an even number within")
    axis = 2 if len(before) == 3 else 1  # of the heads
    caches = []
    for cache in (cosine, sine):
        shape = (*cache.shape[:axis], 1, *cache.shape[axis:])
        if len(shape) != 4 or cache.shape[-1] != turned // 2:
            raise ModelError(f"got a cache {cache.type}; expected {turned // 2} numbers a place")
        broadcast(shape, (*x.shape[:3], turned // 2))
        caches.append(call.reshape(cache, shape))
    whole = part_of(call, x, 3, 0, 1, turned)
    rotated = _rotated(call, whole, caches, call.flag("interleaved"))
    if turned < size:
        rest = part_of(call, x, 3, turned, 1, size - turned)
        rotated = call.emit("Concat", [rotated, rest], axis=3)
    return [call.reshape(rotated, before)]


def _cache(call: Call, index: int) -> Value:
    """Cosines or sines (batch, sequence, pairs): those of the places, where these are given."""
    cache, places = call.value(index), call.optional(3)
    return cache if places is None else call.emit("Gather", [cache, places], axis=0)


def _rotated(call: Call, x: Value, caches: Sequence[Value], interleaved: bool) -> Value:
    """Rotate pairs of elements: neighbours, or one of each half."""
    cosine, sine = caches
    half, step = x.shape[3] // 2, 2 if interleaved else 1
    a = part_of(call, x, 3, 0, step, half)
    b = part_of(call, x, 3, 1 if interleaved else half, step, half)
    real = call.emit("Sub", [call.emit("Mul", [a, cosine]), call.emit("Mul", [b, sine])])
    imaginary = call.emit("Add", [call.emit("Mul", [a, sine]), call.emit("Mul", [b, cosine])])
    if not interleaved:
        return call.emit("Concat", [real, imaginary], axis=3)
    pairs = [call.reshape(each, (*each.shape, 1)) for each in (real, imaginary)]
    return call.reshape(call.emit("Concat", pairs, axis=4), x.shape)


_ATTENTION = {
    **dict.fromkeys(("is_causal", "kv_num_heads", "q_num_heads"), "int"),
    **dict.fromkeys(("qk_matmul_output_mode", "softmax_precision"), "int"),
    **dict.fromkeys(("left_window_size", "right_window_size"), "int"),
    **dict.fromkeys(("scale", "softcap"), "float"),
}
_ROTARY = {"interleaved": "int", "num_heads": "int", "rotary_embedding_dim": "int"}
RULES: dict[str, Rule] = {
    "Attention": Rule(_attention, _ATTENTION, 3, 7, None, since=23, outputs=4),
    "RotaryEmbedding": Rule(_rotary, _ROTARY, 3, 4, None, since=23),
}
