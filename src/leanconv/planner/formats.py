"""Which layout every value gets, so that reorders happen at most at the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from leanconv import kernels
from leanconv.graph.ir import Graph, Node
from leanconv.operators import conv_chain, convolution
from leanconv.spec import PLAIN, Format

# Operations whose kernels run their lanes along channels whatever stands around them.
_BLOCKED_ONLY = frozenset({"MaxPool", "AveragePool"})


@dataclass(frozen=True)
class FormatRules:
    """What the kernels of a graph can work on.

    Attributes:
        graph: the network.
        blocked: the blocked format of the graph's dtype.
    """

    graph: Graph
    blocked: Format

    def accepts_blocked(self, node: Node) -> bool:
        """Whether all of a node's images may stand in blocks."""
        if node.op in conv_chain.OPS:
            return True
        if node.op in convolution.OPS:
            return convolution.accepts_blocked(node, self.graph, self.blocked.block)
        return kernels.accepts_blocked(node, self.graph, self.blocked.block)

    def images(self, node: Node) -> list[str]:
        """The inputs of a node that have channels and are not constant."""
        return [n for n in dict.fromkeys(node.inputs) if n and self.is_image(n)]

    def possible(self, node: Node) -> Iterator[tuple[dict[str, Format], Format]]:
        """All formats of what a node reads and writes that its kernels take."""
        output, images = node.outputs[0], self.images(node)
        if not self.is_image(output) and not images:
            yield {}, PLAIN
            return
        accepted = self.accepts_blocked(node)
        chain = node.op in conv_chain.OPS
        blocks_only = chain or (accepted and node.op in _BLOCKED_ONLY)
        for writes in (self.blocked,) if blocks_only else (PLAIN, self.blocked):
            if writes.block and not accepted:
                continue
            reads = dict.fromkeys(images, writes)
            written = writes if self.is_image(output) else PLAIN
            yield reads, written
            mixed = conv_chain.accepts_mixed if chain else convolution.accepts_mixed
            several = (chain or node.op in convolution.OPS) and mixed(node)
            if several and node.inputs[0] not in node.inputs[1:]:
                other = PLAIN if writes.block else self.blocked
                yield {**reads, node.inputs[0]: other}, written

    def is_image(self, name: str) -> bool:
        """Whether a value can stand in blocks: it has channels, and is not constant."""
        return name not in self.graph.constants and len(self.graph.types[name].shape) >= 3


def choose_formats(
    rules: FormatRules, now: Callable[[str], Format], node: Node, users: list[Node]
) -> tuple[dict[str, Format], Format]:
    """Choose the formats that a node reads and writes.

    Args:
        rules: what the kernels accept.
        now: the format in which a value stands already.
        node: the node, all of whose inputs are placed.
        users: the nodes that read its output.

    Returns:
        The format wanted of each image that it reads, and the format of its output.
    """
    output = node.outputs[0]
    images = rules.images(node)
    if not rules.is_image(output) and not images:
        return {}, PLAIN
    if not rules.accepts_blocked(node):
        return dict.fromkeys(images, PLAIN), PLAIN
    wanted = any(user.op != "Reshape" and rules.accepts_blocked(user) for user in users)
    if node.op in convolution.OPS and convolution.accepts_mixed(node):
        result = rules.blocked if wanted else PLAIN
        formats = dict.fromkeys(images, result)
        formats[node.inputs[0]] = now(node.inputs[0])
        return formats, result
    if node.op in conv_chain.OPS and conv_chain.accepts_mixed(node):
        formats = dict.fromkeys(images, rules.blocked)
        if node.inputs[0] != node.input(1):
            formats[node.inputs[0]] = now(node.inputs[0])
        return formats, rules.blocked
    if node.op in (*_BLOCKED_ONLY, *convolution.OPS, *conv_chain.OPS):
        chosen = rules.blocked
    else:
        sizes = {PLAIN: 0, rules.blocked: 0}
        for name in images:
            sizes[now(name)] += rules.graph.types[name].elements
        chosen = rules.blocked if sizes[rules.blocked] >= max(1, sizes[PLAIN]) else PLAIN
    return dict.fromkeys(images, chosen), chosen if rules.is_image(output) else PLAIN
