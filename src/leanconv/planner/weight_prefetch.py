"""Prefetch of weights that are read once, as a classifier's, by the convolution before.

A fully connected layer is bound by DRAM, and its weights are used by no other layer; the
convolution before it leaves DRAM idle. It prefetches them, line by line, into L2, from where they
are evicted to L3. No result changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leanconv.codegen.lowered import Call
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

_USES = 16  # of each weight, at most: with more, arithmetic hides the reading
_STEPS = 8  # multiply-adds of vectors for each line that is prefetched, at least
_BETWEEN = 3  # calls that may lie between, such as a pooling


def add_weight_prefetch(calls: Sequence[Call], target: Target) -> list[Call]:
    """The calls of a network, some of which prefetch the weights of later ones.

    Args:
        calls: in order.
        target: the machine.
    """
    result = list(calls)
    for place, call in enumerate(calls):
        size = _streamed_bytes(call, target)
        if not size:
            continue
        weights = call.values[call.kernel.operands.index("w")]
        for before in range(place - 1, max(-1, place - 2 - _BETWEEN), -1):
            kernel = result[before].kernel
            steps = kernel.prefetch_steps
            if steps is None:
                continue
            if steps >= _STEPS * ceil_div(size, ALIGNMENT):
                operands = (*result[before].reads, weights, *result[before].results)
                prefetching = kernel.with_prefetch(size)
                result[before] = replace(result[before], kernel=prefetching, values=operands)
            break
    return result


def _streamed_bytes(call: Call, target: Target) -> int:
    """Bytes of a call's weights if it is bound by reading them and L3 may hold them, else 0."""
    uses = call.kernel.weight_uses
    if uses is None or uses > _USES:
        return 0
    size = call.kernel.constant_bytes["w"]
    held = target.costs.l3_share * target.l3_bytes
    return size if target.l2_bytes < size <= held else 0
