"""A convolution of floats: chosen, compiled, and the choice explained."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np

from leanconv.algorithms import Candidate, Problem, select
from leanconv.algorithms.magnitudes import Magnitudes, are_small
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.api.conv_arguments import Constants, check_kinds, kinds_of
from leanconv.api.conv_choice import (
    ConvChoice,
    choice_of_any_size,
    conv_problem,
    needed_bytes,
)
from leanconv.api.layer_plan import CompiledLayer, LayerPlan, LayerSpec, WeightlessPlan
from leanconv.api.options import PlanOptions
from leanconv.collector import fewer_collections
from leanconv.errors import memory_reported
from leanconv.planner.packing import Preparation, candidate_program
from leanconv.progress import step
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import Block
from leanconv.runtime.pool import default_threads
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned_offsets
from leanconv.spec.transposed import TransposedSpec
from leanconv.target import Target
from leanconv.types import INT32, DType, Precision
from leanconv.units import counted, format_bytes, format_ns


class _Packing:
    """A program that packs a candidate's constants, for any weights of its shape and many sizes.

    Args:
        candidate: has the constants.
        constants: any of the shapes and types that are packed.
        sums: the type in which bias and slopes are read.
        target, threads: for which the packing program is compiled.

    Attributes:
        bytes: of the constants, in one block.
    """

    def __init__(
        self,
        candidate: Candidate,
        constants: Constants,
        sums: DType,
        target: Target,
        threads: int,
    ) -> None:
        places, self.bytes = aligned_offsets(candidate.constant_bytes)
        self._kinds, self._sums = kinds_of(constants), sums
        w, *numbers = self._rows(constants)
        numbers = list(map(np.copy, numbers))  # so that no two share memory
        names = (name for name in ("bias", "slope") if getattr(constants, name) is not None)
        calls = candidate.packing(w, dict(zip(names, numbers, strict=True)))
        self._preparation = Preparation.of(
            calls, places, target, threads, (w, *numbers), moving=True
        )

    def _rows(self, constants: Constants) -> list[np.ndarray]:
        """The constants as row-major arrays, those of channels in the type of sums."""
        w, *channels = constants
        numbers = (np.ascontiguousarray(n, self._sums) for n in channels if n is not None)
        return [np.ascontiguousarray(w), *numbers]

    def pack(self, constants: Constants, block: Block) -> None:
        """Pack constants into a block.

        Raises:
            InputError: one has another shape or type than those that this was made for.
        """
        check_kinds(constants, self._kinds)
        given = self._rows(constants)
        step("packing weights", 0, given[0].nbytes)
        self._preparation.run(given, block.address)
        step("packing weights", given[0].nbytes, given[0].nbytes)


_packings: WeakValueDictionary[Hashable, _Packing] = WeakValueDictionary()


class CompiledConv(CompiledLayer):
    """A convolution of floats, chosen and compiled.

    Args:
        spec: of the user's arrays.
        problem, candidate: the convolution, and the choice for it.
        constants: any of the shapes and types that are packed.
        threads: that take part.

    Attributes:
        candidate: its choice, kernels, temporaries and packed constants, for reading only.
        shares: whether its code serves other sizes, too.
    """

    spec: ConvSpec

    @memory_reported("planning a convolution")
    def __init__(
        self,
        spec: ConvSpec,
        problem: Problem,
        candidate: Candidate,
        constants: Constants,
        threads: int,
    ) -> None:
        self._target = planning_target()
        ends = ["x", *(["residual"] if spec.residual else []), "y"]
        made = candidate_program(candidate, self._target, threads, ends)
        super().__init__(spec, spec.precision.x, spec.precision.y, *made)
        self._problem, self.candidate, self.shares = problem, candidate, bool(problem.any_size)
        self.algorithm, self.selector = candidate.choice.algorithm, str(candidate.choice)
        self.parameters = candidate.details
        channels = tuple(n for n in ("bias", "slope") if getattr(constants, n) is not None)
        self.recipe = candidate.packing_recipe(channels)
        self.pack = self._packing(constants).pack
        needed, found = needed_bytes(candidate, threads), self.workspace_bytes + self.packed_bytes
        assert found == needed, f"{found} bytes, not {needed}"

    def _packing(self, constants: Constants) -> _Packing:
        """Return the program that packs the constants; another size's if it packs alike."""
        machine = self._target, self.threads
        key = self.recipe, kinds_of(constants), *machine
        found = None if self.recipe is None else _packings.get(key)
        if found is None:
            sums = self.spec.precision.accumulate
            found = _Packing(self.candidate, constants, sums, *machine)
            if self.recipe is not None:
                _packings[key] = found
        return found

    @property
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""
        return self.candidate.choice.error

    def magnitudes(self, w: np.ndarray | None) -> Magnitudes:
        """Return the magnitudes of results and inputs for which the error is stated."""
        return select.magnitudes_of(self._problem, self.candidate, w)

    def explain(self, plan: LayerPlan) -> str:
        """Say which algorithm was chosen, what it needs, and why the others were not chosen."""
        target, spec = self._target, self.spec
        own = self.candidate.choice.cycles
        if math.isnan(own):  # parameters that the user gave
            own = select.estimated_cycles(self.candidate.choice, self._problem, target)
        lines = [
            f"{spec}: {self.algorithm}, {spec.padding_text}, "
            f"{spec.flops / 1e6:.2f} MFLOP, workspace "
            f"{format_bytes(self.workspace_bytes)}, weights {format_bytes(self.packed_bytes)}, "
            f"expected error {self.predicted_error:.1e}",
            f"  estimated time {self._shared(own)}, {counted(self.threads, 'thread')}",
            f"  the error is {plan.magnitudes}",
            f"  {target.costs_text}",
        ]
        if not spec.precision.is_uniform:
            lines.insert(1, f"  {storage_text(spec.precision)}")
        best: dict[str, tuple[float, Candidate]] = {}
        for choice, candidate in select.choices(self._problem, target, lean=True):
            best.setdefault(choice.algorithm, (choice.cycles, candidate))
        for other in select.expected(self._problem):
            if other.name != self.algorithm:
                reason = other.refusal(self._problem, target)
                reason = reason or select.lost_weights(other, self._problem)
                lines.append(f"  {other.name}: {reason or self._beside(other.name, best)}")
        return "\n".join(lines)

    def _shared(self, cycles: float) -> str:
        """The time of estimated cycles of one core, shared by all threads, as text."""
        costs = self._target.costs
        return format_ns(costs.shared_ns(costs.ns(cycles), self.threads))

    def _beside(self, name: str, best: dict[str, tuple[float, Candidate]]) -> str:
        """Say what another algorithm's best choice would take."""
        if name not in best:
            return "possible, but expected to err too much"
        cycles, candidate = best[name]
        needed = format_bytes(needed_bytes(candidate, self.threads))
        takes = f"{self._shared(cycles)}, {needed}, expected error {candidate.choice.error:.1e}"
        if self.algorithm not in best:  # the user requested it
            return takes
        ratio = cycles / max(1.0, best[self.algorithm][0])
        return f"{ratio:.2f} times the time by estimate: {takes}"


def traits_of(spec: LayerSpec) -> Callable[[np.ndarray], Hashable]:
    """Return a function of weights: equal results mean that a layer is computed with them alike."""
    if isinstance(spec, TransposedSpec) or spec.precision.accumulate != INT32:
        return are_small
    from leanconv.api.compiled_graph import weight_traits

    return functools.partial(weight_traits, spec)


@fewer_collections()
def compiled_layer(
    spec: LayerSpec, constants: Constants, options: PlanOptions, shares: bool = False
) -> CompiledLayer:
    """Choose and compile a layer for images of one size.

    Args:
        spec: the layer.
        constants: its weights, or any of their shapes, types and traits.
        options: within which limits.
        shares: whether kernels of any size are taken where there are some.

    Raises:
        BudgetError: nothing keeps them.
    """
    if isinstance(spec, TransposedSpec) or spec.precision.accumulate == INT32:
        from leanconv.api.compiled_graph import CompiledGraph

        return CompiledGraph(spec, constants, options)
    small, threads = are_small(constants.w), options.threads or default_threads()
    found = choice_of_any_size(spec, options, small) if shares else None
    if found is None:
        problem = replace(conv_problem(spec, options.max_error), small_weights=small)
        found = problem, _chosen(problem, options, threads)
    return CompiledConv(spec, *found, constants, threads)


def planned_layer(spec: LayerSpec, constants: Constants, options: PlanOptions) -> LayerPlan:
    """A plan of a layer with its constants packed, if no run is to: see `compiled_layer`."""
    layer = compiled_layer(spec, constants, options)
    if options.packs:
        return WeightlessPlan(layer, constants.bias)
    plan = LayerPlan(layer, layer.unfilled())
    plan.repack(*constants)
    return plan


def _chosen(problem: Problem, options: PlanOptions, threads: int) -> Candidate:
    """The fastest candidate that keeps the limits, by measurement if the options say so."""
    limits, target = (options.memory_limit, options.max_error), planning_target()
    requested = AUTO if options.algorithm is None else select.choice_named(options.algorithm)
    tuned = requested
    if options.tune and requested == AUTO:
        tuned = _tuned(problem, options, threads)
    choosing = ConvChoice(
        problem, target, threads, tuned, options.reproducible, *limits, options.packs
    )
    if tuned != requested and not choosing.is_kept():
        choosing = replace(choosing, requested=requested)
    return choosing.best()


def _tuned(problem: Problem, options: PlanOptions, threads: int) -> Choice:
    """The fastest choice by measurement, on one image if the plan is to be reproducible."""
    from leanconv.planner import tuner

    target, limit = planning_target(), options.memory_limit
    if options.reproducible:
        return tuner.tune_for_any_batch(problem, target).choice
    return tuner.tune(problem, target, threads, memory_limit=limit).choice


def storage_text(types: Precision) -> str:
    """The types in which operands are stored and computed with, as text."""
    stored = f"input {types.x}, weights {types.w}, output {types.y}"
    if types.x == types.w == types.y:
        stored = f"input, weights and output {types.x}"
    return f"stored: {stored}; products and sums {types.accumulate}"
