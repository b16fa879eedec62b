"""The interface of operators: accuracy, formats, choices of how a node is computed, kernels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from math import prod
from types import MappingProxyType

from leanconv.algorithms.parameters import AUTO, Choice, Parameters, parse_choice
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Lowered
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.regions import all_constants
from leanconv.kernels import KernelContext
from leanconv.records import dataclass, field, replace
from leanconv.target import Target
from leanconv.types import DType

# The error of a network that is aimed at without a max_error, and one layer's share of it.
_NETWORK_ERROR = 1e-5  # in float32
LAYER_SHARE = 0.12


def network_error(dtype: DType) -> float:
    """The error of a network that is aimed at without a `max_error`."""
    return dtype.scaled_error(_NETWORK_ERROR)


@dataclass(frozen=True)
class Accuracy:
    """Requirements on the arithmetic of each layer.

    Attributes:
        layer_error: relative error accepted of one layer; the default of one layer if None.
        reproducible: whether the batch must not change the bits of an image's results.
        weights_from_dram: whether weights come from DRAM in each run, because no cache holds those
            of the whole network.
        half: the half precision that the user asked for: products may be of factors rounded to
            it, and sums of a few products in it. None: they are float32.
        last_error: relative error accepted of a layer whose results are a network's outputs as they
            are; None in a part of a network, such as a loop's body, where no layer is the last.
    """

    layer_error: float | None = None
    reproducible: bool = False
    weights_from_dram: bool = False
    half: DType | None = None
    last_error: float | None = None

    def within(self, max_error: float | None, dtype: DType) -> Accuracy:
        """The same for a network of that type that may err by `max_error`.

        Without a `max_error` a layer has its share of what is aimed at, and one that is last all of
        it. With one it is the power of two below it, and above it for one that is last, no less
        than the roundoff and no more than 1. That excludes nothing that could be used, as the error
        of a layer that is not last more than doubles on its way to the outputs
        (`NodeCost.passed_error`). And all `max_error` between two powers have the same choices, so
        that the least one that some plan keeps can be found.
        """
        if max_error is None:
            aim = network_error(dtype)
            return replace(self, layer_error=aim * LAYER_SHARE, last_error=aim)
        exponent = math.frexp(max_error)[1]
        below, above = (
            min(1.0, max(dtype.roundoff, math.ldexp(part, exponent))) for part in (0.5, 1.0)
        )
        return replace(self, layer_error=below, last_error=above)

    @property
    def inside(self) -> Accuracy:
        """The same for a part of the network, in which no layer is the last."""
        return replace(self, last_error=None)

    @property
    def of_last(self) -> Accuracy:
        """The same for a layer that is last."""
        return replace(self, layer_error=self.last_error, last_error=None)

    def of_network(self, graph: Graph, target: Target) -> Accuracy:
        """The same for a network whose constants are known: whether they come from DRAM."""
        weights = sum(array.nbytes for array in all_constants(graph))
        from_dram = weights > target.costs.l3_share * max(target.l3_bytes, target.l2_bytes)
        return replace(self, weights_from_dram=from_dram)


class FormatPolicy(Enum):
    """In which format a node that accepts blocks of channels is computed where no limit decides."""

    FOLLOW_INPUTS = "that of most elements which it reads"
    PREFER_BLOCKED = "in blocks; one that accepts mixed formats writes what its users read"
    BLOCKED_ONLY = "in blocks: its kernels' lanes run along channels"


@dataclass(frozen=True, eq=False)
class NodeContext(KernelContext):
    """A node with all that its lowering depends on.

    Attributes:
        accuracy: requirements on the arithmetic.
    """

    accuracy: Accuracy = field(default_factory=Accuracy)

    def access(self, name: str) -> Access:
        """Return the addresses of a value's elements in its format."""
        return Access.of_format(self.graph.types[name].shape, self.formats[name])

    @property
    def any_size(self) -> tuple[int, ...]:
        """Axes, 0 to 2, of images that the node reads or writes whose size is open.

        That is depth, height and width. Images of one pixel are the pixels of one image, and their
        number is its width.
        """
        types, axes = self.graph.types, self.graph.open_axes
        found: set[int] = set()
        for name in (*self.node.inputs[:1], *self.node.outputs):
            shape = types[name].shape
            pixels = prod(shape[2:]) == 1
            found |= {3 - len(shape) + axis for axis in axes.get(name, ()) if axis >= 2}
            found |= {2 for axis in axes.get(name, ()) if axis == 0 and pixels}
        return tuple(sorted(found))


class Operator(ABC):
    """One or several operations of a graph, and what the planner needs to know of their nodes.

    Attributes:
        ops: names of the operations.
        format_policy: in which format nodes are computed where no limit decides.
        algorithms: the parameters of each algorithm for its nodes, by the algorithm's name; none
            where there is nothing to choose.
    """

    ops: Sequence[str]
    format_policy = FormatPolicy.FOLLOW_INPUTS
    algorithms: Mapping[str, type[Parameters]] = MappingProxyType({})

    @abstractmethod
    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Return whether a node can be computed with tensors in blocks of `block` channels.

        If so, all its inputs of rank 3 and more that are no constants may be blocked together with
        its output, if that is of rank 3 or more; otherwise all are plain.
        """

    def policy(self, node: Node, graph: Graph) -> FormatPolicy:
        """In which format a node is computed where no limit decides."""
        del node, graph
        return self.format_policy

    def accepts_mixed(self, node: Node) -> bool:
        """Return whether the first input may have another format than other inputs and the output.

        Everything that reads this input must take both formats: also what the node's attributes
        say, such as a block inside that adds its own input.
        """
        del node
        return False

    def may_be_last(self, node: Node, graph: Graph) -> tuple[str, ...]:
        """Return those of its inputs and its output that may be in NHWC, each by itself."""
        del node, graph
        return ()

    def takes_codes(self, node: Node) -> bool:
        """Return whether images of int8 and uint8 may be in blocks, if it accepts blocks."""
        del node
        return False

    @abstractmethod
    def choices(self, context: NodeContext, vary_parameters: bool = True) -> Sequence[Choice]:
        """The choices for a node; the first is the one that is taken where none is named.

        Args:
            context: the node.
            vary_parameters: whether parameters of an algorithm are varied, too.
        """

    def default_choice(self, context: NodeContext) -> Choice:
        """The first of `choices`; the others are not looked for if that saves time."""
        return self.choices(context)[0]

    def choice_named(self, text: str) -> Choice:
        """The choice that a text names, `AUTO` for an empty one.

        Raises:
            SpecError: there is none of that name for any node.
        """
        return parse_choice(text, self.algorithms) if text else AUTO

    def estimated(self, context: NodeContext, choice: Choice) -> Choice:
        """The costs of a choice that `choices` does not list, because it is made on request only.

        Raises:
            SpecError: the node cannot be computed like that.
        """
        node, known = context.node, (str(choice) for choice in self.choices(context))
        raise SpecError(
            f"node {node.name or node.key!r} ({node.op}) cannot be computed by "
            f"{str(choice)!r}; expected one of {', '.join(known)}"
        )

    @abstractmethod
    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """Make the kernels of a node.

        Args:
            context: the node, its formats such as the other methods allow.
            choice: one of `choices`; `AUTO` for the first.

        Returns:
            Calls, packed constants and scratch; no calls for a result without elements.

        Raises:
            UnsupportedError: there is no kernel for the operation.
            SpecError: there is no such choice.
        """

    def rejections(self, context: NodeContext) -> dict[str, str]:
        """Why the algorithms that do not compute a node do not, by algorithm."""
        del context
        return {}

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """The constants of a node whose values decide nothing: they are only packed."""
        del node
        return ()


def by_operation(*operators: Operator) -> Mapping[str, Operator]:
    """The operator of each of their operations, by its name."""
    table: dict[str, Operator] = {}
    for operator in operators:
        for op in operator.ops:
            assert op not in table, f"two operators compute {op}"
            table[op] = operator
    return table
