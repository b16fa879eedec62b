"""Make one node of elementwise operations whose results only each other, or a reduction, read.

And one of the least and the largest of all elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from leanconv.graph.edit import (
    Editor,
    frozen,
    node_like,
    reshape_node,
    rewrite,
    rewriting,
)
from leanconv.graph.halves import computes
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS, infer
from leanconv.graph.ops.chain import IMAGE_CHANNELS
from leanconv.graph.ops.pointwise import (
    MOST_OPERANDS,
    MOST_SERIES,
    MOST_TERMS,
    Term,
    inner_nodes,
    joined,
    terms_of,
)
from leanconv.types import FLOAT32, FLOATS, HALVES, DType

_KERNEL = OPS["Expression"].kernel
_REDUCTIONS = {each.reduces: op for op, each in OPS.items() if each.reduces}


def separated(graph: Graph) -> Graph:
    """The graph with each Expression taken apart again: the nodes that it was made of."""
    if not any(node.op == "Expression" for node in graph.nodes):
        return graph
    types, open_axes, nodes = dict(graph.types), dict(graph.open_axes), list[Node]()
    for node in graph.nodes:
        inner = inner_nodes(node, types.keys())
        for each, term in zip(inner[:-1], terms_of(node), strict=False):
            read = [_computed(types[name]) for name in each.inputs]
            (kind,) = infer(each.op, read, each.attributes)
            types[each.output] = replace(kind, dtype=term.stored or kind.dtype)
            open_axes[each.output] = graph.open_axes.get(node.output, ())
        nodes += inner
    return replace(
        graph,
        nodes=tuple(nodes),
        types=MappingProxyType(types),
        open_axes=MappingProxyType(open_axes),
    )


def _computed(kind: TensorType) -> TensorType:
    """The type as registers hold it: halves are float32."""
    return replace(kind, dtype=FLOAT32) if kind.dtype in HALVES else kind


@rewriting
def fuse_chains(editor: Editor, node: Node) -> bool:
    """Make one Expression of elementwise nodes, so that a tensor between them is never in memory.

    They may be of several types: floats of one, integers, codes, bool. Each operation rounds as
    before; so does a value that was stored in halves. The answers are the same bits.

    Left alone: what others read, too, or the graph gives; results of another shape than the last
    one, which would be computed again for each element that they are spread over; casts between
    floats; more than so many operations and operands that are no numbers (`MOST_TERMS`,
    `MOST_OPERANDS`), which registers would not hold; more than two functions of many multiply-adds,
    which take longer than a tensor that is written and read; codes of an image, which `fuse_blocks`
    makes as a block of convolutions reads it.

    Requires: a verified graph, after the passes that look for patterns.
    Ensures: an Expression is named as its last node.
    """
    group, floats = [node], _float_types(editor, node)
    if floats is None or _is_image(editor, node):
        return False
    while found := next(_more(editor, group, floats), None):
        group.append(found)
        floats |= _float_types(editor, found) or set()
    if len(group) == 1:
        return False
    group.sort(key=lambda each: (each is node, editor.position(each.key)))
    between = {each.output: editor.types[each.output].dtype for each in group[:-1]}
    stored = {name: dtype for name, dtype in between.items() if dtype in HALVES}
    editor.replace(node, joined(group, stored))
    return True


def _float_types(editor: Editor, node: Node) -> set[DType] | None:
    """The float types in which an elementwise node computes; empty if it has no floats.

    Returns:
        None for a node that is no part of an Expression.
    """
    if OPS[node.op].kernel != _KERNEL:
        return None
    names = (*node.inputs, *node.outputs)
    halves = [name for name in names if editor.types[name].dtype in HALVES]
    if halves and (not computes(node) or any(name in editor.constants for name in halves)):
        return None
    attributes = (value for term in terms_of(node) for _, value in term.attributes)
    inner = {value for value in attributes if isinstance(value, DType)}  # what casts make
    dtypes = {_computed(editor.types[name]).dtype for name in names} | inner
    floats = {dtype for dtype in dtypes if dtype.is_float}
    return floats if len(floats) < 2 else None


def _is_image(editor: Editor, node: Node) -> bool:
    """Return whether a node makes codes of an image, as a block of convolutions may, too."""
    shape = editor.shape(node.output)
    return node.op == "QuantizeLinear" and len(shape) == 4 and shape[1] <= IMAGE_CHANNELS


def _more(editor: Editor, group: list[Node], floats: set[DType]) -> Iterator[Node]:
    """Nodes that only the group reads, of its shape, and that it has room for."""
    shape, made = editor.shape(group[0].output), {each.output for each in group}
    read = [name for each in group for name in each.inputs]
    terms = [term for each in group for term in terms_of(each)]
    for name in dict.fromkeys(read):
        before = None if name in made else editor.producer(name)
        if before is None or not editor.is_private(name, read.count(name)):
            continue
        dtypes = _float_types(editor, before)
        if dtypes is None or len(dtypes | floats) > 1 or editor.shape(name) != shape:
            continue
        names = {*read, *before.inputs} - made - {name}
        operands = [each for each in names if not _is_number(editor, each)]
        if len(operands) <= MOST_OPERANDS and _is_small([*terms, *terms_of(before)]):
            yield before


def _is_number(editor: Editor, name: str) -> bool:
    """Return whether a constant is one float, which becomes a number in the code."""
    return editor.types[name].dtype in FLOATS and editor.uniform(name) is not None


def _is_small(terms: Sequence[Term]) -> bool:
    series = sum(OPS[term.op].series for term in terms)
    return len(terms) <= MOST_TERMS and series <= MOST_SERIES


@rewriting
def fuse_reductions(editor: Editor, node: Node) -> bool:
    """Make a ReduceL1 of Abs and ReduceSum; of a square and a sum or a mean, that of squares.

    Left alone: what others read, too; integers.

    Requires: a verified graph, after the patterns that begin with such a mean.
    Ensures: what is reduced is read, and written nowhere. The answers are the same bits.
    """
    how = OPS[node.op].reduces
    if how is None or how[1]:
        return False
    before = editor.private_producer(node.inputs[0], "Abs", "Mul", "Pow")
    made = before and _REDUCTIONS.get((how[0], "Abs" if before.op == "Abs" else "Square"))
    if not before or not made or editor.types[node.output].dtype not in FLOATS:
        return False
    x = before.inputs[0]
    if before.op == "Mul" and before.inputs[1] != x:
        return False
    if before.op == "Pow" and editor.uniform(before.inputs[1]) != 2:
        return False
    if editor.shape(x) != editor.shape(before.output):  # an exponent of more axes adds some
        return False
    editor.replace(node, node_like(node, op=made, inputs=(x,)))
    return True


def fuse_extremes(graph: Graph) -> Graph:
    """Make one Extremes of a ReduceMin and a ReduceMax of all elements of the same floats.

    Requires: a verified graph.
    Ensures: these are read once. The answers are the same bits.
    """
    ends: dict[str, set[str]] = {}
    for node in graph.nodes:
        if (end := _end(graph.types, node)) is not None:
            ends.setdefault(node.inputs[0], set()).add(end)
    if all(len(found) < 2 for found in ends.values()):
        return graph
    made: dict[str, str] = {}

    def rule(editor: Editor, node: Node) -> bool:
        x, end = (*node.inputs, "")[0], _end(graph.types, node)
        if end is None or len(ends[x]) < 2:
            return False
        new = list[Node]()
        if x not in made:
            made[x] = editor.value(f"{x}.extremes", TensorType((2,), editor.types[x].dtype))
            new.append(Node("Extremes", (x,), (made[x],), name=node.name))
        one = editor.value(node.output, TensorType((1,), editor.types[x].dtype))
        part = {"starts": (int(end == "max"),), "steps": (1,), "sizes": (1,)}
        new.append(Node("Slice", (made[x],), (one,), frozen(part), node.name))
        last = reshape_node(one, node.output, editor.shape(node.output), node.name)
        editor.replace(node, *new, last)
        return True

    return rewrite(graph, rule)


def _end(types: Mapping[str, TensorType], node: Node) -> str | None:
    """Which end of all elements of floats a node gives; None for none."""
    reduces = OPS[node.op].reduces
    if reduces is None or reduces[0] not in ("min", "max"):
        return None
    kind = types[node.inputs[0]]
    every = {*node.attributes["axes"]} == {*range(len(kind.shape))}
    return reduces[0] if every and kind.shape and kind.dtype in FLOATS else None
