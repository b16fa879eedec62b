"""QLinearConv nodes: convolutions of codes in blocks of channels, one by one."""

from __future__ import annotations

from dataclasses import replace

from leanconv.algorithms import select
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.operators.quantised_node import CONSTANTS, QuantisedNode

OPS = ("QLinearConv",)


class QuantisedConvolution(Operator):
    """Convolutions of codes: a choice is an algorithm, with its parameters or without."""

    ops = OPS
    format_policy = FormatPolicy.BLOCKED_ONLY
    algorithms = select.PARAMETERS

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Always: groups that do not fill blocks are computed several at once."""
        return True

    def accepts_mixed(self, node: Node) -> bool:
        """A plain input is reordered into a buffer of the node's own."""
        return True

    def takes_codes(self, node: Node) -> bool:
        """Always."""
        return True

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """The cheapest choice, then the others."""
        made = QuantisedNode(context)
        problem, target, beside = made.problem, context.target, made.reorder_cycles
        first = select.choose(problem, target).choice
        cycles = select.estimated_cycles(first, problem, target)
        found = [replace(first, cycles=cycles)]
        if vary_parameters and not context.accuracy.reproducible:
            found += (choice for choice, _ in select.choices(problem, target))
        exact = [replace(each, cycles=each.cycles + beside, error=0.0) for each in found]
        return list(dict.fromkeys(exact))

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """What an algorithm costs a node, with parameters or without.

        Raises:
            SpecError: the algorithm cannot compute the node.
        """
        made = QuantisedNode(context)
        select.choose(made.problem, context.target, choice)
        cycles = select.estimated_cycles(choice, made.problem, context.target)
        return replace(choice, cycles=cycles + made.reorder_cycles, error=0.0)

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Why algorithms do not compute a node, or are not considered for it, by name."""
        return select.rejections(QuantisedNode(context).problem, context.target)

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """Weights, bias, scales, and the numbers behind an activation."""
        return tuple(node.input(number) for number in CONSTANTS)

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """Reorders of what is plain, and the kernels of the algorithm."""
        made = QuantisedNode(context)
        if not context.graph.types[context.node.output].elements:
            return Lowered((), algorithm="empty")
        return made.lowered(select.choose(made.problem, context.target, choice))


QUANTISED_CONVOLUTION = QuantisedConvolution()
