"""Gradients of a convolution: a choice within limits for each, its program, why it was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import walk_steps
from leanconv.api.compiled_graph import CompiledNodes, compiled
from leanconv.api.gradient_graph import RESULTS, GradientSpec, decisions_of, gradient_graph
from leanconv.api.options import PlanOptions
from leanconv.codegen import compiler
from leanconv.errors import BudgetError, SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.operators import Accuracy, NodeContext, operator_of
from leanconv.operators.convolution import Convolution
from leanconv.operators.weight_gradient import WeightGradient
from leanconv.planner.budget import Planner
from leanconv.planner.decisions import Decision, resolved_choices, with_costs
from leanconv.planner.weights import fill_weights
from leanconv.records import cached_property, dataclass, replace
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import ArenaPart, Block
from leanconv.runtime.pool import default_threads
from leanconv.runtime.portable import told_program
from leanconv.units import counted, error_text, format_bytes, format_ns


def parts_of(
    spec: GradientSpec, options: PlanOptions, algorithms: Mapping[str, str], any_size: bool = False
) -> list[GradientPart]:
    """Plan and compile what computes the gradients that are needed.

    Args:
        spec: the gradients.
        options: within which limits; those of bytes are of all parts together.
        algorithms: the ones to use, by what needs them.
        any_size: whether choices and code are to serve many batches and sizes.

    Raises:
        BudgetError: the limits are not kept; it says what keeps them all.
        SpecError: an algorithm does not compute its gradient.
    """
    try:
        return _parts_of(spec, options, algorithms, any_size)
    except BudgetError as error:
        if options.memory_limit is None or options.reproducible or not spec.last:
            raise
        try:
            return _parts_of(spec, options, algorithms, any_size, moved=False)
        except BudgetError as other:
            raise min(error, other, key=lambda each: each.smallest_bytes or math.inf) from None


def _parts_of(
    spec: GradientSpec,
    options: PlanOptions,
    algorithms: Mapping[str, str],
    any_size: bool,
    moved: bool = True,
) -> list[GradientPart]:
    """Plan and compile gradients; `moved` says whether few channels may be computed as planes."""
    wanted = [
        _Wanted(spec, needs, options, algorithms.get(needs[0], ""), any_size, moved)
        for needs in spec.parts
    ]
    limit, refused, found = options.memory_limit, list[BudgetError](), list[list[Choice]]()
    for each in wanted:
        try:
            found.append(each.accurate())
        except BudgetError as error:
            refused.append(error)
    if refused:
        raise max(refused, key=lambda error: error.smallest_error or 0.0)
    chosen = [choices[0] for choices in found] if limit is None else _within(limit, wanted, found)
    return [each.part(choice) for each, choice in zip(wanted, chosen, strict=True)]


def _within(
    limit: int, wanted: Sequence[_Wanted], found: Sequence[Sequence[Choice]]
) -> Sequence[Choice]:
    """The fastest choices whose largest workspace fits a limit beside all tables.

    Raises:
        BudgetError: there are none.
    """
    sized = [
        [(choice, each.bytes(choice)) for choice in choices]
        for each, choices in zip(wanted, found, strict=True)
    ]
    smallest, best = math.inf, None
    for way in product(*sized):
        needed = max(arena for _, (arena, _) in way) + sum(tables for _, (_, tables) in way)
        smallest = min(smallest, needed)
        cycles = sum(choice.cycles for choice, _ in way)
        if needed <= limit and (best is None or cycles < best[0]):
            best = cycles, [choice for choice, _ in way]
    if best is not None:
        return best[1]
    needed = int(smallest)
    raise BudgetError(
        f"the limit is {counted(limit, 'byte')}; the smallest plan needs "
        f"{counted(needed, 'byte')} ({format_bytes(needed)}); give memory_limit={needed} or more",
        needed,
    )


@dataclass(frozen=True, eq=False)
class GradientPart:
    """One gradient, or those of the weights and the bias, chosen and compiled.

    Attributes:
        needs: `"x"`, `"w"` or `"bias"`, or the last two.
        made: the program.
        choice: how it is computed.
        node, context: what computes it.
    """

    needs: tuple[str, ...]
    made: CompiledNodes
    choice: Choice
    node: Node
    context: NodeContext

    @cached_property
    def costed(self) -> Choice:
        """The choice with its cycles and error; those of sums by themselves are unknown."""
        return with_costs(self.context, self.choice)

    @cached_property
    def errors(self) -> dict[str, float]:
        """Expected, relative, in the max norm: what the choice states, or that of plain sums."""
        return dict(zip(self.results, errors_of(self.costed, self.context), strict=True))

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the gradients: dx, dw, db."""
        return tuple(RESULTS[need] for need in self.needs)

    @property
    def magnitudes(self) -> Magnitudes | None:
        """The bounds within which its error holds; None of plain sums by themselves."""
        operator = operator_of(self.node)
        if not isinstance(operator, Convolution | WeightGradient):
            return None
        return operator.magnitudes(self.context, self.choice)

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that a run reads, in order."""
        return self.made.lowered.inputs

    @property
    def algorithm(self) -> str:
        """Its name."""
        return self.choice.algorithm

    @property
    def workspace_bytes(self) -> int:
        """Memory that a run works in."""
        return self.made.program.arena_bytes

    def filled(self) -> Block:
        """The tables that runs read."""
        tables, pool = Block(self.made.program.constant_bytes), self.made.lowered.constants
        places, _ = pool.places()
        library = compiler.load(pool.kernels(), self.context.target)
        fill_weights(tables, pool, places, library, self.made.program.threads)
        return tables

    def linked(self, arena: ArenaPart) -> Callable[[Sequence[int]], int]:
        """The function of a run: of the addresses of what it reads, of the result, of tables."""
        return told_program(self.made.program, self.made.library, arena).run

    def explain(self) -> str:
        """Say how the gradient is computed, with its bytes, and why not otherwise."""
        threads, costs = self.made.program.threads, planning_target().costs
        operator, own = operator_of(self.node), self.costed
        best: dict[str, Choice] = {}
        for choice in operator.choices(self.context):
            best.setdefault(choice.algorithm, choice)

        def text(cycles: float) -> str:
            return format_ns(costs.shared_ns(costs.ns(cycles), threads))

        chosen = f", estimated {text(own.cycles)}" if self.algorithm else ""
        (_, error), *others = self.errors.items()
        refused = operator.rejections(self.context)
        lines = [
            f"  {self.results[0]}: {str(self.choice) or 'sums'}{chosen}, workspace "
            f"{format_bytes(self.workspace_bytes)}, expected error {error:.1e}"
        ]
        for name, choice in best.items():
            if name != self.algorithm:
                ratio = choice.cycles / max(1.0, own.cycles)
                why = refused.get(name, "the limits exclude it") if ratio < 1 else ""
                lines.append(
                    f"    {name}: {ratio:.2f} times the time by estimate: {text(choice.cycles)}, "
                    f"expected error {choice.error:.1e}" + (why and f"; {why}")
                )
        lines += [f"    {n}: {why}" for n, why in refused.items() if n not in best]
        lines += [f"  {n}: with {self.results[0]}, expected error {e:.1e}" for n, e in others]
        return "\n".join(lines)


def errors_of(choice: Choice, context: NodeContext) -> list[float]:
    """The errors of a node's gradients: what a choice states, and that of a bias's plain sums."""
    kinds, node = context.graph.types, context.node
    read, made = kinds[node.inputs[-1]], kinds[node.outputs[-1]]
    sums = made.dtype.roundoff * walk_steps(read.elements / max(1, made.elements))
    stated = not math.isnan(choice.error) and choice.error > 0
    return [choice.error if stated else sums, *([sums] * (len(node.outputs) - 1))]


class _Wanted:
    """A gradient that is to be planned, or that of the weights with that of the bias."""

    def __init__(
        self,
        spec: GradientSpec,
        needs: tuple[str, ...],
        options: PlanOptions,
        algorithm: str,
        any_size: bool,
        moved: bool,
    ) -> None:
        self._needs, self._options, self._algorithm = needs, options, algorithm
        self._spec = replace(spec, needs=needs)
        self._graph: Graph = gradient_graph(self._spec, any_size)
        target, threads = planning_target(), options.threads or default_threads()
        self._accuracy = Accuracy(options.max_error, options.reproducible)
        self._planner = Planner(self._graph, target, threads, self._accuracy)
        half_filled = target.lanes(self._graph.dtype) // 2 + 1
        self._decisions = list(decisions_of(self._graph, half_filled if moved else 0))
        keys = [node.name for node in self._graph.nodes]
        self._number = keys.index(RESULTS[needs[0]])  # of the node that computes the gradient

    @property
    def _node(self) -> Node:
        return self._graph.nodes[self._number]

    @cached_property
    def _context(self) -> NodeContext:
        plain = self._planner.unmerged
        decision = self._decisions[self._number]
        return decision.context(self._node, self._graph, plain.target, self._accuracy)

    def part(self, choice: Choice) -> GradientPart:
        """The gradient by a choice, compiled.

        What is best at usual sizes may refuse this one, such as a dilation beyond a small image.
        """
        try:
            made = compiled(self._graph, self._planner, None, self._with(choice))
        except SpecError:
            if self._algorithm or not self._graph.open_axes:
                raise
            choice = operator_of(self._node).default_choice(self._context)
            made = compiled(self._graph, self._planner, None, self._with(choice))
        return GradientPart(self._needs, made, choice, self._node, self._context)

    def bytes(self, choice: Choice) -> tuple[int, int]:
        """Workspace and tables of a choice."""
        plan = self._planner.unmerged.place_plan(tuple(self._with(choice)), None)
        return plan.storage.arena_bytes, plan.weight_bytes

    def _with(self, choice: Choice) -> list[Decision]:
        found = list(self._decisions)
        found[self._number] = replace(found[self._number], choice=choice)
        return found

    def _choices(self) -> Sequence[Choice]:
        operator, context = operator_of(self._node), self._context
        if self._algorithm:
            try:
                return [operator.estimated(context, operator.choice_named(self._algorithm))]
            except SpecError as error:
                need = self._needs[0]
                raise SpecError(
                    f"{RESULTS[need]}: {error}; algorithm={{{need!r}: ...}} names that of "
                    f"{RESULTS[need]} alone"
                ) from None
        limited = self._options.memory_limit is not None and not self._options.reproducible
        if self._options.max_error is None and not limited:
            plain = self._planner.unmerged
            given = self._graph, plain.target, self._accuracy, self._decisions
            return [resolved_choices(*given)[self._number].choice]
        return operator.choices(context)

    def accurate(self) -> list[Choice]:
        """Choices that keep the error, the fastest first; of a reproducible plan that one alone.

        Raises:
            BudgetError: there is none.
        """
        most = self._options.max_error
        found = sorted(self._choices(), key=lambda choice: choice.cycles)
        errors = [errors_of(each, self._context) for each in found]
        pairs = zip(found, errors, strict=True)
        accurate = [each for each, own in pairs if most is None or max(own) <= most]
        if accurate:
            return accurate[:1] if self._options.reproducible else accurate
        best = min(errors, key=max)
        least = max(best)
        result = RESULTS[self._needs[best.index(least)]]
        raise BudgetError(
            f"max_error is {most:.3g}; the most accurate {result} is expected to err by "
            f"{least:.3g}; give max_error={error_text(least)} or more",
            0,
            least,
        )
