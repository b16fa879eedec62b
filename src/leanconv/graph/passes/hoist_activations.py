"""Apply activations before a Reshape, where the convolution is that can take them in."""

from __future__ import annotations

from leanconv.graph.activations import activation_of
from leanconv.graph.edit import Editor, channel_slope, conv_behind, node_like, rewrite
from leanconv.graph.ir import Graph, Node


def hoist_activations(graph: Graph) -> Graph:
    """Turn activation(Reshape(conv)) into Reshape(activation(conv)).

    A fully connected layer is a Conv and a Reshape by now; this brings its activation to the Conv,
    and the Reshape to that of the next layer. Several activations in a row move one by one.

    Left alone: values that others read as well, and a PRelu whose slopes are not along the
    convolution's channels.

    Requires: a verified graph, after `dense_to_conv`.
    Ensures: no activation that could move follows a private Reshape of a private Conv.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if activation_of(node) is None:
        return False
    view = editor.private_producer(node.inputs[0], "Reshape")
    if view is None:
        return False
    source = view.inputs[0]
    before = editor.producer(source)
    if before is None or not editor.is_private(source):
        return False
    if before.op not in ("Conv", "ConvTranspose") and activation_of(before) is None:
        return False
    slope: tuple[str, ...] = ()
    if node.op == "PRelu":
        moved = _slope(editor, node)
        if moved is None:
            return False
        slope = (moved,)
    active = editor.value(node.output, editor.types[source])
    editor.replace(
        node,
        node_like(node, inputs=(source, *slope), outputs=(active,)),
        node_like(view, inputs=(active,), outputs=node.outputs),
    )
    return True


def _slope(editor: Editor, node: Node) -> str | None:
    """The slopes of a PRelu for the layout of the convolution behind its Reshape."""
    found = conv_behind(editor, node.inputs[0])
    slope = channel_slope(editor, node, found.axis) if found else None
    if found is None or slope is None:
        return None
    spatial = len(editor.shape(found.conv.output)) - 2
    return editor.constant(node.inputs[1], slope.reshape(-1, *(1,) * spatial))
