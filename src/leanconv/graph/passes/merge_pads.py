"""Let windows pad by themselves instead of reading a padded copy of the tensor."""

from __future__ import annotations

from leanconv.graph.edit import Editor, node_like, rewrite
from leanconv.graph.ir import Graph, Node

_MAX_PAD = (1 << 31) - 1


def merge_pads(graph: Graph) -> Graph:
    """Move zero padding of the spatial axes into the Conv or AveragePool that reads it.

    Left alone: padding of batch or channels, with another value or mode, or of a negative
    amount; pools with `ceil_mode` (where a last window may begin decides on it) or whose own
    padding does not count, or whose padding would reach a whole kernel; MaxPool (its padding is
    not zero) and ConvTranspose (its `pads` cut the output).

    Requires: a verified graph.
    Ensures: the nodes that can pad by themselves do; a Pad with other users stays for those.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op not in ("Conv", "AveragePool"):
        return False
    pad = editor.producer(node.inputs[0])
    if pad is None or pad.op != "Pad" or not _is_spatial_zero(pad):
        return False
    rank = len(editor.shape(node.inputs[0]))
    begins, ends = pad.attributes["pads"][2:rank], pad.attributes["pads"][rank + 2 :]
    own = node.attributes["pads"]
    merged = tuple(a + b for a, b in zip(own, (*begins, *ends), strict=True))
    if max(merged) > _MAX_PAD:
        return False
    attributes: dict[str, object] = {"pads": merged}
    if node.op == "AveragePool":
        if not _pool_may_pad(node, merged):
            return False
        attributes["count_include_pad"] = True
    inputs = (pad.inputs[0], *node.inputs[1:])
    editor.replace(node, node_like(node, inputs=inputs, attributes=attributes))
    return True


def _is_spatial_zero(pad: Node) -> bool:
    pads = pad.attributes["pads"]
    rank = len(pads) // 2
    return (
        rank > 2
        and pad.attributes["mode"] == "constant"
        and pad.attributes["value"] == 0.0
        and not any(pads[:2])
        and not any(pads[rank : rank + 2])
    )


def _pool_may_pad(node: Node, merged: tuple[int, ...]) -> bool:
    attributes = node.attributes
    if attributes["ceil_mode"] or (any(attributes["pads"]) and not attributes["count_include_pad"]):
        return False
    spatial = len(merged) // 2
    return all(p < attributes["kernel_shape"][i % spatial] for i, p in enumerate(merged))
