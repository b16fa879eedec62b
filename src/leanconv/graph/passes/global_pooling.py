"""Write pools over the whole map, and reductions, in one form."""

from __future__ import annotations

from leanconv.graph.edit import Editor, frozen, node_like, reshape_node, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS

_REDUCTIONS = {"AveragePool": "ReduceMean", "MaxPool": "ReduceMax"}


def global_pooling(graph: Graph) -> Graph:
    """Turn a pool whose one window is the whole map into a reduction over the spatial axes.

    A reduction that drops its axes becomes one that keeps them and a Reshape, so that a global
    pool always ends in a (N, C, 1, 1) map and the Reshape meets those of the layers behind it.

    Left alone: padded and dilated pools, windows smaller than the map, and pools of types of which
    there are no reductions.

    Requires: a verified graph.
    Ensures: every reduction keeps its axes.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op in _REDUCTIONS and _covers(editor, node):
        axes = tuple(range(2, len(editor.shape(node.inputs[0]))))
        attributes = frozen({"axes": axes, "keepdims": True})
        op = _REDUCTIONS[node.op]
        editor.replace(node, Node(op, node.inputs, node.outputs, attributes, node.name))
        return True
    if node.op.startswith("Reduce") and not node.attributes["keepdims"]:
        _keep_axes(editor, node)
        return True
    return False


def _covers(editor: Editor, node: Node) -> bool:
    extents = editor.shape(node.inputs[0])[2:]
    attributes, dtype = node.attributes, editor.types[node.inputs[0]].dtype
    return (
        dtype in OPS[_REDUCTIONS[node.op]].dtypes
        and not any(attributes["pads"])  # known: sizes that may be open are asked after it
        and tuple(attributes["kernel_shape"]) == extents
        and all(d == 1 or n == 1 for d, n in zip(attributes["dilations"], extents, strict=True))
        and all(extent == 1 for extent in editor.shape(node.output)[2:])
    )


def _keep_axes(editor: Editor, node: Node) -> None:
    out = node.output
    kind = editor.types[node.inputs[0]]
    axes = node.attributes["axes"]
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(kind.shape))
    kept = editor.value(out, TensorType(shape, kind.dtype))
    editor.replace(
        node,
        node_like(node, outputs=(kept,), attributes={"keepdims": True}),
        reshape_node(kept, out, editor.shape(out), node.name),
    )
