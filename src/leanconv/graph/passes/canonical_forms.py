"""Write layers in one form: dense ones as convolutions, pools over the whole map as reductions.

Pools are computed where channels are last, and windows pad by themselves instead of reading a
padded copy.
"""

from __future__ import annotations

import math

import numpy as np

from leanconv.graph.edit import (
    Array,
    Editor,
    channel_extent,
    channel_vector,
    frozen,
    node_like,
    reshape_node,
    rewrite,
    rewriting,
)
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.records import dataclass

_FEW_CHANNELS = 4  # of a map that is no blocks of them

# (weight, transposed, alpha, kernel) -> the constant made of it; layers that share a weight go on
# sharing it.
_Made = dict[tuple[str, bool, float, tuple[int, ...]], str]
_REDUCTIONS = {"AveragePool": "ReduceMean", "MaxPool": "ReduceMax"}
_LEAST_LAST = 64  # bytes of a pixel's channels; less of them fill no vector
_MAX_PAD = (1 << 31) - 1


@dataclass(frozen=True)
class _Dense:
    """y[r, m] = alpha · sum_k x[r, k] · w[k, m] + bias[m].

    Attributes:
        x: the value of shape (..., K).
        w: the constant, of shape (K, M), or (M, K) when `transposed`.
        rows, inputs, outputs: R, K and M, all positive.
        bias: a constant that varies along the last axis only, "" for none; times `beta`.
    """

    x: str
    w: str
    transposed: bool
    rows: int
    inputs: int
    outputs: int
    alpha: float = 1.0
    bias: str = ""
    beta: float = 1.0


def dense_to_conv(graph: Graph) -> Graph:
    """Turn Gemm and MatMul with a constant right side (K, M) into Conv and Reshapes.

    A Reshape of a map (N, C, H, W) to (N, C·H·W) followed by such a layer becomes a Conv whose
    kernel is the whole map, reading the map itself (also with one or three spatial axes), unless it
    has few channels. Anything else becomes rows (R, K, 1, 1), a 1x1 Conv, and a Reshape back. The
    constants take in alpha, beta and the transposition of the weights.

    Left alone: a right side that is computed or has another rank than 2; a left side that is
    transposed or a plain vector; a third Gemm input that is computed or varies from row to row;
    and tensors without elements.

    Requires: a verified graph.
    Ensures: every layer that qualifies is a Conv with its bias and no activation.
    """
    made: _Made = {}

    def rule(editor: Editor, node: Node) -> bool:
        dense = _read(editor, node)
        return dense is not None and _write(editor, node, dense, made)

    return rewrite(graph, rule)


def _read(editor: Editor, node: Node) -> _Dense | None:
    if node.op not in ("Gemm", "MatMul"):
        return None
    x, w = node.inputs[:2]
    xs, ws = editor.shape(x), editor.shape(w)
    if w not in editor.constants or len(ws) != 2 or len(xs) < 2 or 0 in xs + ws:
        return None
    ws = tuple(map(int, ws))  # a constant that is made of extents is for these alone
    if node.op == "MatMul":
        return _Dense(x, w, False, math.prod(xs[:-1]), ws[0], ws[1])
    a, bias = node.attributes, node.input(2)
    if a["transA"]:
        return None
    if bias and (
        bias not in editor.constants
        or not channel_extent(editor.shape(bias), editor.shape(node.output), 1)
    ):
        return None
    transposed = bool(a["transB"])
    inputs, outputs = ws[::-1] if transposed else ws
    return _Dense(x, w, transposed, xs[0], inputs, outputs, a["alpha"], bias, a["beta"])


def _write(editor: Editor, node: Node, dense: _Dense, made: _Made) -> bool:
    source, channels, kernel = _map_behind(editor, dense)
    key = (dense.w, dense.transposed, dense.alpha, (channels, *kernel))
    w = editor.constants[dense.w]
    if not editor.may_add(dense.outputs * w.itemsize + (0 if key in made else w.nbytes)):
        return False
    if key not in made:
        made[key] = editor.constant(dense.w, _weights(w, dense, channels, kernel))
    inputs = [source, made[key]]
    kind = editor.types[dense.x]
    if dense.bias:
        bias = channel_vector(editor.constants[dense.bias], dense.outputs) * dense.beta
        inputs.append(editor.constant(dense.bias, bias.astype(kind.dtype)))
    new = []
    if not source:
        rows = (dense.rows, dense.inputs, 1, 1)
        inputs[0] = editor.value(dense.x, TensorType(rows, kind.dtype))
        new.append(reshape_node(dense.x, inputs[0], rows, node.name))
    out = node.output
    ones = (1,) * len(kernel)
    result = editor.value(out, TensorType((dense.rows, dense.outputs, *ones), kind.dtype))
    attributes = {
        "strides": ones,
        "pads": (0,) * (2 * len(kernel)),
        "dilations": ones,
        "group": 1,
        "activation": None,
    }
    new.append(Node("Conv", tuple(inputs), (result,), frozen(attributes), node.name))
    new.append(reshape_node(result, out, editor.shape(out), node.name))
    editor.replace(node, *new)
    return True


def _map_behind(editor: Editor, dense: _Dense) -> tuple[str, int, tuple[int, ...]]:
    """The map (N, C, spatial...) that `dense.x` flattens; "" and a 1x1 kernel if it is none."""
    before = editor.producer(dense.x)
    if before is not None and before.op == "Reshape" and len(editor.shape(dense.x)) == 2:
        shape = editor.shape(before.inputs[0])
        # Weights are as large as the map. Of few channels, such as an LSTM's directions, it is no
        # blocks of channels and lies in memory as the rows do, which are one long sum.
        if 3 <= len(shape) <= 5 and shape[0] == dense.rows and shape[1] > _FEW_CHANNELS:
            channels, *kernel = map(int, shape[1:])
            return before.inputs[0], channels, tuple(kernel)
    return "", dense.inputs, (1, 1)


def _weights(w: Array, dense: _Dense, channels: int, kernel: tuple[int, ...]) -> Array:
    """The weights in Conv's layout (M, C, kernel...), alpha applied in float64."""
    rows = w if dense.transposed else w.T
    if dense.alpha != 1.0:
        rows = (rows.astype(np.float64) * dense.alpha).astype(w.dtype)
    return rows.reshape(dense.outputs, channels, *kernel)


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


@rewriting
def transpose_interleaved(editor: Editor, node: Node) -> bool:
    """Write a Concat that takes elements in turn as a Transpose, and let Transposes meet.

    - Arrays of one element along the last axis that is not of one element, joined there, are joined
      along the first one and transposed: whole runs are moved, or computed in their place.
    - A Slice between two Transposes comes before both, which `simplify` makes one.

    Left alone: constants, which are folded; a Transpose or a Slice that others read.

    Requires: a verified graph.
    Ensures: the same numbers; no more is moved than before.
    """
    if node.op == "Concat":
        return _interleaved(editor, node)
    cut = editor.private_producer(node.inputs[0], "Slice") if node.op == "Transpose" else None
    turn = cut and editor.private_producer(cut.inputs[0], "Transpose")
    if cut is None or turn is None:
        return False
    perm: tuple[int, ...] = turn.attributes["perm"]
    back = [perm.index(axis) for axis in range(len(perm))]
    moved = {n: tuple(v[axis] for axis in back) for n, v in cut.attributes.items()}
    dtype = editor.types[node.output].dtype
    few = editor.value(cut.output, TensorType(moved["sizes"], dtype))
    turned = editor.value(cut.output, TensorType(cut.attributes["sizes"], dtype))
    editor.replace(
        node,
        node_like(cut, inputs=turn.inputs, outputs=(few,), attributes=moved),
        node_like(turn, inputs=(few,), outputs=(turned,)),
        node_like(node, inputs=(turned,)),
    )
    return True


def _interleaved(editor: Editor, node: Node) -> bool:
    axis, kind = node.attributes["axis"], editor.types[node.output]
    before, behind = kind.shape[:axis], kind.shape[axis + 1 :]
    single = all(editor.shape(name)[axis] == 1 for name in node.inputs)
    if not single or any(n != 1 for n in behind) or all(n == 1 for n in before):
        return False
    if any(name in editor.constants for name in node.inputs):
        return False
    rest = (*before, *behind)
    rows = [editor.value(node.output, TensorType((1, *rest), kind.dtype)) for _ in node.inputs]
    joined = editor.value(node.output, TensorType((len(rows), *rest), kind.dtype))
    perm = (*range(1, axis + 1), 0, *range(axis + 1, len(kind.shape)))
    editor.replace(
        node,
        *(
            reshape_node(name, row, (1, *rest), node.name)
            for name, row in zip(node.inputs, rows, strict=True)
        ),
        node_like(node, inputs=tuple(rows), outputs=(joined,), attributes={"axis": 0}),
        Node("Transpose", (joined,), (node.output,), frozen({"perm": perm}), node.name),
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
