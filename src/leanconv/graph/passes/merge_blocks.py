"""Let the first blocks of a network be one operation, so that none of them is stored."""

from __future__ import annotations

from leanconv.graph.edit import Editor, frozen, rewrite
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.chain import MOST_BLOCKS, ChainBlock


def mergeable(graph: Graph) -> int:
    """How many blocks at a network's begin `merge_blocks` can make one of; 0 if fewer than two."""
    run = blocks_to_merge(graph)
    return len(run) if len(run) > 1 else 0


def merge_blocks(graph: Graph, count: int) -> Graph:
    """Make one BlockChain of the first ConvChains of a graph.

    This is not among the passes that every network goes through: it saves the memory of what
    is between the blocks, and costs time.

    Args:
        graph: a verified graph, after `fuse_blocks`.
        count: how many blocks to merge, 2 to `mergeable(graph)`.

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
    """The constants of each stage."""
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
    """Whether a chain adds nothing but its own input, if anything."""
    return node.input(1) in ("", node.inputs[0])
