"""Compute layers of many weights by parts, some output channels each, to read these one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leanconv.graph.edit import Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType, is_filled

# Output channels of a part are a multiple of one of these, the larger if it fits.
_GROUPS = (64, 16)
_MOST_PARTS = 4096  # of all layers, of which each has a share by its bytes: planning takes time
_PER_CHANNEL = (1, 2, 4)  # inputs of a Conv with a row or a number for each output channel


def cutting_weights(part_bytes: int) -> Callable[[Graph], Graph]:
    """The pass that makes a Conv with more than twice `part_bytes` of weights several.

    Each computes some output channels, in the same order of summation as the whole; their results
    are concatenated, for one image by being computed there. Weights are views of the whole's.

    Left alone: convolutions of groups or with a residual, those of codes, and fused blocks.

    Args:
        part_bytes: of one part, at most, where neither 16 output channels are more nor the parts
            would be too many to plan.
    """

    def cut_weights(graph: Graph) -> Graph:
        held = sum(array.nbytes for array in graph.constants.values() if not is_filled(array))
        size = max(part_bytes, -(-2 * held // _MOST_PARTS))  # rounding halves it at most

        def rule(editor: Editor, node: Node) -> bool:
            return node.op == "Conv" and _cut(editor, node, size)

        return rewrite(graph, rule)

    return cut_weights


def parts_of_layers(graph: Graph) -> Mapping[str, int]:
    """Return the number of parts of the layer, by the name of each part's result.

    Each errs in its own elements of the layer's result alone.
    """
    producer, users = graph.producer(), graph.users()
    found: dict[str, int] = {}
    for node in graph.nodes:
        made = [producer.get(name) for name in node.inputs] if node.op == "Concat" else []
        parts = [each for each in made if each is not None and each.op == "Conv"]
        alone = all(len(users[part.output]) == 1 for part in parts)
        if len(parts) == len(node.inputs) and alone and len({p.inputs[0] for p in parts}) == 1:
            found.update((part.output, len(parts)) for part in parts)
    return found


def _cut(editor: Editor, node: Node, part_bytes: int) -> bool:
    """Replace a convolution by its parts and their concatenation, if it has to be cut."""
    w = editor.constants[node.inputs[1]]
    outputs, out = w.shape[0], editor.types[node.output]
    if node.attributes["group"] != 1 or node.input(3) or is_filled(w) or w.nbytes <= 2 * part_bytes:
        return False
    rows = part_bytes * outputs // w.nbytes
    group = next((each for each in _GROUPS if each <= rows), _GROUPS[-1])
    rows = max(1, rows // group) * group
    if rows >= outputs or not editor.may_add(w.nbytes):
        return False
    parts: list[Node] = []
    for first in range(0, outputs, rows):
        last = min(first + rows, outputs)
        inputs = list(node.inputs)
        for number in _PER_CHANNEL:
            if name := node.input(number):
                inputs[number] = editor.constant(name, editor.constants[name][first:last])
        shape = (out.shape[0], last - first, *out.shape[2:])
        result = editor.value(node.output, TensorType(shape, out.dtype))
        name = node.name or node.key  # of all parts, so that options for the layer are for them
        parts.append(node_like(node, inputs=tuple(inputs), outputs=(result,), name=name))
    results = tuple(part.output for part in parts)
    joined = Node("Concat", results, node.outputs, frozen({"axis": 1}), node.name)
    editor.replace(node, *parts, joined)
    return True
