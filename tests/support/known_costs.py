"""What plans of one network begin with is made once for all plans of a test, which makes many.

That is the cost of every choice of every node and the graph of all plans, which do not depend on
limits and take most of the time. The search in it, the lowering and what runs are each plan's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from leanconv.graph.ir import Graph
from leanconv.operators import Accuracy
from leanconv.planner import graph_planner
from leanconv.planner.formats import FormatRules
from leanconv.planner.node_costs import NodeEvaluator
from leanconv.planner.search_graph import SearchGraph
from leanconv.target import Target


def evaluate_once(patch: pytest.MonkeyPatch) -> None:
    """Let evaluators of equal target and accuracy share costs, and equal networks the graph.

    Planners of a network with merged blocks share costs so: `NodeEvaluator.follow`. Nodes are told
    apart by `node_key`, which has all that choices depend on besides.
    """
    known: dict[object, dict[object, object]] = {}
    graphs: dict[object, SearchGraph] = {}
    keys: dict[int, object] = {}  # by the identity of what is known
    initialise, make = NodeEvaluator.__init__, graph_planner.make_search_graph

    def initialised(
        self: NodeEvaluator,
        graph: Graph,
        rules: FormatRules,
        target: Target,
        accuracy: Accuracy,
        growths: Mapping[str, float] = MappingProxyType({}),
        parts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        initialise(self, graph, rules, target, accuracy, growths, parts)
        key = target, accuracy, tuple(growths.items())
        self._known = known.setdefault(key, self._known)
        keys[id(self._known)] = key

    def made(
        evaluator: NodeEvaluator,
        threads: int,
        vary_parameters: bool = True,
        streams: bool = False,
    ) -> SearchGraph:
        graph = evaluator.rules.graph
        text = repr((graph.inputs, graph.outputs, graph.nodes, graph.types))
        key = keys[id(evaluator._known)], threads, vary_parameters, streams, text
        if key not in graphs:
            graphs[key] = make(evaluator, threads, vary_parameters, streams)
        return graphs[key]

    patch.setattr(NodeEvaluator, "__init__", initialised)
    patch.setattr(graph_planner, "make_search_graph", made)
