"""Losses of classifiers: logarithms of probabilities, gathered where the labels are."""

from __future__ import annotations

from leanconv.errors import ModelError
from leanconv.graph.convert.arithmetic import floating
from leanconv.graph.convert.reductions import cast, sum_over
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import MAX_RANK, check_rank
from leanconv.graph.value import Value
from leanconv.types import INT64


def _cross_entropy(call: Call) -> list[Value]:
    """Of scores (N, C, spatial...); the second output is the logarithms of their probabilities."""
    x = floating(call)
    check_rank(x.type, 2, MAX_RANK, "input 0")
    logarithms = call.emit("LogSoftmax", [x], axis=1)
    return [_loss(call, logarithms), logarithms][: len(call.node.outputs)]


def _likelihood(call: Call) -> list[Value]:
    x = floating(call)
    check_rank(x.type, 2, MAX_RANK, "input 0")
    return [_loss(call, x)]


def _loss(call: Call, x: Value) -> Value:
    """-x[n, label, spatial...] · weight[label], 0 where the label is `ignore_index`.

    Of their mean the divisor is the sum of the weights, 1 each where there are none.
    """
    labels, weights = call.value(1), call.optional(2)
    reduction = call.attribute("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"attribute reduction is {reduction!r}; expected none, sum or mean")
    if not labels.type.dtype.is_integer or labels.shape != (x.shape[0], *x.shape[2:]):
        raise ModelError(f"got labels {labels.type} for {x.type}; expected an integer for each")
    if weights is not None and weights.shape != (x.shape[1],):
        raise ModelError(f"got weights {weights.type}; expected one for each of {x.shape[1]}")
    labels, ignored = cast(call, labels, INT64), call.attribute("ignore_index", None)
    skipped = None
    if ignored is not None:
        skipped = call.emit("Equal", [labels, call.number(ignored, labels)])
        labels = call.emit("Where", [skipped, call.number(0, labels), labels])
    places = call.reshape(labels, (labels.shape[0], 1, *labels.shape[1:]))
    found = call.reshape(call.emit("GatherElements", [x, places], axis=1), labels.shape)
    loss, weight = call.emit("Neg", [found]), None
    if weights is not None:
        weight = call.emit("Gather", [weights, labels], axis=0)
        loss = call.emit("Mul", [loss, weight])
    if skipped is not None:
        loss = call.emit("Where", [skipped, call.number(0, loss), loss])
    if reduction == "none":
        return loss
    axes = tuple(range(len(loss.shape)))
    total = sum_over(call, loss, axes, False)
    if reduction == "sum":
        return total
    if weight is None and skipped is None:
        return call.emit("Div", [total, call.number(loss.type.elements, total)])
    if weight is None:
        weight = call.emit("Expand", [call.number(1, loss)], shape=loss.shape)
    if skipped is not None:
        weight = call.emit("Where", [skipped, call.number(0, loss), weight])
    return call.emit("Div", [total, sum_over(call, weight, axes, False)])


_LOSS = {"ignore_index": "int", "reduction": "string"}
RULES: dict[str, Rule] = {
    "SoftmaxCrossEntropyLoss": Rule(_cross_entropy, _LOSS, 2, 3, None, since=12, outputs=2),
    "NegativeLogLikelihoodLoss": Rule(_likelihood, _LOSS, 2, 3, None, since=12),
}
