"""The reading of weights: in each run from a file, or prefetched into a cache.

Two streamed layers' weights are in memory at once: while one layer is computed, the next one's are
read. They are buffers of the arena like values between layers, from the first call of the layer
before to the last call that reads them, so that weights of late layers lie where early ones had
large maps. What stays in memory for good: constants that are small, those of loops, whose bodies
read them in each iteration, and whatever a limit leaves room for.

A fully connected layer that is not streamed is bound by DRAM, and its weights are used by no other
layer; the convolution before it leaves DRAM idle. It prefetches them, line by line, into L2, from
where they are evicted to L3. Where all weights of a network exceed L3, each layer's come from DRAM:
those of more than L2 are prefetched so, as far as there is time. No result changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf

from leanconv.codegen.lowered import Call
from leanconv.graph.edit import Editor, frozen, node_like, rewrite
from leanconv.graph.ir import Graph, Node, TensorType, is_filled
from leanconv.planner.arena import PlacedBuffers
from leanconv.planner.lowered_graph import LoweredGraph, all_repeats
from leanconv.planner.storage import Reading, Storage, place
from leanconv.records import dataclass, replace
from leanconv.runtime.program import Place
from leanconv.spec.format import ALIGNMENT, aligned, aligned_offsets, ceil_div
from leanconv.target import Target

STAYS_BYTES = 16 * 2**10  # of a constant, at most: reading it takes less than waiting for it
_FEW_CALLS = 8  # between two that read a constant: it stays in memory from one to the other
# Output channels of a part are a multiple of one of these, the larger if it fits.
_GROUPS = (64, 16)
_MOST_PARTS = 4096  # of all layers, of which each has a share by its bytes: planning takes time
_PER_CHANNEL = (1, 2, 4)  # inputs of a Conv with a row or a number for each output channel


def readings(lowered: LoweredGraph, kept: Collection[str] = ()) -> tuple[Reading, ...]:
    """The constants that are read in each run, in the order in which they are needed.

    Args:
        lowered: the network.
        kept: constants that stay in memory, whatever their size.
    """
    found: list[Reading] = []
    before = now = 0  # the calls that the readings before, and those found last, are needed by
    for first, last, constant in sorted(_uses(lowered, kept)):
        if first > now:
            before, now = now, first
        name = f"{constant} from call {first} on"
        while name in lowered.bytes:
            name += "'"
        size = lowered.constants.bytes[constant]
        found.append(Reading(name, constant, size, before, first, last))
    return tuple(found)


def _uses(lowered: LoweredGraph, kept: Collection[str]) -> Iterator[tuple[int, int, str]]:
    """The first and the last call that reads a constant, for each time that it is read anew."""
    sizes = lowered.constants.bytes
    calls = [call for step in lowered.steps for call in step.calls]
    stays = {
        name
        for each in all_repeats(lowered.steps)
        for call in calls[each.first : each.first + each.calls]
        for name in call.reads
    }
    stays.update(kept)
    spans: dict[str, tuple[int, int]] = {}
    for time, call in enumerate(calls):
        for name in dict.fromkeys((*call.reads, *call.alive)):
            if name in stays or sizes.get(name, 0) <= STAYS_BYTES:
                continue
            first, last = spans.get(name, (time, time))
            if time - last > _FEW_CALLS:
                yield first, last, name
                first = time
            spans[name] = first, time
    yield from ((first, last, name) for name, (first, last) in spans.items())


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of all values and constants of a network, in memory that is not yet allocated.

    Attributes:
        storage: values between calls, and scratch.
        image: of each constant, where it begins among all of them, side by side.
        constants: of those that stay in memory, where they begin there.
        constant_bytes: of that memory.
        sizes: bytes of each constant.
        read: the rest: in each run they are read from a file that has the image.
        kept: parts of such a file that stay in memory: where each begins in the file,
            how many bytes it has, where it begins in memory.
    """

    storage: Storage
    image: Mapping[str, int]
    constants: Mapping[str, int]
    constant_bytes: int
    sizes: Mapping[str, int]
    read: tuple[Reading, ...] = ()
    kept: tuple[tuple[int, int, int], ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of the arena, and of the constants that stay in memory."""
        return self.storage.arena_bytes + self.constant_bytes

    @property
    def streamed(self) -> Mapping[tuple[int, str], Place]:
        """Places in the arena of constants read from a file, by call and constant."""
        return {
            (time, each.constant): Place(self.storage.offsets[each.name])
            for each in self.read
            for time in range(each.first, each.last + 1)
        }


def lay_out(
    lowered: LoweredGraph,
    threads: int,
    pinned: PlacedBuffers | None = None,
    kept: Collection[str] | None = None,
) -> Layout:
    """Place all values and constants of a network.

    Args:
        lowered: the network; its constants are all there.
        threads: how many need scratch.
        pinned: as `place` takes them.
        kept: constants that stay in memory, whatever their size; None if all do.
    """
    (image, size), sizes = lowered.constants.places(), dict(lowered.constants.bytes)
    if kept is None:
        return Layout(place(lowered, threads, pinned), image, image, size, sizes)
    read = readings(lowered, kept)
    gone = {reading.constant for reading in read}
    stay = {name: str(at) for name, at in image.items() if name not in gone}
    # Equal constants are one.
    offsets, size = aligned_offsets({at: sizes[name] for name, at in stay.items()})
    constants = {name: offsets[at] for name, at in stay.items()}
    copies = dict.fromkeys((image[n], sizes[n], at) for n, at in constants.items() if sizes[n])
    storage = place(lowered, threads, pinned, read)
    return Layout(storage, image, constants, size, sizes, read, tuple(copies))


def streamed_within(lowered: LoweredGraph, threads: int, limit: int | None) -> Layout:
    """A layout with few constants in memory, and as many more as a limit has room for.

    Args:
        lowered: the network.
        threads: how many need scratch.
        limit: bytes of arena and of what stays; None: as little stays as can.
    """
    least = lay_out(lowered, threads, kept=())
    room = (limit or 0) - least.bytes
    kept: list[str] = []
    for size, name in sorted({(each.bytes, each.constant) for each in least.read}):
        room -= aligned(size)
        if room < 0:
            break
        kept.append(name)
    if not kept:
        return least
    more = lay_out(lowered, threads, kept=kept)
    return more if more.bytes <= (limit or 0) else least  # laid out with more gaps


def streamed_ns(call_ns: Sequence[float], read: Sequence[Reading], bytes_a_ns: float) -> int:
    """Estimated time of a run whose calls wait for the constants that they read.

    Args:
        call_ns: time of each call by itself.
        read: the parts of the file that are read, in order.
        bytes_a_ns: the rate at which the file is read.
    """
    begun = [0.0]  # when each call begins; the end of all last
    waiting, free_at = 0, 0.0
    for time, ns in enumerate(call_ns):
        begins = begun[time]
        while waiting < len(read) and read[waiting].first <= time:
            load = read[waiting]
            free_at = max(free_at, begun[load.free]) + load.bytes / bytes_a_ns
            begins, waiting = max(begins, free_at), waiting + 1
        begun[time] = begins
        begun.append(begins + ns)
    return round(begun[-1])


# -- prefetch by the convolution before ----------------------------------------------------------
_USES = 16  # of each weight, at most: with more, arithmetic hides the reading
_STEPS = 8  # multiply-adds of vectors for each line that is prefetched, at least
_BETWEEN = 3  # calls that may lie between, such as a pooling
_PARTS = (1, 2, 4)  # weights are prefetched whole, or one of so many parts: few sizes, few codes


def add_weight_prefetch(calls: Sequence[Call], target: Target) -> list[Call]:
    """The calls of a network, some of which prefetch the weights of later ones.

    Args:
        calls: in order.
        target: the machine.
    """
    costs, result = target.costs, list(calls)
    written = {name for call in calls for name in call.results}
    weights = [None if name in written else (name, size) for name, size in map(_weights, calls)]
    held = costs.l3_share * target.l3_bytes
    from_dram = sum(dict(filter(None, weights)).values()) > held
    rate = costs.later_weights_read if from_dram else 0.0
    for number, (call, found) in enumerate(zip(calls, weights, strict=True)):
        name, size = found or ("", 0)
        once = (call.kernel.weight_uses or inf) <= _USES and size <= held
        if size <= target.l2_bytes or not (once or rate):
            continue
        before = range(number - 1, max(-1, number - 2 - _BETWEEN), -1)
        place = next((n for n in before if result[n].kernel.prefetch_steps is not None), None)
        if place is None:
            continue
        host = result[place]
        steps = host.kernel.prefetch_steps or 0.0
        if once:
            part = size if steps >= _STEPS * ceil_div(size, ALIGNMENT) else 0
        else:  # what DRAM has time for, beside the kernel's own weights
            most = rate * steps / target.fma_units - host.kernel.constant_bytes["w"]
            part = next((size // n for n in _PARTS if size // n <= most), 0)
        if part:
            values = (*host.reads, name, *host.results)
            result[place] = replace(host, kernel=host.kernel.with_prefetch(part), values=values)
    return result


def _weights(call: Call) -> tuple[str, int]:
    """The value that a call's packed weights are, and their bytes; 0 if it has none."""
    operands = call.kernel.operands
    if "w" not in operands or "w" not in call.kernel.constant_bytes:
        return "", 0
    return call.values[operands.index("w")], call.kernel.constant_bytes["w"]


def cutting_weights(part_bytes: int) -> Callable[[Graph], Graph]:
    """The pass that makes a Conv with more than twice `part_bytes` of weights several.

    Each computes some output channels, in the same order of summation as the whole; their results
    are concatenated, for one image by being computed there. Weights are views of the whole's.

    Left alone: convolutions of groups or with a residual, those of codes, and fused blocks.

    Args:
        part_bytes: of one part, at most, where neither 16 output channels are more nor the parts
            would be too many to plan.
    """

    def cut_weights(graph: Graph) -> Graph:
        held = sum(array.nbytes for array in graph.constants.values() if not is_filled(array))
        size = max(part_bytes, -(-2 * held // _MOST_PARTS))  # rounding halves it at most

        def rule(editor: Editor, node: Node) -> bool:
            return node.op == "Conv" and _cut(editor, node, size)

        return rewrite(graph, rule)

    return cut_weights


def parts_of_layers(graph: Graph) -> Mapping[str, int]:
    """Return the number of parts of the layer, by the name of each part's result.

    Each errs in its own elements of the layer's result alone.
    """
    producer, users = graph.producer(), graph.users()
    found: dict[str, int] = {}
    for node in graph.nodes:
        made = [producer.get(name) for name in node.inputs] if node.op == "Concat" else []
        parts = [each for each in made if each is not None and each.op == "Conv"]
        alone = all(len(users[part.output]) == 1 for part in parts)
        if len(parts) == len(node.inputs) and alone and len({p.inputs[0] for p in parts}) == 1:
            found.update((part.output, len(parts)) for part in parts)
    return found


def _cut(editor: Editor, node: Node, part_bytes: int) -> bool:
    """Replace a convolution by its parts and their concatenation, if it has to be cut."""
    w = editor.constants[node.inputs[1]]
    outputs, out = w.shape[0], editor.types[node.output]
    if node.attributes["group"] != 1 or node.input(3) or is_filled(w) or w.nbytes <= 2 * part_bytes:
        return False
    rows = part_bytes * outputs // w.nbytes
    group = next((each for each in _GROUPS if each <= rows), _GROUPS[-1])
    rows = max(1, rows // group) * group
    if rows >= outputs or not editor.may_add(w.nbytes):
        return False
    parts: list[Node] = []
    for first in range(0, outputs, rows):
        last = min(first + rows, outputs)
        inputs = list(node.inputs)
        for number in _PER_CHANNEL:
            if name := node.input(number):
                inputs[number] = editor.constant(name, editor.constants[name][first:last])
        shape = (out.shape[0], last - first, *out.shape[2:])
        result = editor.value(node.output, TensorType(shape, out.dtype))
        name = node.name or node.key  # of all parts, so that options for the layer are for them
        parts.append(node_like(node, inputs=tuple(inputs), outputs=(result,), name=name))
    results = tuple(part.output for part in parts)
    joined = Node("Concat", results, node.outputs, frozen({"axis": 1}), node.name)
    editor.replace(node, *parts, joined)
    return True
