"""Write pools over the whole map, and reductions, in one form; pool where channels are last.

Windows pad by themselves instead of reading a padded copy of the tensor.
"""

from __future__ import annotations

from leanconv.graph.edit import Editor, frozen, node_like, reshape_node, rewriting
from leanconv.graph.ir import Node, TensorType
from leanconv.graph.ops import OPS

_REDUCTIONS = {"AveragePool": "ReduceMean", "MaxPool": "ReduceMax"}
_LEAST_LAST = 64  # bytes of a pixel's channels; less of them fill no vector
_MAX_PAD = (1 << 31) - 1


@rewriting
def global_pooling(editor: Editor, node: Node) -> bool:
    """Turn a pool whose one window is the whole map into a reduction over the spatial axes.

    A reduction that drops its axes becomes one that keeps them and a Reshape, so that a global
    pool always ends in a (N, C, 1, 1) map and the Reshape meets those of the layers behind it.

    Left alone: padded and dilated pools, windows smaller than the map, and pools of types of which
    there are no reductions.

    Requires: a verified graph.
    Ensures: every reduction keeps its axes.
    """
    if node.op in _REDUCTIONS and _covers(editor, node):
        axes = tuple(range(2, len(editor.shape(node.inputs[0]))))
        attributes = frozen({"axes": axes, "keepdims": True})
        op = _REDUCTIONS[node.op]
        editor.replace(node, Node(op, node.inputs, node.outputs, attributes, node.name))
        return True
    if OPS[node.op].reduces and not node.attributes["keepdims"]:
        _keep_axes(editor, node)
        return True
    return False


@rewriting
def pool_channels_last(editor: Editor, node: Node) -> bool:
    """Pool codes whose channels are last where they lie, as maps of one axis more.

    Of (N, H, W, C), (N, 1, H, W, C) is pooled by windows of one channel.

    Left alone: floats, of which a maximum may be either zero; volumes; few channels.

    Requires: a verified graph.
    Ensures: no integers are transposed only to be pooled.
    """
    if node.op != "Transpose":
        return False
    pool = editor.private_producer(node.inputs[0], "MaxPool")
    first = pool and editor.private_producer(pool.inputs[0], "Transpose")
    if pool is None or first is None or len(pool.outputs) > 1:
        return False
    x, dtype = editor.shape(first.inputs[0]), editor.types[first.inputs[0]].dtype
    rank = len(x)
    to_first, to_last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    turned = first.attributes["perm"] == to_first and node.attributes["perm"] == to_last
    if not turned or rank > 4 or not dtype.is_integer or x[-1] * dtype.bytes < _LEAST_LAST:
        return False
    out, window = editor.shape(node.output), pool.attributes
    before, after = window["pads"][: rank - 2], window["pads"][rank - 2 :]
    attributes = {name: (*window[name], 1) for name in ("kernel_shape", "strides", "dilations")}
    attributes["pads"] = (*before, 0, *after, 0)
    wide = editor.value(node.output, TensorType((x[0], 1, *x[1:]), dtype))
    pooled = editor.value(node.output, TensorType((out[0], 1, *out[1:]), dtype))
    editor.replace(
        node,
        reshape_node(first.inputs[0], wide, editor.shape(wide), node.name),
        node_like(pool, inputs=(wide,), outputs=(pooled,), attributes=attributes),
        reshape_node(pooled, node.output, out, node.name),
    )
    return True


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


@rewriting
def merge_pads(editor: Editor, node: Node) -> bool:
    """Move zero padding of the spatial axes into the Conv or AveragePool that reads it.

    Left alone: padding of batch or channels, with another value or mode, or of a negative
    amount; pools with `ceil_mode` (where a last window may begin decides on it) or whose own
    padding does not count, or whose padding would reach a whole kernel; MaxPool (its padding is
    not zero) and ConvTranspose (its `pads` cut the output).

    Requires: a verified graph.
    Ensures: the nodes that can pad by themselves do; a Pad with other users stays for those.
    """
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
