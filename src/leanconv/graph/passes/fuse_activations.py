"""Let a convolution apply the activation that follows it."""

from __future__ import annotations

from leanconv.graph.activations import activation_of
from leanconv.graph.edit import Editor, channel_slope, node_like, rewrite
from leanconv.graph.ir import Graph, Node


def fuse_activations(graph: Graph) -> Graph:
    """Move an activation into the Conv or ConvTranspose whose only user it is.

    Left alone: a second activation on top of the first, PRelu with slopes that are not along
    the channels, and convolutions that others read as well.

    Requires: a verified graph, after `fuse_residual`: the activation comes after the residual.
    Ensures: such convolutions carry the activation, and the slopes of PRelu as fifth input.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    activation = activation_of(node)
    if activation is None:
        return False
    conv = editor.private_producer(node.inputs[0], "Conv", "ConvTranspose")
    if conv is None or conv.attributes["activation"] is not None:
        return False
    inputs = conv.inputs
    if node.op == "PRelu":
        slope = channel_slope(editor, node, 1)
        if slope is None:
            return False
        inputs = (*(*inputs, "", "")[:4], editor.constant(node.inputs[1], slope))
    editor.replace(
        node,
        node_like(conv, inputs=inputs, outputs=node.outputs, attributes={"activation": activation}),
    )
    return True
