"""Every algorithm for one convolution or gradient side by side: bytes, error, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import prod

import numpy as np

from leanconv.algorithms import ALGORITHMS
from leanconv.algorithms.magnitudes import WeightTraits
from leanconv.api.compiled_conv import planned_layer
from leanconv.api.conv_arguments import Constants
from leanconv.api.conv_choice import conv_problem
from leanconv.api.gradient_graph import GradientSpec
from leanconv.api.gradient_part import parts_of
from leanconv.api.gradient_plan import GradientPlan, Gradients
from leanconv.api.layer_plan import LayerPlan
from leanconv.api.options import PlanOptions
from leanconv.errors import SpecError
from leanconv.operators import operator_of
from leanconv.records import dataclass
from leanconv.runtime.calibration import planning_target
from leanconv.spec import ConvSpec

_MEASURE_NS = 200_000_000  # of runs for each algorithm


@dataclass(frozen=True)
class AlgorithmRow:
    """One algorithm's estimates for a problem, or why it cannot compute it.

    Attributes:
        algorithm: its name.
        reason: why it cannot compute the problem; empty if it can, and then the rest is known:
        cycles: estimated cycles of one core.
        seconds: estimated time of a run with that many threads, at the nominal clock.
        measured_seconds: median time of a run, None if it was not measured.
        workspace_bytes, weight_bytes: memory that a plan with it needs.
        error: expected relative error in the max norm.
        parameters: the parameters that it would choose, as text.
        selector: the text that selects it, as `algorithm=` takes it.
    """

    algorithm: str
    reason: str = ""
    cycles: float = 0.0
    seconds: float = 0.0
    measured_seconds: float | None = None
    workspace_bytes: int = 0
    weight_bytes: int = 0
    error: float = 0.0
    parameters: str = ""
    selector: str = ""


def compare_algorithms(
    spec: ConvSpec, threads: int = 1, measure: bool = False, zeros: float = 0.0
) -> list[AlgorithmRow]:
    """Ask every algorithm about a problem: bytes, error and time, or why not.

    Args:
        spec: the convolution.
        threads: threads that a plan would have.
        measure: run each one, too, on random data.
        zeros: the part of the weights that are 0, at random places.

    Returns:
        One row for each algorithm, the fastest first, those that reject the problem last.
    """
    target, random = planning_target(), np.random.default_rng(0)
    w = random.standard_normal(spec.weight_shape).astype(spec.dtype)
    w.reshape(-1)[random.permutation(w.size)[: round(zeros * w.size)]] = 0
    pixels = spec.batch * prod(spec.output_size)
    problem = WeightTraits.of(w, pixels, 0.0, 1).given_to(conv_problem(spec, None))
    rows = []
    for algorithm in ALGORITHMS.values():
        reason = algorithm.reject(problem, target)
        if reason:
            rows.append(AlgorithmRow(algorithm.name, reason))
            continue
        cycles = algorithm.cost(problem, target)
        plan = _plan(spec, w, algorithm.name, threads)
        rows.append(
            AlgorithmRow(
                algorithm.name,
                "",
                cycles,
                target.costs.shared_ns(target.costs.ns(cycles), threads) * 1e-9,
                _measured(plan) if measure else None,
                plan.workspace_bytes,
                plan.weight_bytes,
                plan.predicted_error,
                plan.parameters,
                plan.selector,
            )
        )
    return _fastest_first(rows)


def _fastest_first(rows: Iterable[AlgorithmRow]) -> list[AlgorithmRow]:
    """Sort rows: those without a reason first."""
    return sorted(rows, key=lambda r: (bool(r.reason), r.measured_seconds or r.seconds))


def compare_gradients(
    spec: ConvSpec, need: str, threads: int = 1, measure: bool = False
) -> list[AlgorithmRow]:
    """Ask every algorithm of a gradient about a problem, as `compare_algorithms` does.

    Args:
        spec: the convolution, without bias, residual or activation.
        need: `"x"` or `"w"`: whose gradient is computed.
        threads, measure: as of `compare_algorithms`.

    Returns:
        One row for each algorithm, the fastest first, those that reject the problem last.
    """
    wanted = GradientSpec(spec, (need,))
    (usual,) = parts_of(wanted, PlanOptions.checked(None, threads=threads), {})
    operator = operator_of(usual.node)
    rejected = operator.rejections(usual.context)
    possible = dict.fromkeys(each.algorithm for each in operator.choices(usual.context))
    rows = []
    for name in dict.fromkeys((*possible, *rejected)):
        try:
            plan = GradientPlan(wanted, PlanOptions.checked(None, threads=threads), {need: name})
        except SpecError as error:
            rows.append(AlgorithmRow(name, rejected.get(name, str(error))))
            continue
        rows.append(_gradient_row(plan, measure))
    return _fastest_first(rows)


def _gradient_row(plan: GradientPlan, measure: bool) -> AlgorithmRow:
    (part,), costs = plan.parts, planning_target().costs
    cycles = part.costed.cycles
    return AlgorithmRow(
        part.algorithm,
        "",
        cycles,
        costs.shared_ns(costs.ns(cycles), plan.threads) * 1e-9,
        _measured_gradient(plan) if measure else None,
        plan.workspace_bytes,
        plan.weight_bytes,
        plan.predicted_error,
        str(part.choice.parameters),
        str(part.choice),
    )


def _plan(spec: ConvSpec, w: np.ndarray, algorithm: str, threads: int) -> LayerPlan:
    channel = np.zeros(spec.out_channels, spec.dtype)
    prelu = spec.activation is not None and spec.activation.kind == "prelu"
    bias, slope = channel if spec.bias else None, channel if prelu else None
    options = PlanOptions.checked(algorithm, threads=threads)
    return planned_layer(spec, Constants(w, bias, slope), options)


def _measured(plan: LayerPlan) -> float:
    spec = plan.spec
    x = np.random.default_rng(0).standard_normal(spec.input_shape).astype(spec.dtype)
    out = np.zeros(spec.output_shape, spec.dtype)
    residual = out if spec.residual else None
    return _median_seconds(lambda: plan(x, out, residual))


def _measured_gradient(plan: GradientPlan) -> float:
    generator, spec = np.random.default_rng(0), plan.spec
    arrays = {n: generator.standard_normal(spec.shapes[n]).astype(spec.dtype) for n in spec.reads}
    (result,) = spec.results
    out = Gradients(
        **{**dict.fromkeys(Gradients._fields), result: np.zeros(spec.shapes[result], spec.dtype)}
    )
    return _median_seconds(lambda: plan(**arrays, out=out))


def _median_seconds(run: Callable[[], object]) -> float:
    """The median time of some runs, in seconds."""
    times: list[int] = []
    while len(times) < 3 or sum(times) < _MEASURE_NS:
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    from statistics import median

    return median(times[1:]) * 1e-9
