"""How long a network takes with some layers quantised, as its plan predicts it on this machine.

What a plan predicts of an operation by an algorithm is corrected by what these were measured to
take in the network with all layers quantised, and with none.

A layer on codes is faster, but where its neighbours are in float32 its input is quantised and its
output is brought back. So a layer has two numbers: what it gains by itself, and what the edges
between it and neighbours of another precision cost. Both follow from four kinds of plans: all
layers quantised, none, all but one, and only one:

    all but l - all  = gain of l + edges of l
    none - only l    = gain of l - edges of l
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.network import Network
from leanconv.errors import LeanConvError
from leanconv.graph.small_inputs import is_small
from leanconv.planner.budget import Planner
from leanconv.progress import steps
from leanconv.quantizer.onnx_graph import OnnxGraph
from leanconv.quantizer.running import network_of
from leanconv.records import dataclass

log = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
_REPEATS = 9  # of a measurement, of which the least time counts
Files = Callable[[Collection[str]], OnnxGraph]


@dataclass(frozen=True)
class LayerCost:
    """What it means to quantise a layer.

    Attributes:
        name: of its node.
        gain_ns: time that it takes less.
        edge_ns: time of all conversions at its edges, where its neighbours are in float32.
        saved_bytes: of its weights.
    """

    name: str
    gain_ns: int
    edge_ns: int
    saved_bytes: int


def planner_of(graph: OnnxGraph, sample: Arrays, threads: int | None) -> Planner:
    """What plans a file for a sample; nothing is compiled."""
    backend = network_of(graph, threads=threads).backend
    assert isinstance(backend, CpuBackend), "files are quantised for the CPU"
    inputs = backend.model.inputs
    small = {i.name: sample[i.name] for i in inputs if is_small(i.shape, i.dtype)}
    shapes = tuple(sample[i.name].shape for i in inputs)
    return backend.planner(backend.decided_graph(shapes, small))


@dataclass(frozen=True, eq=False)
class Clock:
    """Times of plans.

    Attributes:
        threads: of plans.
        ratios: measured by predicted time of operations, by operation and algorithm.
    """

    threads: int | None
    ratios: Mapping[tuple[str, str], float]

    def time_ns(self, graph: OnnxGraph, sample: Arrays) -> int:
        """How long a run of a file takes."""
        plan = planner_of(graph, sample, self.threads).within(None)
        return round(
            sum(
                time * self.ratios.get((step.op, step.algorithm), 1.0)
                for step, time in plan.step_estimates()
            )
        )


def clock(networks: Sequence[Network], sample: Arrays, threads: int | None) -> Clock:
    """Measure what operations of networks take."""
    measured: dict[tuple[str, str], int] = {}
    predicted: dict[tuple[str, str], int] = {}
    for network in networks:
        for row in network.profile(dict(sample), repeats=_REPEATS):
            if row.predicted_ns:
                key = row.op, row.algorithm
                measured[key] = measured.get(key, 0) + row.least_ns
                predicted[key] = predicted.get(key, 0) + row.predicted_ns
    return Clock(threads, {key: measured[key] / predicted[key] for key in measured})


def layer_costs(
    sizes: Mapping[str, int], files: Files, sample: Arrays, clock: Clock
) -> list[LayerCost] | None:
    """The costs of all layers, None where the files cannot be planned.

    Args:
        sizes: the weights of each layer, by name in the network's order.
        files: the network with the layers of some names quantised.
        sample: for whose sizes it is planned.
        clock: times of plans.
    """

    def time_ns(chosen: Collection[str]) -> int:
        return clock.time_ns(files(chosen), sample)

    names = list(sizes)
    try:
        whole, none = time_ns(names), time_ns(())
        found = []
        for name in steps("planning layers", names, len(names)):
            without = time_ns([each for each in names if each != name]) - whole
            alone = none - time_ns([name])
            gain, edge = (without + alone) // 2, max(0, (without - alone) // 2)
            found.append(LayerCost(name, gain, edge, _saved_bytes(sizes[name])))
    except LeanConvError as error:
        log.info("layers are chosen by their errors alone, as no times are known: %s", error)
        return None
    if whole >= none:
        log.info("codes are not predicted to be faster; the fewest bytes of weights are sought")
        return [LayerCost(each.name, each.saved_bytes, 0, each.saved_bytes) for each in found]
    return found


def plain_costs(sizes: Mapping[str, int]) -> list[LayerCost]:
    """Costs by which as few layers as possible stay in float32."""
    return [LayerCost(name, 1, 0, _saved_bytes(size)) for name, size in sizes.items()]


def _saved_bytes(weights: int) -> int:
    """What codes of weights save, from four bytes to one."""
    return 3 * weights


def least_bytes(graph: OnnxGraph, sample: Arrays, threads: int | None, enough: int = 0) -> int:
    """The least bytes within which a file can be planned, weights and arena together.

    Args:
        graph, sample, threads: as of `planner_of`.
        enough: of several plans one of at most so many bytes will do.

    Raises:
        LeanConvError: it cannot be planned at all.
    """
    planner = planner_of(graph, sample, threads)
    fastest = planner.within(None).memory_bytes
    return fastest if fastest <= enough else planner.smallest.memory_bytes


def total(costs: Sequence[LayerCost], chosen: Collection[str]) -> int:
    """How much time a choice of layers gains, with edges between neighbours in order."""
    gain, before = 0, None
    for cost in costs:
        here = cost.name in chosen
        gain += cost.gain_ns if here else 0
        if before is not None and here != (before.name in chosen):
            gain -= edge_ns(before, cost)
        before = cost
    return gain


def edge_ns(first: LayerCost, second: LayerCost) -> int:
    """What a conversion between two neighbours costs, each of which has two edges."""
    return min(first.edge_ns, second.edge_ns) // 2
