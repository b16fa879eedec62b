"""A plan's decision for one node."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from leanconv.algorithms.magnitudes import are_small
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.canonical import canonical_text
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.operators import Accuracy, NodeContext
from leanconv.operators.conv_node import of_codes, sums_have
from leanconv.operators.convolution import OPS
from leanconv.records import dataclass
from leanconv.spec import PLAIN, Format
from leanconv.target import Target


@dataclass(frozen=True)
class Decision:
    """Formats and a choice for one node.

    Attributes:
        reads: the format wanted of each image that it reads.
        writes: the format of its outputs, all alike.
        choice: one of its operator's choices; `AUTO` leaves it to the cost model.
    """

    reads: Mapping[str, Format]
    writes: Format
    choice: Choice = AUTO

    def formats(self, node: Node) -> dict[str, Format]:
        """The format in which each value of the node is stored."""
        formats = {name: PLAIN for name in node.inputs if name}
        formats.update(self.reads)
        formats.update(dict.fromkeys(node.outputs, self.writes))
        return formats

    @property
    def layout(self) -> tuple[dict[str, Format], Format]:
        """The formats of its inputs and its outputs, as `FormatRules.possible` gives them."""
        return dict(self.reads), self.writes

    def context(self, node: Node, graph: Graph, target: Target, accuracy: Accuracy) -> NodeContext:
        """Return the context that the methods of the node's operator take."""
        return NodeContext(node, graph, self.formats(node), target, accuracy)


def node_key(
    node: Node,
    graph: Graph,
    decision: Decision,
    types: Mapping[str, TensorType] | None = None,
) -> str:
    """All that a node's choices depend on besides target and accuracy: not names.

    Of weights it says whether they are so small that transforms would lose them, or how many bits
    the sums of products of codes have. Which axes are open decides, too: kernels of any size.

    Args:
        node, graph, decision: for which an algorithm is chosen.
        types: of its values, if others than the graph's.
    """
    names = (*node.inputs, *node.outputs)
    held = graph.types if types is None else types
    kinds = tuple(held.get(name) for name in names)
    constant: tuple[int, ...] = tuple(name in graph.constants for name in names)
    if node.op in OPS:
        constant += (are_small(graph.constants[node.inputs[1]]),)
    elif of_codes(node):
        constant += (sums_have(node, graph),)
    reads = tuple(decision.reads.get(name) for name in names)
    open_axes = tuple(graph.open_axes.get(name, ()) for name in names)
    known = _texts.setdefault(node, {})
    case = kinds, constant, open_axes, reads, decision.writes
    if case not in known:
        if len(known) >= _MOST_TEXTS:
            known.clear()
        parts = node.op, sorted(node.attributes.items()), list(kinds), list(constant)
        opened = [list(open_axes)] if any(open_axes) else []
        places = [names.index(name) for name in names]
        known[case] = canonical_text((*parts, *opened, places, list(reads), decision.writes))
    return known[case]


# By node: shapes of one network share most nodes.
_texts: WeakKeyDictionary[Node, dict[object, str]] = WeakKeyDictionary()
_MOST_TEXTS = 32
