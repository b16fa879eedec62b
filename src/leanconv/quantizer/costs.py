"""What layers cost in each precision: time, that of their edges, and bytes, by plans of files.

A layer on codes is faster, but where its neighbours are in float32 its input is quantised and its
output is brought back. So a layer has two numbers: what it gains by itself, and what the edges
between it and neighbours of another precision cost. Both follow from four kinds of plans: all
layers quantised, none, all but one, and only one:

    all but l - all  = gain of l + edges of l
    none - only l    = gain of l - edges of l

Of the finer precisions only the last kind is planned: their edges are its Casts and Quantises. They
are left out where no plan says that they save anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from leanconv.errors import LeanConvError
from leanconv.progress import steps
from leanconv.quantizer.onnx_graph import OnnxGraph
from leanconv.quantizer.plans import Clock, Planned
from leanconv.quantizer.rungs import FINER, FLOAT16, FLOAT32, INT8, Rungs, all_in
from leanconv.quantizer.samples import Arrays
from leanconv.records import dataclass

log = logging.getLogger(__name__)

Files = Callable[[Rungs], OnnxGraph]


@dataclass(frozen=True)
class RungCost:
    """What a layer saves in a precision, against float32.

    Attributes:
        gain_ns: time that it takes less.
        edge_ns: time of all conversions at its edges, where its neighbours have another precision.
        saved_bytes: of its weights.
    """

    gain_ns: int
    edge_ns: int
    saved_bytes: int


_NOTHING = RungCost(0, 0, 0)


@dataclass(frozen=True)
class LayerCost:
    """What precisions of a layer mean.

    Attributes:
        name: of its node.
        rungs: the precisions other than float32 that it may have.
    """

    name: str
    rungs: Mapping[str, RungCost]

    def of(self, rung: str) -> RungCost:
        """What is saved in a precision."""
        return self.rungs.get(rung, _NOTHING)


def layer_costs(
    sizes: Mapping[str, int],
    files: Files,
    sample: Arrays,
    clock: Clock,
    finer: Callable[[str], Sequence[str]],
    for_bytes: bool,
) -> list[LayerCost] | None:
    """The costs of all layers, None where the files cannot be planned.

    Args:
        sizes: the weights of each layer, by name in the network's order.
        files: the network with layers in some precisions.
        sample: for whose sizes it is planned.
        clock: times of plans.
        finer: precisions between int8 and float32 that a layer may have.
        for_bytes: whether bytes matter, too.
    """

    def planned(rungs: Rungs) -> Planned:
        return clock.planned(files(rungs), sample)

    names = list(sizes)
    try:
        whole, none = planned(all_in(names)), planned({})
        sought = _sought(names, planned, none, finer, for_bytes)
        found = []
        for name in steps("planning layers", names, len(names)):
            others = planned(all_in(each for each in names if each != name))
            without = others.time_ns - whole.time_ns
            alone = none.time_ns - planned({name: INT8}).time_ns
            gain, edge = (without + alone) // 2, max(0, (without - alone) // 2)
            rungs = {INT8: RungCost(gain, edge, _saved_bytes(sizes[name]))}
            for rung in (each for each in sought if each in finer(name)):
                cost = _finer_cost(none, planned({name: rung}), sizes[name], rung)
                if cost.gain_ns > 0 or (for_bytes and cost.saved_bytes > 0):
                    rungs[rung] = cost
            found.append(LayerCost(name, rungs))
    except LeanConvError as error:
        log.info("layers are chosen by their errors alone, as no times are known: %s", error)
        return None
    return found


def _sought(
    names: Sequence[str],
    planned: Callable[[Rungs], Planned],
    none: Planned,
    finer: Callable[[str], Sequence[str]],
    for_bytes: bool,
) -> list[str]:
    """The precisions in which layers take less time, or fewer bytes where these matter."""
    found = []
    for rung in FINER:
        plan = planned(all_in((name for name in names if rung in finer(name)), rung))
        fewer = for_bytes and (rung == FLOAT16 or plan.weight_bytes < none.weight_bytes)
        if plan.time_ns < none.time_ns or fewer:
            found.append(rung)
    return found


def _finer_cost(none: Planned, alone: Planned, weights: int, rung: str) -> RungCost:
    """What a layer saves, from plans with all layers in float32 and with all but this one.

    Within a limit of bytes, halves are stored so even where that is slower.
    """
    edge = max(0, alone.edge_ns - none.edge_ns)
    saved = min(max(0, none.weight_bytes - alone.weight_bytes), _saved_bytes(weights))
    if rung == FLOAT16:
        saved = 2 * weights
    return RungCost(none.time_ns - alone.time_ns + edge, edge, saved)


def by_bytes(costs: Sequence[LayerCost]) -> list[LayerCost]:
    """Costs by which the fewest bytes of weights are sought, where codes are no faster."""

    def of(cost: RungCost) -> RungCost:
        return RungCost(cost.saved_bytes, 0, cost.saved_bytes)

    return [
        LayerCost(each.name, {rung: of(cost) for rung, cost in each.rungs.items()})
        for each in costs
    ]


def plain_costs(sizes: Mapping[str, int]) -> list[LayerCost]:
    """Costs by which as few layers as possible stay in float32."""
    return [
        LayerCost(name, {INT8: RungCost(1, 0, _saved_bytes(size))}) for name, size in sizes.items()
    ]


def _saved_bytes(weights: int) -> int:
    """What codes of weights save, from four bytes to one."""
    return 3 * weights


def total(costs: Sequence[LayerCost], rungs: Rungs) -> int:
    """How much time a choice gains, with edges between neighbours in order."""
    gain, before = 0, None
    for cost in costs:
        here = rungs.get(cost.name, FLOAT32)
        gain += cost.of(here).gain_ns
        if before is not None:
            gain -= edge_ns(before, cost, rungs.get(before.name, FLOAT32), here)
        before = cost
    return gain


def edge_ns(first: LayerCost, second: LayerCost, left: str, right: str) -> int:
    """What conversions cost between two neighbours in some precisions, each of two edges."""
    if left == right:
        return 0
    return sum(min(first.of(rung).edge_ns, second.of(rung).edge_ns) // 2 for rung in (left, right))
