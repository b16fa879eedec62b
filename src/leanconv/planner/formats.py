"""Which layout every value gets, so that reorders happen at most at the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from leanconv.graph.ir import Graph, Node
from leanconv.operators import FormatPolicy, operator_of
from leanconv.records import dataclass
from leanconv.spec import PLAIN, Format
from leanconv.types import HALVES, DType


@dataclass(frozen=True)
class FormatRules:
    """The formats that the kernels of a graph take.

    Attributes:
        graph: the network.
        blocked: the blocked format of the graph's dtype, and of codes where theirs is the same;
            values of other types are plain.
        codes: types of codes that may be in blocks.
    """

    graph: Graph
    blocked: Format
    codes: tuple[DType, ...] = ()

    def accepts_blocked(self, node: Node) -> bool:
        """Whether all of a node's images may be in blocks of channels."""
        values = (*node.inputs, *node.outputs)
        if not all(map(self._may_be_blocked, values)):
            return False
        if any(map(self._has_codes, values)) and not operator_of(node).takes_codes(node):
            return False
        return operator_of(node).accepts_blocked(node, self.graph, self.blocked.block)

    def accepts_mixed(self, node: Node) -> bool:
        """Whether the first input may have another format than the others and the output."""
        return operator_of(node).accepts_mixed(node) and node.inputs[0] not in node.inputs[1:]

    def images(self, node: Node) -> list[str]:
        """The inputs of a node that have channels and are not constant."""
        return [n for n in dict.fromkeys(node.inputs) if n and self.is_image(n)]

    def possible(self, node: Node) -> Iterator[tuple[dict[str, Format], Format]]:
        """All formats of what a node reads and writes that its kernels take."""
        images, writes_images = self.images(node), self.writes_images(node)
        if not writes_images and not images:
            yield {}, PLAIN
            return
        accepted = self.accepts_blocked(node)
        only = operator_of(node).format_policy is FormatPolicy.BLOCKED_ONLY
        blocks_only, mixed = accepted and only, self.accepts_mixed(node)
        for writes in (self.blocked,) if blocks_only else (PLAIN, self.blocked):
            if writes.block and not accepted:
                continue
            reads = dict.fromkeys(images, writes)
            written = writes if writes_images else PLAIN
            yield reads, written
            if mixed:
                other = PLAIN if writes.block else self.blocked
                yield {**reads, node.inputs[0]: other}, written

    def writes_images(self, node: Node) -> bool:
        """Whether all outputs of a node can be in blocks."""
        return all(map(self.is_image, node.outputs))

    def is_image(self, name: str) -> bool:
        """Whether a value can be in blocks: it has channels, and is not constant."""
        graph = self.graph
        if name in graph.constants or len(graph.types[name].shape) < 3:
            return False
        return self._has_blocks(graph.types[name].dtype)

    def _may_be_blocked(self, name: str) -> bool:
        """Whether blocks are no question, as without channels, or a value can be in them."""
        graph = self.graph
        if not name or name in graph.constants or len(graph.types[name].shape) < 3:
            return True
        return self._has_blocks(graph.types[name].dtype)

    def _has_blocks(self, dtype: DType) -> bool:
        """Whether values of a type may be in blocks: what is computed in the graph's, and codes."""
        own = dtype.accumulator if dtype in HALVES else dtype
        return own == self.graph.dtype or dtype in self.codes

    def _has_codes(self, name: str) -> bool:
        """Whether a value is an image of codes."""
        return bool(name) and self.is_image(name) and self.graph.types[name].dtype in self.codes


def choose_formats(
    rules: FormatRules, now: Callable[[str], Format], node: Node, users: list[Node]
) -> tuple[dict[str, Format], Format]:
    """Choose the formats that a node reads and writes.

    Args:
        rules: what the kernels accept.
        now: the format in which a value was computed.
        node: the node, all of whose inputs are placed.
        users: the nodes that read its outputs.

    Returns:
        The format wanted of each image that it reads, and the format of its outputs.
    """
    images, writes_images = rules.images(node), rules.writes_images(node)
    if not writes_images and not images:
        return {}, PLAIN
    if not rules.accepts_blocked(node):
        return dict.fromkeys(images, PLAIN), PLAIN
    operator, chosen = operator_of(node), rules.blocked
    if operator.format_policy is FormatPolicy.FOLLOW_INPUTS:
        sizes = {PLAIN: 0, rules.blocked: 0}
        for name in images:
            sizes[now(name)] += rules.graph.types[name].elements
        chosen = rules.blocked if sizes[rules.blocked] >= max(1, sizes[PLAIN]) else PLAIN
    elif operator.format_policy is FormatPolicy.PREFER_BLOCKED and operator.accepts_mixed(node):
        wanted = any(user.op != "Reshape" and rules.accepts_blocked(user) for user in users)
        chosen = rules.blocked if wanted else PLAIN
    reads = dict.fromkeys(images, chosen)
    if node.inputs[0] in reads and rules.accepts_mixed(node):
        reads[node.inputs[0]] = now(node.inputs[0])
    return reads, chosen if writes_images else PLAIN
