"""What plans say of files on this machine: the time of a run, and bytes.

What a plan predicts of an operation by an algorithm is corrected by what these were measured to
take in some networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions, checked_threads
from leanconv.graph.onnx_import import read_model
from leanconv.graph.small_inputs import is_small
from leanconv.operators.operator import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.node_costs import NodeEvaluator
from leanconv.quantizer.onnx_graph import OnnxGraph
from leanconv.quantizer.samples import Arrays
from leanconv.records import dataclass

_REPEATS = 9  # of a measurement, of which the least time counts
_CONVERSIONS = ("Cast", "QuantizeLinear", "DequantizeLinear")


def planner_of(
    graph: OnnxGraph, sample: Arrays, threads: int | None, limit: int | None = None
) -> Planner:
    """What plans a file for a sample; nothing is compiled.

    Args:
        graph: the file.
        sample: for whose sizes it is planned.
        threads: of runs.
        limit: bytes, which decide what is stored in halves.
    """
    model = read_model(graph.data())
    backend = CpuBackend(model, NetworkOptions(checked_threads(threads), memory_limit=limit))
    small = {i.name: sample[i.name] for i in model.inputs if is_small(i.shape, i.dtype)}
    shapes = tuple(sample[i.name].shape for i in model.inputs)
    return backend.planner(backend.decided_graph(shapes, small))


@dataclass(frozen=True)
class Planned:
    """What a plan says.

    Attributes:
        time_ns: of a run.
        edge_ns: of it, that of changes of precision.
        weight_bytes: of packed weights.
    """

    time_ns: int
    edge_ns: int
    weight_bytes: int


@dataclass(frozen=True, eq=False)
class Clock:
    """Times of plans.

    Attributes:
        threads: of plans.
        ratios: measured by predicted time of operations, by operation and algorithm.
        other: the same of all together, for those that were not measured: 1.0 would make them look
            faster on a busy machine.
    """

    threads: int | None
    ratios: Mapping[tuple[str, str], float]
    other: float = 1.0
    _known: dict[Accuracy, NodeEvaluator] = field(default_factory=dict)

    def planned(self, graph: OnnxGraph, sample: Arrays) -> Planned:
        """What a run of a file takes; nodes that files have in common are evaluated once."""
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
    """Measure what operations of networks take."""
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
    """The least bytes within which a file can be planned, weights and arena together.

    Args:
        graph, sample, threads: as of `planner_of`.
        enough: of several plans one of at most so many bytes will do.

    Raises:
        LeanConvError: it cannot be planned at all.
    """
    planner = planner_of(graph, sample, threads, enough or None)
    fastest = planner.within(None).memory_bytes
    return fastest if fastest <= enough else planner.smallest.memory_bytes
