"""Flow of values in a file's graphs: nodes that outputs need, and what depends on the inputs.

All of that is found by the names of nodes and values alone. Names in a graph that a node holds are
its own, and those of the graphs around it that nothing in it defines: these are captured, and a
node needs what its graphs capture as it needs its inputs. Operations that are not supported are
refused here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from leanconv.errors import NAME, LeanConvError, ModelError, UnsupportedError, located_inside, shown
from leanconv.graph.convert import FILE_RULES, RULES
from leanconv.graph.file_graph import DOMAINS, FileGraph, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_functions import Functions
from leanconv.graph.onnx_nodes import MOST_NESTED

_RANDOM = ("Bernoulli", "Multinomial")  # and all that begin with Random
_ITERATIONS = 3  # of a loop, looked at one by one; then all that is carried counts as data
_MOST = 20  # names that a message lists
_Which = Callable[[Iterable[bool]], bool]


def check_operations(nodes: Sequence[FileNode]) -> None:
    """Raise for the first operation that is not known, and name all others.

    Args:
        nodes: the nodes that outputs need, in an order in which they can run.

    Raises:
        UnsupportedError: there is one that is not known.
    """
    lacking: dict[str, str] = {}
    for node in nodes:
        if node.op in FILE_RULES:
            continue
        of_domain = "" if node.domain in DOMAINS else f" of the domain {shown(node.domain)!r}"
        lacking.setdefault(node.op, f"{node.where}{of_domain}")
    if not lacking:
        return
    (first, where), *others = lacking.items()
    advice = "expected operators that `leanconv explain --operators` lists"
    if any(op in _RANDOM or op.startswith("Random") for op in lacking):
        advice = (
            "expected a network that gives the same answer every time: what draws random numbers "
            "belongs to training; export it in evaluation mode, or give the numbers as an input"
        )
    more = nor([op for op, _ in others])
    written = {op.casefold(): op for op in FILE_RULES}
    from difflib import get_close_matches

    near = get_close_matches(first.rpartition(".")[2][:NAME].casefold(), written, 1, cutoff=0.7)
    meant = f"; did you mean {written[near[0]]}?" if near else ""
    raise UnsupportedError(f"{where} is not supported{more}; {advice}{meant}")


def nor(names: Sequence[str]) -> str:
    """Further operations for a message that says that one is not supported; empty for none."""
    return f", nor {', '.join(map(shown, names[:_MOST]))}" if names else ""


def flowing(
    nodes: Sequence[FileNode], inputs: Collection[str]
) -> Iterator[tuple[FileNode, list[int]]]:
    """Each node with the numbers of its inputs that depend on the network's inputs.

    What depends on shapes only does not. An operation that is not known passes on what it reads.

    Args:
        nodes: in an order in which they can run.
        inputs: names of the network's inputs.
    """
    running = set(inputs)
    for node in nodes:
        flows = [index for index, name in enumerate(node.inputs) if name in running]
        yield node, flows
        running.update(_passed(node, flows, running, all))


def _passed(
    node: FileNode, flows: Sequence[int], running: Collection[str], which: _Which
) -> Iterable[str]:
    """The outputs of a node that depend on the network's inputs.

    Args:
        node, flows: the node, and its inputs that do.
        running: all names that do.
        which: see `held_flow`.
    """
    if node.graphs:
        return held_flow(node, running, which)
    rule = RULES.get(node.op)
    typed: Collection[int] = rule.typed if rule else ()
    if all(index in typed for index in flows) or (rule and rule.knows_shape):
        return ()
    return [name for name in node.outputs if name]


def held_flow(node: FileNode, running: Collection[str], which: _Which) -> list[str]:
    """The outputs that depend on the network's inputs, of a node that holds graphs.

    Args:
        node: the node.
        running: names of the graph around it that depend on the network's inputs.
        which: `any` for outputs that do in one of the node's graphs, `all` for those that do
            whichever is computed.
    """
    if node.op == "Loop":
        return _looped(node, running, which)
    if node.op == "Scan":
        return list(filter(None, node.outputs))
    found = [_inner_flow(graph, running, which, ()) for graph in node.graphs.values()]
    rows = zip(node.outputs, zip(*found, strict=False), strict=False)
    return [name for name, row in rows if name and which(row)]


def _inner_flow(
    graph: FileGraph, running: Collection[str], which: _Which, inputs: Collection[str]
) -> list[bool]:
    """Return whether each output of a graph depends on the network's inputs, if its `inputs` do."""
    inner = {name for name, outer in graph.captured.items() if outer in running}
    inner.update(inputs)
    for each in graph.nodes:
        flows = [index for index, name in enumerate(each.inputs) if name in inner]
        inner.update(_passed(each, flows, inner, which))
    return [name in inner for name in graph.outputs]


def _looped(node: FileNode, running: Collection[str], which: _Which) -> list[str]:
    """`held_flow` of a Loop: what depends on the inputs after one iteration, does in the next."""
    graphs: Mapping[str, FileGraph] = node.graphs
    body = next(iter(graphs.values()))
    flows = [name in running for name in node.inputs[2:]]
    stacks: list[bool] = []
    for attempt in range(_ITERATIONS + 1):
        if attempt == _ITERATIONS:
            flows = [True] * len(flows)
        carried = {name for name, flow in zip(body.inputs[2:], flows, strict=False) if flow}
        found = _inner_flow(body, running, which, carried)[1:]
        after = [a or b for a, b in zip(flows, found, strict=False)]
        stacks = found[len(flows) :]
        if after == flows:
            break
        flows = after
    rows = zip(node.outputs, (*flows, *stacks), strict=False)
    return [name for name, flow in rows if name and flow]


def needed_nodes(
    nodes: Sequence[FileNode], given: Collection[str], outputs: Sequence[str]
) -> list[FileNode]:
    """The nodes on which the outputs depend, in an order in which they can run.

    Args:
        nodes: of the file, whose order is kept where it is one that they can run in.
        given: names of inputs and initialisers.
        outputs: of the graph.

    Raises:
        ModelError: a name is defined twice or nowhere, or the nodes form a circle.
    """
    producer = _producers(nodes, given)
    _check_outputs(outputs, producer)
    needed = {name for name in outputs if producer[name] >= 0}
    kept = []
    for node in reversed(_ordered(nodes, producer)):
        if any(name in needed for name in node.outputs):
            kept.append(node)
            needed.update(node.reads)
    return kept[::-1]


def _producers(nodes: Sequence[FileNode], given: Collection[str]) -> dict[str, int]:
    """The index of the node that defines each value; -1 for inputs and constants."""
    producer: dict[str, int] = dict.fromkeys(given, -1)
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if name in producer:
                raise ModelError(
                    f"node {node.name!r} ({shown(node.bare_op)}) defines {shown(name)!r}, which is "
                    "defined before; expected every value to be defined once"
                )
            if name:
                producer[name] = index
    for node in nodes:
        for name in node.reads:
            if name and name not in producer:
                raise ModelError(
                    f"node {node.name!r} ({shown(node.bare_op)}) reads {shown(name)!r}, which "
                    "nothing defines; expected an input, an initializer or the output of a node"
                )
    return producer


def _check_outputs(outputs: Sequence[str], producer: dict[str, int]) -> None:
    if not outputs:
        raise ModelError("the graph has no outputs; expected at least one")
    if len(set(outputs)) != len(outputs):
        raise ModelError("an output is given twice; expected distinct outputs")
    lost = [name for name in outputs if name not in producer]
    if lost:
        raise ModelError(
            f"output {shown(lost[0])!r} is defined by nothing; expected an input, an initializer "
            "or the output of a node"
        )


def _ordered(nodes: Sequence[FileNode], producer: dict[str, int]) -> list[FileNode]:
    """Sort the nodes topologically, keeping the file's order as far as possible."""
    if all(
        producer[name] < index for index, node in enumerate(nodes) for name in node.reads if name
    ):
        return list(nodes)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in {producer[name] for name in node.reads if name} - {-1}:
            waiting[index] += 1
            readers[source].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    result = []
    while ready:
        index = heapq.heappop(ready)
        result.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(result) != len(nodes):
        stuck = next(node for node, count in zip(nodes, waiting, strict=True) if count)
        raise ModelError(
            f"the graph has a circle, at or before node {stuck.name!r} ({shown(stuck.op)}); "
            "expected nodes that can be put in an order"
        )
    return result


class Subgraphs:
    """Completes the nodes of a file's graphs.

    Args:
        functions: of the file.
        limits: how many nodes all graphs together may have.
    """

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._left = limits.nodes

    def complete(
        self,
        nodes: Sequence[FileNode],
        given: Collection[str],
        outputs: Sequence[str],
        depth: int = 0,
    ) -> list[FileNode]:
        """The nodes on which outputs depend, calls of functions replaced, also in their graphs.

        Args:
            nodes: of a graph.
            given: names of its inputs, its initialisers and what it captures.
            outputs: of the graph.
            depth: how many nodes hold it, one within the other.

        Raises:
            ModelError: a name is defined twice or nowhere, nodes form a circle, or there are too
                many of them, or graphs that lie too deep in each other.
        """
        raw = needed_nodes(nodes, given, outputs)
        if any(self._functions.calls(node) for node in raw):
            taken = set(given).union(*(node.outputs for node in raw))
            raw = needed_nodes(self._functions.expanded(raw, taken), given, outputs)
        self._left -= len(raw)
        if self._left < 0:
            raise ModelError(
                f"the graphs of the file have over {self._limits.nodes} nodes together; expected "
                "at most that many; raise the limit `nodes` if you trust the file"
            )
        if not any(node.graphs for node in raw):
            return raw
        return needed_nodes([self._inside(node, depth) for node in raw], given, outputs)

    def _inside(self, node: FileNode, depth: int) -> FileNode:
        """The node with its graphs completed."""
        if not node.graphs:
            return node
        if depth == MOST_NESTED:
            raise ModelError(
                f"{node.where} lies in {depth} graphs, one within the other; expected at most "
                f"{MOST_NESTED - 1}: functions that come to an end"
            )
        graphs = {}
        for name, graph in node.graphs.items():
            try:
                graphs[name] = self._graph(graph, depth + 1)
            except LeanConvError as error:
                raise located_inside(error, f"{node.where}, {name}") from error
        return replace(node, graphs=MappingProxyType(graphs))

    def _graph(self, graph: FileGraph, depth: int) -> FileGraph:
        given = {*graph.inputs, *graph.undecoded, *graph.captured}
        nodes = self.complete(graph.nodes, given, tuple(dict.fromkeys(graph.outputs)), depth)
        needed = {*graph.outputs, *(name for node in nodes for name in node.reads)}
        refused = None
        try:
            check_operations(nodes)
        except UnsupportedError as error:  # it may never be computed
            refused = error
        return replace(
            graph,
            nodes=tuple(nodes),
            undecoded={name: data for name, data in graph.undecoded.items() if name in needed},
            captured={name: outer for name, outer in graph.captured.items() if name in needed},
            refused=refused,
        )
