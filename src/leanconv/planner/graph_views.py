"""Which values of a graph lie in others, as the search for plans sees them.

A value in one format is a key here, and a buffer when the graph is lowered: both follow the same
rules, node by node.
"""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.graph.ir import Graph, Node
from leanconv.planner.node_costs import NodeCost
from leanconv.planner.views import Views
from leanconv.spec import PLAIN, Format

Key = tuple[str, Format]  # a value in one format


class GraphViews:
    """Values that are bytes of others.

    Args:
        graph: after the passes.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._views: Views[Key] = Views()
        self._given = {(name, PLAIN) for name in (*graph.inputs, *graph.constants)}

    def root(self, key: Key) -> Key:
        """The value that a value lies in and that lies in no other."""
        return self._views.find(key)[0]

    def bytes(self, key: Key) -> int:
        """Of a value."""
        kind = self._graph.types[key[0]]
        return key[1].elements(kind.shape) * kind.dtype.bytes

    def is_whole(self, key: Key) -> bool:
        """Whether a value is all of a buffer."""
        root = self.root(key)
        return root == key or self.bytes(key) == self.bytes(root)

    def follow(self, node: Node, found: Sequence[NodeCost]) -> tuple[NodeCost, ...]:
        """Take in what a node's outputs share with its inputs; its costs without needless copies.

        Such a node is computed in one way, whatever is chosen elsewhere.

        Args:
            node: the next one.
            found: what its choices cost.
        """
        first = found[0]

        def key(number: int) -> Key:
            name = node.inputs[number]
            return name, first.decision.reads.get(name, PLAIN)

        for view in first.views:
            result = node.outputs[view.output], first.decision.writes
            self._views.add(result, key(view.source), view.offset)
        if not first.parts:
            return tuple(found)
        kept = {self.root((name, PLAIN)) for name in self._graph.outputs}
        placed = self._views.place(
            [(None if p.source is None else key(p.source), p.offset) for p in first.parts],
            (node.output, first.decision.writes),
            self.bytes,
            lambda root: root in kept or root in self._given,
        )
        return tuple(cost.placed(placed) for cost in found)

    def users_arrays(self) -> set[Key]:
        """Values that lie in the user's arrays, once all nodes were followed."""
        found = set(self._given)
        for name in self._graph.outputs:
            root = self.root((name, PLAIN))
            if self.bytes(root) <= self.bytes((name, PLAIN)):
                found.add(root)
        return found
