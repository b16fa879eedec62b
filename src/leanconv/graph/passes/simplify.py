"""Remove unneeded nodes and those that change nothing; merge nodes where one can do the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from leanconv.graph.edit import (
    Editor,
    frozen,
    node_like,
    part_nodes,
    reshape_node,
    rewrite,
    rewriting,
)
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import BINARY, OPS
from leanconv.graph.ops.base import broadcast
from leanconv.graph.ops.movement import moves_nothing
from leanconv.graph.regions import Region
from leanconv.symbolic import key

_T = TypeVar("_T")
_Bounds = tuple[float, float]


def drop_dead(graph: Graph) -> Graph:
    """Keep the nodes that an output depends on, and the constants that those nodes read.

    Requires: a verified graph.
    Ensures: every node and constant is needed, every part of a Split, the places of a MaxPool, and
        what a Loop stacks and captures; inputs and outputs are as before.
    """
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        if node.op == "Split" and not needed.issuperset(node.outputs):
            parts = part_nodes(node, graph.types[node.inputs[0]].shape)
            kept += [part for part in parts if part.output in needed]
        elif node.op == "MaxPoolWithIndices" and node.outputs[1] not in needed:
            kept.append(_without_places(node))
        else:
            if node.op == "Loop":
                node = _without_unread(node, needed)
            kept.append(node)
            needed.update(node.outputs)
        needed.update(node.inputs)
    needed.update(graph.inputs)
    return replace(
        graph,
        nodes=tuple(reversed(kept)),
        types=_only(graph.types, needed),
        constants=_only(graph.constants, needed),
    )


def _without_places(node: Node) -> Node:
    held = {name: value for name, value in node.attributes.items() if name != "storage_order"}
    return replace(node, op="MaxPool", outputs=node.outputs[:1], attributes=MappingProxyType(held))


def _without_unread(node: Node, needed: set[str]) -> Node:
    """Return a loop that stacks and captures only what is read outside or in its body."""
    states, body = node.attributes["states"], node.attributes["body"].graph
    stacked = [n for n, name in enumerate(node.outputs) if n < states or name in needed]
    if len(stacked) < len(node.outputs):
        body = drop_dead(replace(body, outputs=tuple(body.outputs[n] for n in stacked)))
    read = {*body.outputs, *(name for each in body.nodes for name in each.inputs)}
    given = [n for n, name in enumerate(body.inputs) if n < states or name in read]
    if len(stacked) == len(node.outputs) and len(given) == len(node.inputs):
        return node
    unread = set(body.inputs).difference(body.inputs[n] for n in given)
    types = _only(body.types, set(body.types) - unread)
    body = replace(body, inputs=tuple(body.inputs[n] for n in given), types=types)
    inputs = tuple(node.inputs[n] for n in given)
    outputs = tuple(node.outputs[n] for n in stacked)
    return node_like(node, inputs=inputs, outputs=outputs, attributes={"body": Region(body)})


def _only(items: Mapping[str, _T], names: set[str]) -> Mapping[str, _T]:
    return MappingProxyType({name: item for name, item in items.items() if name in names})


def bounds(node: Node) -> _Bounds | None:
    """Return the bounds of Relu and Clip; None for other operations and for bounds that cross."""
    if node.op == "Relu":
        return 0.0, math.inf
    if node.op == "Clip" and node.attributes["min"] <= node.attributes["max"]:
        return node.attributes["min"], node.attributes["max"]
    return None


def _clip_node(node: Node, source: str, low: float, high: float) -> Node:
    """Make a Relu or Clip of `source` that defines the value that `node` defines."""
    if (low, high) == (0.0, math.inf):
        return Node("Relu", (source,), node.outputs, frozen({}), node.name)
    attributes = frozen({"min": low, "max": high})
    return Node("Clip", (source,), node.outputs, attributes, node.name)


def clip_again(editor: Editor, node: Node, source: str, own: _Bounds | None) -> Node | None:
    """Clip `source` to `own` bounds as one node, together with the private clip before it.

    Clipping to [a, b] and then to [c, d] is clipping to the bounds clip(a), clip(b) by [c, d].

    Returns:
        A node in place of `node`; None without bounds, and where it would be the same one.
    """
    if own is None:
        return None
    before = editor.private_producer(source, "Relu", "Clip")
    inner = bounds(before) if before else None
    if before is not None and inner is not None:
        low, high = (min(max(bound, own[0]), own[1]) for bound in inner)
        source, own = before.inputs[0], (low, high)
    new = _clip_node(node, source, *own)
    return None if (new.op, new.inputs) == (node.op, node.inputs) else new


_MOST_JOINED = 64  # inputs of a Concat of Concats: a long row of them takes time in proportion


@rewriting
def simplify(editor: Editor, node: Node) -> bool:
    """Remove identities and merge neighbours, where the result stays the same number by number.

    - A Reshape, Transpose, Slice, Pad, Expand, Resize, pool, reduction or Concat that gives back
      its input; adding 0, multiplying by 1 and their like; Clip without bounds.
    - A Cast reads past one to a type that holds all numbers that were cast.
    - A Reshape reads past other Reshapes, and a Concat past those along its axis that it alone
      reads. Two Transposes become one, and one that moves only
      axes of extent 1 becomes a Reshape.
    - Clip and Relu in a row become one when nobody else reads the first.
    - Operands of a binary operation that are expanded anyway are read unexpanded.

    Left alone: an identity between two names that the user knows (an input or another output
    that is given out again).

    Requires: a verified graph.
    Ensures: the same outputs, no more nodes than before.
    """
    if _is_identity(editor, node) and editor.alias(node, node.inputs[0]):
        return True
    current = node
    while (handler := _HANDLERS.get(current.op)) and (new := handler(editor, current)):
        current = new
    if current is node:
        return False
    if not (_is_identity(editor, current) and editor.alias(node, current.inputs[0])):
        editor.replace(node, current)
    return True


def _is_identity(editor: Editor, node: Node) -> bool:
    if len(node.outputs) > 1:
        return False
    x, y = node.inputs[0], node.output
    # Shapes last: of symbols the comparison decides for all sizes that the graph is made for.
    return bool(x) and _keeps_elements(editor, node) and editor.types[x] == editor.types[y]


def _keeps_elements(editor: Editor, node: Node) -> bool:
    """Return whether the output is the first input if their shapes are equal."""
    a, entry = node.attributes, OPS[node.op]
    if moves_nothing(node.op, len(node.inputs), editor.shape(node.inputs[0]), a):
        return True
    if entry.keeps_single and not entry.reduces:
        ones = all(n == 1 for n in (*a["kernel_shape"], *a["strides"]))
        return ones and not any(a["pads"])
    if entry.keeps_single or node.op == "Cast":
        return True  # each axis that is reduced has one element; the types are equal
    if entry.neutral is not None:
        return editor.uniform(node.inputs[1]) == entry.neutral
    return bool(node.op == "Clip" and a["min"] == -math.inf and a["max"] == math.inf)


def _reshape(editor: Editor, node: Node) -> Node | None:
    before = editor.producer(node.inputs[0])
    if before is None or before.op != "Reshape":
        return None
    return node_like(node, inputs=before.inputs)


def _transpose(editor: Editor, node: Node) -> Node | None:
    perm: tuple[int, ...] = node.attributes["perm"]
    source = node.inputs[0]
    before = editor.producer(source)
    if before is not None and before.op == "Transpose":
        perm = tuple(before.attributes["perm"][axis] for axis in perm)
        source = before.inputs[0]
    extents = editor.shape(source)
    moved = [axis for axis in perm if extents[axis] != 1]
    if moved == sorted(moved):
        out = node.output
        return reshape_node(source, out, editor.shape(out), node.name)
    if source == node.inputs[0]:
        return None
    return node_like(node, inputs=(source,), attributes={"perm": perm})


def _concat(editor: Editor, node: Node) -> Node | None:
    inputs = list[str]()
    for name in node.inputs:
        before = editor.private_producer(name, "Concat")
        alike = before is not None and before.attributes == node.attributes
        inputs += before.inputs if before is not None and alike else (name,)
    if tuple(inputs) == node.inputs or len(inputs) > max(_MOST_JOINED, len(node.inputs)):
        return None
    return node_like(node, inputs=tuple(inputs))


def _cast(editor: Editor, node: Node) -> Node | None:
    before = editor.producer(node.inputs[0])
    if before is None or before.op != "Cast":
        return None
    first, between = (editor.types[name].dtype for name in (before.inputs[0], before.output))
    return node_like(node, inputs=before.inputs) if between.holds(first) else None


def _reduce(editor: Editor, node: Node) -> Node | None:
    extents = editor.shape(node.inputs[0])
    if any(extents[axis] != 1 for axis in node.attributes["axes"]):
        return None
    out = node.output
    return reshape_node(node.inputs[0], out, editor.shape(out), node.name)


def _clip(editor: Editor, node: Node) -> Node | None:
    return clip_again(editor, node, node.inputs[0], bounds(node))


def _binary(editor: Editor, node: Node) -> Node | None:
    inputs, entry = list(node.inputs), OPS[node.op]
    if entry.commutes and entry.neutral is not None and inputs[0] in editor.constants:
        inputs.reverse()  # the constant is second, where the identities look for it
    for index, name in enumerate(inputs):
        before = editor.producer(name)
        if before is None or before.op != "Expand":
            continue
        other, source = editor.shape(inputs[1 - index]), editor.shape(before.inputs[0])
        if broadcast(other, source) == editor.shape(node.output):
            inputs[index] = before.inputs[0]
    return None if tuple(inputs) == node.inputs else node_like(node, inputs=tuple(inputs))


# What an operation is alike to beside certain others, which no trait of it alone says.
_HANDLERS: dict[str, Callable[[Editor, Node], Node | None]] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Cast": _cast,
    "Relu": _clip,
    "Clip": _clip,
    **{op: _reduce for op, each in OPS.items() if each.reduces and each.keeps_single},
    **dict.fromkeys(BINARY, _binary),
}


def merge_common(graph: Graph) -> Graph:
    """Let identical nodes (same operation, inputs and attributes) share one result.

    Requires: a verified graph.
    Ensures: no two nodes are identical, but for those that define two outputs of the network.
    """
    seen: dict[Hashable, tuple[str, ...]] = {}

    def rule(editor: Editor, node: Node) -> bool:
        key = _node_key(node)
        first = seen.setdefault(key, node.outputs)
        return first != node.outputs and editor.alias(node, *first)

    return rewrite(graph, rule)


def _node_key(node: Node) -> Hashable:
    inputs = tuple(sorted(node.inputs)) if OPS[node.op].commutes else node.inputs
    return (
        node.op,
        inputs,
        tuple((name, key(value)) for name, value in sorted(node.attributes.items())),
    )
