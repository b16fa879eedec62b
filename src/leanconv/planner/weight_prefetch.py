"""Prefetch of weights that are read once, as a classifier's, by the convolution before.

A fully connected layer is bound by DRAM, and its weights are used by no other layer; the
convolution before it leaves DRAM idle. It prefetches them, line by line, into L2, from where they
are evicted to L3. No result changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leanconv.algorithms.direct.packed import PackedConv
from leanconv.codegen.lowered import Call
from leanconv.dtypes import ITEMSIZE
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

_USES = 16  # of each weight, at most: with more, arithmetic hides the reading
_STEPS = 8  # multiply-adds of vectors for each line that is prefetched, at least
_BETWEEN = 3  # calls that may lie between, such as a pooling


def add_weight_prefetch(
    calls: Sequence[Call], sizes: Mapping[str, int], target: Target
) -> list[Call]:
    """The calls of a network, some of which prefetch the weights of later ones.

    Args:
        calls: in order.
        sizes: bytes of every constant.
        target: the machine.
    """
    result = list(calls)
    for place, call in enumerate(calls):
        size = _streamed(call, sizes, target)
        if not size:
            continue
        for before in range(place - 1, max(-1, place - 2 - _BETWEEN), -1):
            kernel, values = result[before].kernel, result[before].values
            if isinstance(kernel, PackedConv):
                if _has_time(kernel, size):
                    prefetching = replace(kernel, prefetch_bytes=size)
                    operands = (*values[:-1], call.values[1], values[-1])
                    result[before] = Call(prefetching, operands, result[before].in_place)
                break
    return result


def _streamed(call: Call, sizes: Mapping[str, int], target: Target) -> int:
    """Bytes of a call's weights if it waits for them and L3 may hold them, else 0."""
    kernel = call.kernel
    if not isinstance(kernel, PackedConv) or kernel.groups > 1:
        return 0
    size = sizes.get(call.values[1], 0)
    uses = kernel.flops * ITEMSIZE[kernel.dtype] / (2 * max(1, size))
    held = target.costs.l3_share * target.l3_bytes
    return size if target.l2_bytes < size <= held and uses <= _USES else 0


def _has_time(kernel: PackedConv, size: int) -> bool:
    """Whether a kernel has enough multiply-adds to prefetch that many bytes."""
    if kernel.groups > 1 or kernel.prefetch_bytes:
        return False
    return kernel.flops / (2 * kernel.lanes) >= _STEPS * ceil_div(size, ALIGNMENT)
