"""Costs of layers in each precision: time, that of their edges, and bytes, by plans of files.

A layer on codes is faster, but where its neighbours are in float32 its input is quantised and its
output is brought back. So a layer has two numbers: what it gains by itself, and what the edges
between it and neighbours of another precision cost. Both follow from four kinds of plans: all
layers quantised, none, all but one, and only one:

    all but l - all  = gain of l + edges of l
    none - only l    = gain of l - edges of l

Of the finer precisions only the last kind is planned: their edges are its Casts and Quantises. They
are left out where no plan says that they save anything.

What a plan predicts of an operation by an algorithm is corrected by what these were measured to
take in some networks (`clock`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions, checked_threads
from leanconv.errors import LeanConvError
from leanconv.graph.network_inputs import is_small
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.ops import OPS
from leanconv.operators.operator import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.node_costs import NodeEvaluator
from leanconv.progress import steps
from leanconv.quantizer.result import FINER, FLOAT16, FLOAT32, INT8, Rungs, all_in
from leanconv.quantizer.samples import Arrays
from leanconv.records import dataclass, field

log = logging.getLogger(__name__)

_REPEATS = 9  # of a measurement, of which the least time counts
_CONVERSIONS = frozenset(op for op, each in OPS.items() if each.converts)
Files = Callable[[Rungs], OnnxGraph]


def planner_of(
    graph: OnnxGraph, sample: Arrays, threads: int | None, limit: int | None = None
) -> Planner:
    """Return the planner of a file for a sample; nothing is compiled.

    Args:
        graph: the file.
        sample: for whose sizes it is planned.
        threads: of runs.
        limit: bytes, which decide which values are stored in halves.
    """
    model = read_model(graph.data())
    backend = CpuBackend(model, NetworkOptions(checked_threads(threads), memory_limit=limit))
    small = {i.name: sample[i.name] for i in model.inputs if is_small(i.shape, i.dtype)}
    shapes = tuple(sample[i.name].shape for i in model.inputs)
    return backend.planner(backend.decided_graph(shapes, small))


@dataclass(frozen=True)
class Planned:
    """Time and bytes of a plan.

    Attributes:
        time_ns: of a run.
        edge_ns: the part of it for changes of precision.
        weight_bytes: of packed weights.
    """

    time_ns: int
    edge_ns: int
    weight_bytes: int


@dataclass(frozen=True, eq=False)
class Clock:
    """Predictions of plans, corrected by measured times of operations.

    Attributes:
        threads: of plans.
        ratios: measured by predicted time of operations, by operation and algorithm.
        other: the ratio of all together, for operations that were not measured: 1.0 would make
            them look faster on a busy machine.
    """

    threads: int | None
    ratios: Mapping[tuple[str, str], float]
    other: float = 1.0
    _known: dict[Accuracy, NodeEvaluator] = field(default_factory=dict)

    def planned(self, graph: OnnxGraph, sample: Arrays) -> Planned:
        """Plan a file; nodes that files have in common are evaluated once."""
        planner = planner_of(graph, sample, self.threads)
        own = planner.unmerged
        known = self._known.setdefault(own.accuracy, own.evaluator)
        if known is not own.evaluator:
            own.evaluator.follow(known, dict)
        plan = planner.within(None)
        times: Counter[str] = Counter()
        for step, time in zip(plan.lowered.steps, plan.step_estimates(), strict=True):
            ratio = self.ratios.get((step.op, step.algorithm), self.other)
            times["edge" if step.op in _CONVERSIONS else ""] += round(time * ratio)
        return Planned(times.total(), times["edge"], plan.weight_bytes)


def clock(networks: Sequence[Network], sample: Arrays, threads: int | None) -> Clock:
    """Measure the times of operations of networks."""
    measured: dict[tuple[str, str], int] = {}
    predicted: dict[tuple[str, str], int] = {}
    for network in networks:
        for row in network.profile(dict(sample), repeats=_REPEATS):
            if row.predicted_ns:
                key = row.op, row.algorithm
                measured[key] = measured.get(key, 0) + row.least_ns
                predicted[key] = predicted.get(key, 0) + row.predicted_ns
    ratios = {key: measured[key] / predicted[key] for key in measured}
    whole = sum(measured.values()) / max(1, sum(predicted.values()))
    return Clock(threads, ratios, whole if measured else 1.0)


def least_bytes(graph: OnnxGraph, sample: Arrays, threads: int | None, enough: int = 0) -> int:
    """Return the least bytes within which a file can be planned, weights and arena together.

    Args:
        graph, sample, threads: as of `planner_of`.
        enough: of several plans one of at most so many bytes will do.

    Raises:
        LeanConvError: it cannot be planned at all.
    """
    planner = planner_of(graph, sample, threads, enough or None)
    fastest = planner.within(None).memory_bytes
    return fastest if fastest <= enough else planner.smallest.memory_bytes


@dataclass(frozen=True)
class RungCost:
    """Savings of a layer in a precision, against float32.

    Attributes:
        gain_ns: time that is saved.
        edge_ns: time of all conversions at its edges, where its neighbours have another precision.
        saved_bytes: of its weights.
    """

    gain_ns: int
    edge_ns: int
    saved_bytes: int


_NOTHING = RungCost(0, 0, 0)


@dataclass(frozen=True)
class LayerCost:
    """Savings of a layer in each precision.

    Attributes:
        name: of its node.
        rungs: the precisions other than float32 that it may have.
    """

    name: str
    rungs: Mapping[str, RungCost]

    def of(self, rung: str) -> RungCost:
        """Return the savings in a precision."""
        return self.rungs.get(rung, _NOTHING)


def layer_costs(
    sizes: Mapping[str, int],
    files: Files,
    sample: Arrays,
    clock: Clock,
    finer: Callable[[str], Sequence[str]],
    for_bytes: bool,
) -> list[LayerCost] | None:
    """Return the costs of all layers, None where the files cannot be planned.

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
    """Return a layer's savings, from plans with all layers in float32 and with all but this one.

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
    return 3 * weights  # from four bytes to one


def total(costs: Sequence[LayerCost], rungs: Rungs) -> int:
    """Return the time that a choice saves, less conversions between neighbours in order."""
    gain, before = 0, None
    for cost in costs:
        here = rungs.get(cost.name, FLOAT32)
        gain += cost.of(here).gain_ns
        if before is not None:
            gain -= edge_ns(before, cost, rungs.get(before.name, FLOAT32), here)
        before = cost
    return gain


def edge_ns(first: LayerCost, second: LayerCost, left: str, right: str) -> int:
    """Return the time of conversions between two neighbours in some precisions."""
    if left == right:
        return 0
    return sum(min(first.of(rung).edge_ns, second.of(rung).edge_ns) // 2 for rung in (left, right))
