"""A convolution of floats: chosen, compiled, and the choice explained."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np

from leanconv.algorithms import Candidate, Problem, select
from leanconv.algorithms.magnitudes import Magnitudes, WeightTraits, are_small
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
from leanconv.errors import InputError, memory_reported
from leanconv.graph.factors import LEAST_TAPS
from leanconv.graph.zeros import LEAST, zeros_of
from leanconv.planner.packing import Preparation, candidate_program, packing_runs
from leanconv.progress import step
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import Block, SharedArena
from leanconv.runtime.pool import default_threads
from leanconv.runtime.portable import told_program
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned_offsets
from leanconv.spec.transposed import TransposedSpec
from leanconv.target import Target
from leanconv.types import INT32, DType, Precision, as_dtype
from leanconv.units import counted, format_bytes, format_ns


class _Packing:
    """A program that packs a candidate's constants, for any weights of its shape and many sizes.

    Args:
        candidate: has the constants.
        constants: any of the shapes and types that are packed.
        sums: the type in which bias and slopes are read.
        target, threads: for which the packing program is compiled.
        any_order: whether weights are read in place whatever order their axes have in memory; a
            program is compiled for each one that is met.

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
        any_order: bool = False,
    ) -> None:
        places, self.bytes = aligned_offsets(candidate.constant_bytes)
        self._kinds, self._sums = kinds_of(constants), sums
        numbers = list(map(np.copy, self._numbers(constants)))  # so that no two share memory
        names = (name for name in ("bias", "slope") if getattr(constants, name) is not None)
        named = dict(zip(names, numbers, strict=True))

        def prepared(w: np.ndarray) -> Preparation:
            calls, given = candidate.packing(w, named), (w, *numbers)
            return Preparation.of(calls, places, target, threads, given, moving=True)

        self._prepared = prepared if any_order else None
        self._preparation = prepared(np.ascontiguousarray(constants.w))
        self._others = dict[tuple[int, ...], Preparation]()  # by the order of the weights' axes
        kinds = [kind for kind in self._kinds if kind is not None]
        direct = all(dtype == sums.numpy for _, dtype in kinds[1:])
        self._look = [Lookup(shape, as_dtype(dtype)) for shape, dtype in kinds if direct]

    def _numbers(self, constants: Constants) -> list[np.ndarray]:
        """The arrays of channels, row-major and in the type of sums."""
        _, *channels = constants
        return [np.ascontiguousarray(n, self._sums) for n in channels if n is not None]

    def _found(self, constants: Constants) -> list[int]:
        """The addresses of arrays that are read where they are; empty where that is not seen."""
        given = [each for each in constants if each is not None]
        if len(given) != len(self._look):
            return []
        found = [look(each) for look, each in zip(self._look, given, strict=True)]
        return found if all(found) else []

    def _lying(self, w: np.ndarray) -> tuple[np.ndarray, Preparation]:
        """The weights as they are read, and the program that packs them."""
        order = _order_in_memory(w) if self._prepared else None
        if order is None or self._prepared is None:
            return np.ascontiguousarray(w), self._preparation
        if order not in self._others:
            alike = np.empty([w.shape[axis] for axis in order], w.dtype)
            self._others[order] = self._prepared(alike.transpose(np.argsort(order)))
        return w, self._others[order]

    def pack(self, constants: Constants, block: Block) -> None:
        """Pack constants into a block.

        Raises:
            InputError: one has another shape or type than those that this was made for.
        """
        size = constants.w.nbytes if isinstance(constants.w, np.ndarray) else 0
        step("packing weights", 0, size)
        if found := self._found(constants):
            self._preparation.run_at([*found, block.address])
        else:
            check_kinds(constants, self._kinds)
            w, preparation = self._lying(constants.w)
            preparation.run([w, *self._numbers(constants)], block.address)
        step("packing weights", size, size)


def _order_in_memory(w: np.ndarray) -> tuple[int, ...] | None:
    """Return the axes of weights from the slowest to the fastest; None if they are to be copied.

    That is where they are row-major, and where others lie between them.
    """
    order = tuple(sorted(range(w.ndim), key=lambda axis: (-w.strides[axis], axis)))
    turned = w.transpose(order)
    lies = turned.flags.c_contiguous and w.flags.aligned and not w.flags.c_contiguous
    return order if lies else None


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
        recipe = candidate.packing_recipe(channels)
        self.recipe = None if recipe is None else (recipe, problem.weights_change)
        self._kinds = kinds_of(constants)
        self._pack = self._packing(constants).pack
        needed, found = needed_bytes(candidate, threads), self.workspace_bytes + self.packed_bytes
        assert found == needed, f"{found} bytes, not {needed}"

    def pack(self, constants: Constants, block: Block) -> None:
        """Pack constants into a block.

        Raises:
            InputError: one has another shape or type than those that this was made for, other
            weights are 0 than those that the algorithm leaves out, or filters need more terms.
        """
        if self.candidate.of_values:
            check_kinds(constants, self._kinds)
            self._packing(constants).pack(constants, block)
            return
        pattern = self.candidate.pattern
        if pattern:
            found = zeros_of(constants.w, 0.0)
            if found is None or found.pattern != pattern:
                raise InputError(
                    "w has zeros in other places than the weights that were planned for, of which "
                    f"{self.algorithm} leaves them out; expected the same: plan it once more"
                )
        self._pack(constants, block)

    def _packing(self, constants: Constants) -> _Packing:
        """Return the program that packs the constants; another size's if it packs alike."""
        machine = self._target, self.threads
        key = self.recipe, kinds_of(constants), *machine
        found = None if self.recipe is None else _packings.get(key)
        if found is None:
            sums = self.spec.precision.accumulate
            change = self._problem.weights_change
            found = _Packing(self.candidate, constants, sums, *machine, any_order=change)
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
                implausible = other.name not in best or not other.plausible(self._problem)
                if select.saves_products(other.name) and implausible:
                    reason = reason or other.unlikely(self._problem)
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


def traits_of(spec: LayerSpec, options: PlanOptions) -> Callable[[np.ndarray], Hashable]:
    """Return a function of weights: equal results mean that a layer is computed with them alike."""
    if isinstance(spec, TransposedSpec):
        return are_small
    if spec.precision.accumulate != INT32:
        return functools.partial(_traits, spec, options=options)
    from leanconv.api.compiled_graph import weight_traits

    return functools.partial(weight_traits, spec, target=planning_target())


def _traits(spec: ConvSpec, w: np.ndarray, options: PlanOptions) -> WeightTraits:
    """The traits of weights; those that a named algorithm is for, however little they matter."""
    if options.packs:  # of other numbers than those that are given
        return WeightTraits(False, None, None)
    named = select.saves_products((options.algorithm or "").partition(":")[0])
    least = (0.0, 1) if named else (LEAST, LEAST_TAPS)
    return WeightTraits.of(w, spec.batch * math.prod(spec.output_size), *least)


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
    found = _chosen_candidate(spec, constants, options, spec if shares else None)
    return CompiledConv(spec, *found, constants, options.threads or default_threads())


def _chosen_candidate(
    spec: ConvSpec, constants: Constants, options: PlanOptions, like: ConvSpec | None
) -> tuple[Problem, Candidate]:
    """The problem of a convolution of floats, and what computes it: any size, chosen for `like`."""
    traits, threads = _traits(spec, constants.w, options), options.threads or default_threads()
    found = None if like is None else choice_of_any_size(spec, options, traits, like)
    if found is not None:
        return found
    problem = traits.given_to(conv_problem(spec, options.max_error))
    problem = replace(problem, weights_change=options.packs)
    return problem, _chosen(problem, options, threads)


class PackingConv:
    """A convolution of floats whose runs pack its weights: one native call does both.

    Args:
        spec: the convolution.
        constants: they lie in memory as those of all runs will.
        options: within which limits.
        like: a size of the layer, whose choice and code serve this one, too; None for its own.

    Attributes:
        arena: the workspace; packed weights lie in it, too.
    """

    @memory_reported("planning a convolution")
    @fewer_collections()
    def __init__(
        self,
        spec: ConvSpec,
        constants: Constants,
        options: PlanOptions,
        like: ConvSpec | None = None,
    ) -> None:
        _, candidate = _chosen_candidate(spec, constants, options, like)
        given = {n: each for n, each in constants._asdict().items() if each is not None}
        threads = options.threads or default_threads()
        self._made = packing_runs(candidate, given, planning_target(), threads, ["x", "y"])
        self._link()

    def _link(self, arena: SharedArena | None = None) -> None:
        made, tables = self._made, self._made.tables.address
        self.arena = (arena or SharedArena()).part(made.program.arena_bytes)
        run = told_program(made.program, made.library, self.arena).run
        # Of the addresses of x, of all constants, and of y.
        self.run_at: Callable[..., int] = lambda *addresses: run((*addresses, tables))

    def copied(self, arena: SharedArena | None = None) -> PackingConv:
        """A copy with a workspace of its own, or in an arena where others work, too."""
        made = copy.copy(self)
        made._link(arena)
        return made


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
    choosing = ConvChoice(problem, target, threads, tuned, options.reproducible, *limits)
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
