"""The choice of a format for every value: reorders happen at most at the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from leanconv.algorithms import select
from leanconv.errors import SpecError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.quantised import CODES
from leanconv.operators import Accuracy, FormatPolicy, operator_of
from leanconv.planner.decisions import (
    Decision,
    choices_of,
    estimated_cycles,
    remembered,
    saved_products,
)
from leanconv.records import dataclass, replace
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.target import Target
from leanconv.types import HALVES, DType


@dataclass(frozen=True)
class FormatRules:
    """The formats that the kernels of a graph take.

    Attributes:
        graph: the network.
        blocked: the blocked format of the graph's dtype, and of codes with the same block;
            values of other types are plain.
        codes: types of codes that may be in blocks.
        last: values that are stored in NHWC: what a Transpose makes of an array whose channels lie
            last, or brings there, is the same bytes then.
        planes: convolutions that are in planes where no limit decides, by their keys: only there
            they take fewer products by what is known of their weights, or fill vectors where they
            have few outputs.
    """

    graph: Graph
    blocked: Format
    codes: tuple[DType, ...] = ()
    last: frozenset[str] = frozenset()
    planes: frozenset[str] = frozenset()

    def accepts_blocked(self, node: Node) -> bool:
        """Return whether all of a node's images may be in blocks of channels."""
        values = (*node.inputs, *node.outputs)
        if not all(map(self._may_be_blocked, values)):
            return False
        if any(map(self._has_codes, values)) and not operator_of(node).takes_codes(node):
            return False
        return operator_of(node).accepts_blocked(node, self.graph, self.blocked.block)

    def accepts_mixed(self, node: Node) -> bool:
        """Return whether the first input may have another format than all other values."""
        return operator_of(node).accepts_mixed(node) and node.inputs[0] not in node.inputs[1:]

    def images(self, node: Node) -> list[str]:
        """The inputs of a node that have channels and are not constant."""
        return [n for n in dict.fromkeys(node.inputs) if n and self.is_image(n)]

    def may_be_last(self, node: Node) -> tuple[str, ...]:
        """Return which of the inputs and the output may be in NHWC, each by itself."""
        x = node.inputs[0] if node.inputs else ""
        alone = self.is_image(x) and x not in node.inputs[1:]
        return operator_of(node).may_be_last(node, self.graph) if alone else ()

    def possible(self, node: Node) -> Iterator[tuple[dict[str, Format], Format]]:
        """All formats of a node's inputs and outputs that its kernels take."""
        found = list(self._in_order(node))
        yield from found
        x = node.inputs[0] if node.inputs else ""
        if puts_last(node) and self.has_channels(x):
            yield {x: NHWC}, PLAIN
        elif puts_second(node) and self.has_channels(x):
            yield {x: PLAIN}, NHWC
        last = self.may_be_last(node)
        for reads, writes in found:
            if node.key in last:
                yield reads, NHWC
            if x in last and reads[x] == writes:
                yield {**reads, x: NHWC}, writes
        if {x, node.key} <= set(last):
            yield {**found[0][0], x: NHWC}, NHWC
        for other in (name for name in self.images(node)[1:] if name in last):
            yield {**found[0][0], other: NHWC}, found[0][1]
            yield {**found[0][0], x: NHWC, other: NHWC}, found[0][1]

    def _in_order(self, node: Node) -> Iterator[tuple[dict[str, Format], Format]]:
        """Yield the formats of inputs and output that are plain or in blocks."""
        images, writes_images = self.images(node), self.writes_images(node)
        if not writes_images and not images:
            yield {}, PLAIN
            return
        accepted = self.accepts_blocked(node)
        only = operator_of(node).policy(node, self.graph) is FormatPolicy.BLOCKED_ONLY
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
        """Return whether all outputs of a node can be in blocks."""
        return all(map(self.is_image, node.outputs))

    def has_channels(self, name: str) -> bool:
        """Return whether a value has channels, and is not constant."""
        graph = self.graph
        return bool(name) and name not in graph.constants and len(graph.types[name].shape) >= 3

    def is_image(self, name: str) -> bool:
        """Return whether a value can be in blocks: it has channels, and is not constant."""
        return self.has_channels(name) and self._has_blocks(self.graph.types[name].dtype)

    def _may_be_blocked(self, name: str) -> bool:
        """Return whether a value has no channels, or can be in blocks of them."""
        graph = self.graph
        if not name or name in graph.constants or len(graph.types[name].shape) < 3:
            return True
        return self._has_blocks(graph.types[name].dtype)

    def _has_blocks(self, dtype: DType) -> bool:
        """Return whether values of a type may be in blocks: the graph's, its halves, and codes."""
        own = dtype.accumulator if dtype in HALVES else dtype
        return own == self.graph.dtype or dtype in self.codes

    def _has_codes(self, name: str) -> bool:
        return bool(name) and self.is_image(name) and self.graph.types[name].dtype in self.codes


def choose_formats(
    rules: FormatRules, now: Callable[[str], Format], node: Node, users: list[Node]
) -> tuple[dict[str, Format], Format]:
    """Choose the formats that a node reads and writes.

    Args:
        rules: formats that the kernels accept.
        now: the format in which a value was computed.
        node: the node, all of whose inputs are placed.
        users: the nodes that read its outputs.

    Returns:
        The format wanted of each image that it reads, and the format of its outputs.
    """
    images, writes_images = rules.images(node), rules.writes_images(node)
    x = node.inputs[0] if node.inputs else ""
    if puts_last(node) and rules.has_channels(x) and now(x) != PLAIN:
        return {x: NHWC}, PLAIN
    if node.op == "Transpose" and node.key in rules.last:
        return dict.fromkeys(images, PLAIN), NHWC
    if not writes_images and not images:
        return {}, PLAIN
    operator, accepted = operator_of(node), rules.accepts_blocked(node)
    policy = operator.policy(node, rules.graph)
    only = policy is FormatPolicy.BLOCKED_ONLY
    if node.key in rules.planes or (not only and _between_planes(rules, now, images, users)):
        return dict.fromkeys(images, PLAIN), PLAIN
    chosen = rules.blocked if accepted else PLAIN
    if accepted and policy is FormatPolicy.FOLLOW_INPUTS:
        sizes = {PLAIN: 0, rules.blocked: 0}
        for name in images:
            sizes[rules.blocked if now(name).block else PLAIN] += rules.graph.types[name].elements
        chosen = rules.blocked if sizes[rules.blocked] >= max(1, sizes[PLAIN]) else PLAIN
    elif accepted and policy is FormatPolicy.PREFER_BLOCKED:
        others = [user for user in users if user.key not in rules.planes]
        wanted = any(user.op != "Reshape" and rules.accepts_blocked(user) for user in others)
        if operator.accepts_mixed(node) and not wanted:
            chosen = PLAIN
    reads = dict.fromkeys(images, chosen)
    last = x in rules.last and x in rules.may_be_last(node)
    if x in reads and (last or (accepted and rules.accepts_mixed(node))):
        reads[x] = now(x)
    if node.key in rules.last:
        return reads, NHWC
    return reads, chosen if writes_images else PLAIN


def _between_planes(
    rules: FormatRules, now: Callable[[str], Format], images: Sequence[str], users: list[Node]
) -> bool:
    """Return whether a node reads nothing but planes that were computed, for one of `planes`."""
    if not images or not any(user.key in rules.planes for user in users):
        return False
    return all(now(name) == PLAIN and name not in rules.graph.inputs for name in images)


_ANY_ACCURACY = Accuracy()


def format_rules(graph: Graph, target: Target, accuracy: Accuracy = _ANY_ACCURACY) -> FormatRules:
    """The formats that kernels of a graph take, and what is best in NHWC or in planes."""
    blocked = Format(target.channel_block(graph.dtype))
    codes = tuple(dtype for dtype in CODES if target.channel_block(dtype) == blocked.block)

    def last_of(sized: Graph) -> frozenset[str]:
        rules = FormatRules(sized, blocked, codes)
        return _stored_last(rules, default_decisions(rules), target, accuracy)

    last: frozenset[str] = frozenset()
    if any(puts_last(node) or puts_second(node) for node in graph.nodes):
        last = remembered(graph, ("stored last", target, accuracy), last_of)
    rules = FormatRules(graph, blocked, codes, last)
    return replace(rules, planes=_in_planes(rules, target, accuracy))


def _in_planes(rules: FormatRules, target: Target, accuracy: Accuracy) -> frozenset[str]:
    """The convolutions that are fastest in planes: of fewer products, or of few outputs."""
    graph = rules.graph
    given = [(node, _planes(rules, node)) for node in graph.nodes if saved_products(node, graph)]
    try:
        choices = choices_of(graph, target, accuracy, given)
    except SpecError:  # one has no algorithm there
        return _of_few_outputs(rules, target, accuracy)
    pairs = zip(given, choices, strict=True)
    found = frozenset(node.key for (node, _), c in pairs if select.saves_products(c.algorithm))
    return found | _of_few_outputs(rules, target, accuracy)


def _of_few_outputs(rules: FormatRules, target: Target, accuracy: Accuracy) -> frozenset[str]:
    """The convolutions of at most half a block of outputs that planes are sure to make faster.

    They are sure where a quarter of the estimate is saved. A convolution before them that nobody
    else reads writes planes itself; what else is in blocks is reordered.
    """
    graph, users, found = rules.graph, rules.graph.users(), set[str]()
    usual = dict(zip((node.key for node in graph.nodes), default_decisions(rules), strict=True))
    producers = {node.key: node for node in graph.nodes if node.op == "Conv"}

    def cycles(node: Node, decision: Decision, now: Decision | None = None) -> float:
        return estimated_cycles(node, graph, decision, target, accuracy, now)

    for node in producers.values():
        now, x = usual[node.key], node.inputs[0]
        few = graph.types[node.output].shape[1] <= rules.blocked.block // 2
        in_blocks = any(form.block for form in now.formats(node).values())
        if not (few and in_blocks and node.attributes["group"] == 1):
            continue
        before, pair = producers.get(x), 0.0
        with suppress(SpecError):  # one has no algorithm
            time = cycles(node, now)
            if before is not None and len(users[x]) == 1 and rules.accepts_mixed(before):
                blocks = usual[before.key]
                pair = cycles(before, replace(blocks, writes=PLAIN)) - cycles(before, blocks)
                now = replace(now, reads={**now.reads, x: PLAIN})
            if 4 * (cycles(node, _planes(rules, node), now) + pair) < 3 * time:
                found.add(node.key)
    return frozenset(found)


def _planes(rules: FormatRules, node: Node) -> Decision:
    return Decision(dict.fromkeys(rules.images(node), PLAIN), PLAIN)


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


def puts_last(node: Node) -> bool:
    """Return whether a node is a Transpose that brings channels from second to last axis."""
    perm = node.attributes["perm"] if node.op == "Transpose" else ()
    return len(perm) >= 3 and perm == NHWC.axes(len(perm))


def puts_second(node: Node) -> bool:
    """Return whether a node is a Transpose that brings channels from last to second axis."""
    perm = node.attributes["perm"] if node.op == "Transpose" else ()
    rank = len(perm)
    return rank >= 3 and perm == (0, rank - 1, *range(1, rank - 1))


def _stored_last(
    rules: FormatRules, defaults: Sequence[Decision], target: Target, accuracy: Accuracy
) -> frozenset[str]:
    """The values that are best stored in NHWC, because a Transpose beside them moves nothing then.

    Those are images that nodes read as the array that is transposed, and results that are written
    as they are transposed to. Where that would change how a convolution is computed, and with it
    its bits, the Transpose stays.

    Args:
        rules: formats that the kernels accept, without such values.
        defaults: the formats by these rules.
        target, accuracy: of the plan.
    """
    graph, users = rules.graph, rules.graph.users()

    def is_inner(node: Node) -> bool:
        """Return whether a node computes a value with channels that only other nodes read."""
        name = node.key
        return bool(users[name]) and name not in graph.outputs and rules.has_channels(name)

    def takes(user: Node, name: str) -> bool:
        return user.inputs[0] == name and name in rules.may_be_last(user)

    decisions = {node.key: each for node, each in zip(graph.nodes, defaults, strict=True)}
    readers = {
        node.key: [user for user in users[node.key] if takes(user, node.key)]
        for node in graph.nodes
        if puts_second(node) and is_inner(node)
    }
    readers = {
        name: found
        for name, found in readers.items()
        if all(user in found or _reads_blocks(decisions[user.key], name) for user in users[name])
    }
    reads = [
        (user, decisions[user.key], _reading(decisions[user.key], name))
        for name, found in readers.items()
        for user in found
    ]
    alike = _alike(graph, target, accuracy, reads)
    last = {name for name, found in readers.items() if all(user.key in alike for user in found)}
    for node, _, reading in reads:
        if node.inputs[0] in last:
            decisions[node.key] = reading
    writes = [
        (node, decisions[node.key], replace(decisions[node.key], writes=NHWC))
        for node in graph.nodes
        if is_inner(node)
        and node.key in rules.may_be_last(node)
        and all(puts_last(user) for user in users[node.key])
    ]
    return frozenset(last | _alike(graph, target, accuracy, writes))


def _reads_blocks(decision: Decision, name: str) -> bool:
    return name in decision.reads and decision.reads[name].block > 0


def _reading(decision: Decision, name: str) -> Decision:
    return replace(decision, reads={**decision.reads, name: NHWC})


def _alike(
    graph: Graph,
    target: Target,
    accuracy: Accuracy,
    pairs: Sequence[tuple[Node, Decision, Decision]],
) -> set[str]:
    """The nodes that are computed in the same way in the formats of both decisions, by their keys.

    Each image alone, too: a batch must not change the formats of what is reproducible.
    """
    same = {node.key for node, _, _ in pairs}
    both = [(node, each) for node, *decisions in pairs for each in decisions]
    for required in (accuracy, replace(accuracy, reproducible=True)):
        try:
            found = choices_of(graph, target, required, both)
        except SpecError:  # no algorithm takes the formats
            return set()
        for (node, _, _), one, other in zip(pairs, found[::2], found[1::2], strict=True):
            if one != other:
                same.discard(node.key)
    return same
