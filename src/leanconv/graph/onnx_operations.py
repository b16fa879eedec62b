"""Which operations of a file are not supported, by the names of nodes and values alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import FILE_RULES, RULES
from leanconv.graph.file_errors import NAME, shown
from leanconv.graph.file_graph import DOMAINS, FileGraph, FileNode

_RANDOM = ("Bernoulli", "Multinomial")  # and all that begin with Random
_ITERATIONS = 3  # of a loop, looked at one by one; then all that is carried counts as data
_MOST = 20  # names that a message lists
_Which = Callable[[Iterable[bool]], bool]


def check_operations(nodes: Sequence[FileNode]) -> None:
    """Raise for the first operation that is not known, and name all others.

    Args:
        nodes: those that the outputs need, in an order in which they can run.

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
    graph: FileGraph,
    running: Collection[str],
    which: _Which,
    inputs: Collection[str],
) -> list[bool]:
    """Whether each output of a graph depends on the network's inputs, if its `inputs` do."""
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
