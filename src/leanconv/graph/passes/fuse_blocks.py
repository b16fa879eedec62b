"""Let the convolutions of a mobile network's block be one operation, and the first blocks another.

The first blocks are merged so that what lies between them is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial

from leanconv.graph.edit import Editor, frozen, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.chain import CONVOLUTIONS, IMAGE_CHANNELS, MOST_BLOCKS, STAGES, ChainBlock
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.zeros import zeros_of
from leanconv.types import FLOAT32

# Zeros of both 1x1 convolutions of a block from which on leaving them out takes less time than one
# pass over rows saves; and from which on it may, as a plan says.
_SPARSE, MAYBE_SPARSE = 0.7, 0.5


def fuse_blocks(graph: Graph, apart: Collection[str] = (), zeros: float = _SPARSE) -> Graph:
    """Make one ConvChain of convolutions whose results nobody else reads.

    (any Conv of one group, then) a depthwise Conv, then a 1x1 Conv of stride 1, which may add a
    residual: inverted residuals, separable convolutions, and a network's stem before one. The same
    of QLinearConvs that give codes, with the Lookups behind them and the depthwise one's Pad; if
    the first one reads an image of at most four channels, with its Pad and QuantizeLinear.

    Left alone: chains whose result `apart` names, convolutions along one or three axes, with slopes
    of PRelu, with weights that are computed, maps that a 1x1 Conv pads, and 1x1 Convs of so many
    `zeros`, a part of their weights, that they are computed without these.

    Requires: a verified graph, after `fuse_activations` and `fuse_codes`: a chain is not taken
    apart again.
    Ensures: such convolutions are one node, named as the last of them.
    """
    return rewrite(graph, partial(_rule, apart, zeros))


def fuse_all_blocks(graph: Graph, apart: Collection[str] = ()) -> Graph:
    """Make ConvChains as `fuse_blocks` does, of weights with many zeros, too.

    For a machine on which no kernel leaves these out, and where a plan leaves none out.
    """
    return fuse_blocks(graph, apart, math.inf)


def _rule(apart: Collection[str], zeros: float, editor: Editor, node: Node) -> bool:
    if node.key in apart or not (_usable(editor, node) and _pointwise(editor, node)):
        return False
    convs = [*_table(editor, node), node]
    depthwise = editor.private_producer(convs[0].inputs[0], node.op)
    if depthwise is None or not _inner(editor, depthwise) or not _depthwise(editor, depthwise):
        return False
    convs.insert(0, depthwise)
    between = _pads(editor, depthwise)
    between = [*_table(editor, (*between, depthwise)[0]), *between]
    first = (*between, depthwise)[0].inputs[0]
    before = editor.private_producer(first, node.op)
    if before is not None and _inner(editor, before) and before.attributes["group"] == 1:
        own = node.input(CONVOLUTIONS[node.op].RESIDUAL)
        convs = [*_image(editor, before, own), before, *between, *convs]
    if all(_sparse(editor, each, zeros) for each in convs if each is not depthwise):
        return False
    kinds = [STAGES[each.op] for each in convs]
    operands = [
        each.input(number)
        for each, kind in zip(convs, kinds, strict=True)
        for number in kind.CONSTANTS
    ]
    stages = tuple(kind(**each.attributes) for each, kind in zip(convs, kinds, strict=True))
    residual = node.input(CONVOLUTIONS[node.op].RESIDUAL)
    inputs = (convs[0].inputs[0], residual, *operands)
    attributes = frozen({"stages": stages})
    editor.replace(node, Node("ConvChain", inputs, node.outputs, attributes, node.name))
    return True


def _image(editor: Editor, conv: Node, residual: str) -> list[Node]:
    """Return the nodes that make and pad the codes of an image that a convolution alone reads.

    None where the chain adds that image as its residual: its rows are read as they are then.
    """
    if conv.op != "QLinearConv" or editor.shape(conv.inputs[0])[1] > IMAGE_CHANNELS:
        return []
    found = _pads(editor, conv)
    x = (*found, conv)[0].inputs[0]
    codes = editor.private_producer(x, "QuantizeLinear")
    if codes is not None and editor.types[codes.inputs[0]].dtype == FLOAT32:
        numbers = [editor.constants.get(name) for name in codes.inputs[1:3]]
        if all(array is not None and array.ndim == 0 for array in numbers):
            found = [codes, *found]
    return [] if found and residual in (x, found[0].inputs[0]) else found


def _table(editor: Editor, node: Node) -> list[Node]:
    """The Lookup of codes that a node alone reads."""
    found = editor.private_producer(node.inputs[0], "Lookup")
    codes = found is not None and editor.types[found.output].dtype in CODES
    return [found] if found is not None and codes and found.inputs[1] in editor.constants else []


def _pads(editor: Editor, conv: Node) -> list[Node]:
    """The Pad of codes that a convolution alone reads, if it leaves images and channels alone."""
    pad = editor.private_producer(conv.inputs[0], "Pad") if conv.op == "QLinearConv" else None
    if pad is None or pad.attributes["mode"] != "constant":
        return []
    around = pad.attributes["pads"]
    return [] if any((*around[:2], *around[4:6])) else [pad]


def _usable(editor: Editor, conv: Node) -> bool:
    """Return whether a node is a convolution of images with constant weights and no slopes."""
    if conv.op not in CONVOLUTIONS or len(editor.shape(conv.output)) != 4:
        return False
    if conv.op == "Conv" and conv.input(4):
        return False
    if conv.op == "QLinearConv" and conv.attributes["dtype"] not in CODES:
        return False
    operands = (conv.input(number) for number in STAGES[conv.op].CONSTANTS)
    return all(name in editor.constants for name in operands if name)


def _inner(editor: Editor, conv: Node) -> bool:
    """Return whether a convolution may be inside a chain: only the last one adds a residual."""
    return _usable(editor, conv) and not conv.input(CONVOLUTIONS[conv.op].RESIDUAL)


def _pointwise(editor: Editor, conv: Node) -> bool:
    attributes = conv.attributes
    return (
        attributes["group"] == 1
        and editor.shape(conv.inputs[1])[2:] == (1, 1)
        and attributes["strides"] == (1, 1)
        and not any(attributes["pads"])
    )


def _sparse(editor: Editor, conv: Node, zeros: float) -> bool:
    """Return whether such a part of the weights of a convolution of floats, or more, is 0."""
    if conv.op != "Conv" or zeros > 1:
        return False
    return zeros_of(editor.constants[conv.inputs[1]], zeros) is not None


def _depthwise(editor: Editor, conv: Node) -> bool:
    group = conv.attributes["group"]
    return bool(group > 1 and editor.shape(conv.inputs[1])[:2] == (group, 1))


def mergeable(graph: Graph) -> int:
    """Count the blocks at a network's begin that `merge_blocks` can merge; 0 if fewer than two."""
    run = blocks_to_merge(graph)
    return len(run) if len(run) > 1 else 0


def merge_blocks(graph: Graph, count: int) -> Graph:
    """Make one BlockChain of the first ConvChains of a graph.

    This is not among the passes that every network goes through: it saves the memory of what
    is between the blocks, and costs time.

    Args:
        graph: a verified graph, after `fuse_blocks`.
        count: number of blocks to merge, 2 to `mergeable(graph)`.

    Returns:
        A graph with the same inputs and outputs.
    """
    run = blocks_to_merge(graph)[:count]
    assert 1 < count == len(run), f"{count} blocks of {len(run)} that can be merged"
    last = run[-1].key

    def rule(editor: Editor, node: Node) -> bool:
        if node.key != last:
            return False
        operands = [name for each in run for name in _operands(each)]
        blocks = tuple(map(_block, run))
        inputs = (run[0].inputs[0], "", *operands)
        attributes = frozen({"blocks": blocks})
        editor.replace(node, Node("BlockChain", inputs, node.outputs, attributes, node.name))
        return True

    return rewrite(graph, rule)


def _block(node: Node) -> ChainBlock:
    return ChainBlock(node.attributes["stages"], bool(node.input(1)))


def _operands(node: Node) -> list[str]:
    return [node.input(i) for i in range(2, 2 + _block(node).operands)]


def blocks_to_merge(graph: Graph) -> list[Node]:
    """The first ConvChain, and those behind it each of which alone reads the one before."""
    users = graph.users()
    first = next((node for node in graph.nodes if node.op == "ConvChain"), None)
    if first is None or not _adds_itself(first):
        return []
    run = [first]
    while len(run) < MOST_BLOCKS:
        out = run[-1].key
        after = {node.key: node for node in users[out]}
        if len(after) != 1 or out in graph.outputs:
            break
        (node,) = after.values()
        if node.op != "ConvChain" or node.inputs[0] != out or not _adds_itself(node):
            break
        stages = _block(node).convolutions
        plain = stages[0].strides == (1, 1) and not any(stages[0].pads)
        pointwise = graph.types[node.inputs[2]].shape[2:] == (1, 1)
        if stages[0] is not node.attributes["stages"][0]:  # only a first one reads an image
            break
        if len(stages) > 2 and not (plain and pointwise):
            break
        run.append(node)
    return run


def _adds_itself(node: Node) -> bool:
    """Return whether a chain adds nothing but its own input, if anything."""
    return node.input(1) in ("", node.inputs[0])
