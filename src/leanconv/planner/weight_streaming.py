"""Weights that are read from a file in each run, when they are needed, into the arena.

Two layers' weights are in memory at once: while one layer is computed, the next one's are read.
They are buffers of the arena like values between layers, from the first call of the layer before to
the last call that reads them, so that weights of late layers lie where early ones had large maps.

What stays in memory for good: constants that are small, those of loops, whose bodies read them in
each iteration, and whatever a limit leaves room for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from leanconv.planner.lowered_graph import LoweredGraph, all_repeats
from leanconv.planner.storage import Storage, place
from leanconv.records import dataclass
from leanconv.runtime.file_block import FileBlock
from leanconv.runtime.memory import Block
from leanconv.runtime.program import Place
from leanconv.runtime.stream_program import Load
from leanconv.spec.format import aligned, aligned_offsets

STAYS_BYTES = 16 * 2**10  # of a constant, at most: reading it takes less than waiting for it
_FEW_CALLS = 8  # between two that read a constant: it stays in memory from one to the other


@dataclass(frozen=True)
class Reading:
    """A constant that is read into the arena in each run.

    Attributes:
        name: of its buffer; no value has it.
        constant: the constant.
        bytes: of it.
        free: the call from whose beginning on its place is its own.
        first, last: the first and the last call that reads it there.
    """

    name: str
    constant: str
    bytes: int
    free: int
    first: int
    last: int


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


class StreamedWeights:
    """The constants of a plan that streams: which are read in each run, and which stay.

    Args:
        lowered: the network, whose constants are all there.
        kept: constants that stay in memory, whatever their size.

    Attributes:
        read: those that are read.
        kept_bytes: of the block of those that stay.
        sizes: bytes of each constant.
        addresses: of those that stay, once they are settled.
    """

    def __init__(self, lowered: LoweredGraph, kept: Collection[str] = ()) -> None:
        self.read = readings(lowered, kept)
        read = {reading.constant for reading in self.read}
        places, _ = lowered.constants.places()
        self.sizes = dict(lowered.constants.bytes)
        stay = {name: str(place) for name, place in places.items() if name not in read}
        # Equal constants are one.
        offsets, self.kept_bytes = aligned_offsets({at: self.sizes[n] for n, at in stay.items()})
        self._stay = {name: offsets[at] for name, at in stay.items()}
        self._files: dict[str, tuple[FileBlock, int]] = {}  # with the byte at which each begins
        self.addresses: Mapping[str, int] = {}

    @property
    def streamed_bytes(self) -> int:
        """Bytes that each run reads."""
        return sum(reading.bytes for reading in self.read)

    def settle(self, block: Block, packed: Mapping[str, int], files: Sequence[Block]) -> None:
        """Bring what stays into a block of `kept_bytes`, and note where the rest is.

        Args:
            block: for what stays.
            packed: the address of every constant in one of the files.
            files: mapped ones, `FileBlock`s.
        """
        for name, address in packed.items():
            for file in files:
                if file.address <= address < file.address + max(1, file.bytes):
                    assert isinstance(file, FileBlock)
                    self._files[name] = file, address - file.address
        for name, offset in self._stay.items():
            if self.sizes[name]:
                file, start = self._files[name]
                file.read_into(start, block.view(offset, self.sizes[name]))
        self.addresses = {name: block.address + offset for name, offset in self._stay.items()}

    def loads(self, storage: Storage) -> list[Load]:
        """What a program reads."""
        return [
            Load(*self._files[r.constant], r.bytes, storage.offsets[r.name], r.free, r.first)
            for r in self.read
        ]

    def operands(self, storage: Storage) -> dict[tuple[int, str], Place]:
        """Where calls find what is read: by the number of the call and the constant."""
        return {
            (time, each.constant): Place(storage.offsets[each.name])
            for each in self.read
            for time in range(each.first, each.last + 1)
        }


def streamed_within(
    lowered: LoweredGraph, threads: int, limit: int | None
) -> tuple[StreamedWeights, Storage]:
    """What is streamed, and where all buffers are: as much stays in memory as a limit has room for.

    Args:
        lowered: the network.
        threads: how many need scratch.
        limit: bytes of arena and of what stays; None: as little stays as can.
    """
    streamed = StreamedWeights(lowered)
    storage = place(lowered, threads, None, streamed.read)
    room = (limit or 0) - streamed.kept_bytes - storage.arena_bytes
    kept: list[str] = []
    for size, name in sorted({(each.bytes, each.constant) for each in streamed.read}):
        room -= aligned(size)
        if room < 0:
            break
        kept.append(name)
    if not kept:
        return streamed, storage
    more = StreamedWeights(lowered, kept)
    placed = place(lowered, threads, None, more.read)
    if placed.arena_bytes + more.kept_bytes > (limit or 0):  # laid out with more gaps
        return streamed, place(lowered, threads, None, streamed.read)
    return more, placed


def streamed_ns(call_ns: Sequence[float], read: Sequence[Reading], bytes_a_ns: float) -> int:
    """Estimated time of a run whose calls wait for what they read.

    Args:
        call_ns: time of each call by itself.
        read: what is read, in order.
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
