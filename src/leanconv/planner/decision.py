"""What a plan says of one node, and the formats that its kernels take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakKeyDictionary

from leanconv.algorithms.magnitudes import are_small
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.canonical import canonical_text
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops.quantised import CODES
from leanconv.operators import Accuracy, FormatPolicy, NodeContext, operator_of
from leanconv.operators.conv_node import of_codes, sums_have
from leanconv.operators.convolution import OPS
from leanconv.records import dataclass
from leanconv.spec import PLAIN, Format
from leanconv.target import Target
from leanconv.types import HALVES, DType


@dataclass(frozen=True)
class Decision:
    """How one node is computed.

    Attributes:
        reads: the format wanted of each image that it reads.
        writes: the format of its outputs, all alike.
        choice: one of its operator's choices; `AUTO` leaves it to the cost model.
    """

    reads: Mapping[str, Format]
    writes: Format
    choice: Choice = AUTO

    def formats(self, node: Node) -> dict[str, Format]:
        """The format in which each value of the node is stored."""
        formats = {name: PLAIN for name in node.inputs if name}
        formats.update(self.reads)
        formats.update(dict.fromkeys(node.outputs, self.writes))
        return formats

    def context(self, node: Node, graph: Graph, target: Target, accuracy: Accuracy) -> NodeContext:
        """What the methods of the node's operator take."""
        return NodeContext(node, graph, self.formats(node), target, accuracy)


def node_key(
    node: Node,
    graph: Graph,
    decision: Decision,
    types: Mapping[str, TensorType] | None = None,
) -> str:
    """All that a node's choices depend on besides target and accuracy: not names.

    Of weights it says whether they are so small that transforms would lose them, or how many bits
    the sums of products of codes have. Which axes are open decides, too: kernels of any size.

    Args:
        node, graph, decision: what is chosen for.
        types: of its values, if others than the graph's.
    """
    names = (*node.inputs, *node.outputs)
    held = graph.types if types is None else types
    kinds = tuple(held.get(name) for name in names)
    constant: tuple[int, ...] = tuple(name in graph.constants for name in names)
    if node.op in OPS:
        constant += (are_small(graph.constants[node.inputs[1]]),)
    elif of_codes(node):
        constant += (sums_have(node, graph),)
    reads = tuple(decision.reads.get(name) for name in names)
    open_axes = tuple(graph.open_axes.get(name, ()) for name in names)
    known = _texts.setdefault(node, {})
    case = kinds, constant, open_axes, reads, decision.writes
    if case not in known:
        if len(known) >= _MOST_TEXTS:
            known.clear()
        parts = node.op, sorted(node.attributes.items()), list(kinds), list(constant)
        opened = [list(open_axes)] if any(open_axes) else []
        places = [names.index(name) for name in names]
        known[case] = canonical_text((*parts, *opened, places, list(reads), decision.writes))
    return known[case]


# By node: shapes of one network share most nodes.
_texts: WeakKeyDictionary[Node, dict[object, str]] = WeakKeyDictionary()
_MOST_TEXTS = 32


# -- formats, so that reorders happen at most at the edges ---------------------------------------
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


def format_rules(graph: Graph, target: Target) -> FormatRules:
    """The formats that the kernels of a graph take."""
    blocked = Format(target.channel_block(graph.dtype))
    codes = tuple(dtype for dtype in CODES if target.channel_block(dtype) == blocked.block)
    return FormatRules(graph, blocked, codes)


def default_decisions(rules: FormatRules) -> list[Decision]:
    """The formats for a plan without limits, node by node."""
    users, formats = rules.graph.users(), dict.fromkeys(rules.graph.inputs, PLAIN)
    result = []
    for node in rules.graph.nodes:
        read = [user for name in node.outputs for user in users[name]]
        reads, writes = choose_formats(rules, lambda n: formats[n], node, read)
        formats.update(dict.fromkeys(node.outputs, writes))
        result.append(Decision(reads, writes))
    return result
