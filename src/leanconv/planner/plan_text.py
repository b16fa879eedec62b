"""What a plan of a network says of itself as a whole: memory, costs, magnitudes, error."""

from __future__ import annotations

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.operators import convolution
from leanconv.operators.operator import network_error
from leanconv.planner.arena import Lifetime, PlacedBuffers
from leanconv.planner.network_plan import NetworkPlan
from leanconv.units import counted, format_bytes, format_ns


def closing_lines(plan: NetworkPlan) -> tuple[str, ...]:
    """Memory, costs, magnitudes and error of a plan, in lines."""
    lines = (
        memory_text(plan),
        _storage_text(plan),
        plan.planner.target.costs_text,
        magnitudes_text(plan),
    )
    return (*filter(None, lines), error_text(plan), *filter(None, [plan.late_text]))


def _storage_text(plan: NetworkPlan) -> str:
    """In which type values are stored; "" where nobody asked for another one than float32."""
    asked = plan.planner.accuracy.half
    if plan.precision:
        return f"weights and values of float32 are stored in {plan.precision}"
    if asked is None:
        return ""
    return (
        f"weights and values stay in float32, which is faster here by estimate; products may be of "
        f"numbers rounded to {asked}"
    )


def magnitudes_text(plan: NetworkPlan) -> str:
    """Where the errors of the layers that are convolutions by themselves hold; "" without such."""
    planner = plan.planner
    found = [
        convolution.CONVOLUTION.magnitudes(
            chosen.decision.context(node, planner.graph, planner.target, planner.accuracy),
            chosen.decision.choice,
        )
        for node, chosen in zip(planner.graph.nodes, plan.node_costs, strict=True)
        if node.op in convolution.OPS
    ]
    if not found:
        return ""
    all_of = Magnitudes.of_all(found)
    return (
        f"the layers' errors hold for largest results of at least {all_of.least_result:.1e} and "
        f"inputs of at most {all_of.most_input:.1e} (docs/algorithms.md, Magnitudes)"
    )


def memory_text(plan: NetworkPlan) -> str:
    """What a plan's memory consists of, and where its peak is."""
    time, alive = arena_peak(plan.storage.buffers)
    calls = [step.name for step in plan.steps for _ in step.kernels]
    lines = [
        f"memory {counted(plan.memory_bytes, 'byte')} ({format_bytes(plan.memory_bytes)}): weights "
        f"{counted(plan.weight_bytes, 'byte')}, buffers between layers "
        f"{counted(plan.arena_bytes, 'byte')} (at most {counted(plan.live_bytes, 'byte')} in use "
        f"at once, {counted(plan.scratch_bytes, 'byte')} of scratch)"
        + (
            f", arrays behind them at {'most' if plan.late_bounded else 'least'} "
            f"{counted(plan.late_bytes, 'byte')}" * bool(plan.late_bytes)
        )
        + f", compiled in runs {counted(plan.segment_bytes, 'byte')}" * bool(plan.segment_bytes)
    ]
    if plan.readings:
        lines.append(_streaming_text(plan))
    if alive:
        largest = sorted(alive, key=lambda buffer: -buffer.bytes)
        shown = ", ".join(f"{b.name} {format_bytes(b.bytes)}" for b in largest[:4])
        lines.append(f"most of these buffers are in use at {calls[time]}: {shown}")
    return "\n".join(lines)


def _streaming_text(plan: NetworkPlan) -> str:
    """What is read in each run, and what that costs."""
    size, largest = plan.streamed_bytes, max(reading.bytes for reading in plan.readings)
    rate = plan.bytes_a_ns  # GB/s
    return (
        f"each run reads {counted(size, 'byte')} ({format_bytes(size)}) of weights from a file, "
        f"{counted(len(plan.readings), 'piece')} of at most {format_bytes(largest)}, each while "
        f"the one before is used; at {rate:.1f} GB/s, measured when the plan was made (the file "
        f"was in the page cache), it waits {format_ns(plan.waiting_ns)} for them; reading them "
        f"from a disk of 1 GB/s takes {format_ns(size)}"
    )


def error_text(plan: NetworkPlan) -> str:
    """The error that a plan states and, where that is more than is aimed at, why."""
    planner, stated = plan.planner, plan.predicted_error
    if plan.measured_error is not None:
        return f"error measured on samples {stated:.3g}: for other data it is an estimate"
    if not stated:
        return (
            "no error is stated: none of what is compiled is a convolution, or a product with "
            "weights, in floats; what other operations round is not counted"
        )
    text = f"expected error {stated:.1e}" + " of what is compiled" * bool(plan.late_text)
    aim = network_error(plan.dtype)
    if planner.max_error is not None or stated <= aim:
        return (
            f"{text}, an estimate: it takes a layer's error to grow up to 5 times on its way to "
            "the outputs"
        )
    share = planner.accuracy.layer_error
    pairs = zip(planner.graph.nodes, plan.node_costs, strict=True)
    layers = sorted(
        ((cost, node.name or node.key) for node, cost in pairs if cost.error),
        key=lambda layer: -layer[0].passed_error,
    )
    most = ", ".join(f"{name} {cost.passed_error:.1e}" for cost, name in layers[:3])
    return (
        f"{text}, more than the {aim:.0e} aimed at: the errors of {len(layers)} layers add up like "
        f"independent ones, each at most {share:.1e} or that of plain sums, and grow on their way "
        f"to the outputs (the most: {most}); max_error={aim:.0e} asks for a plan that keeps it, or "
        "for the least that can be kept"
    )


def arena_peak(placed: PlacedBuffers) -> tuple[int, list[Lifetime]]:
    """The first call with the most bytes alive, and the buffers alive then."""
    buffers = [buffer for buffer, _ in placed]
    most, best, alive = -1, 0, []
    for time in sorted({buffer.first for buffer in buffers}):
        now = [buffer for buffer in buffers if buffer.first <= time <= buffer.last]
        total = sum(buffer.bytes for buffer in now)
        if total > most:
            most, best, alive = total, time, now
    return best, alive
