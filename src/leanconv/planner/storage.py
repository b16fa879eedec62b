"""Places of all values of a lowered graph: in the user's arrays or in the arena."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from leanconv.graph.ir import Graph
from leanconv.planner.arena import (
    BufferUse,
    Lifetime,
    PlacedBuffers,
    assign_offsets,
    check_offsets,
    largest_live_set,
    lifetimes,
)
from leanconv.records import dataclass
from leanconv.runtime.program import Slot
from leanconv.spec import PLAIN, Format
from leanconv.spec.format import aligned


@dataclass(frozen=True)
class Storage:
    """The places of a network's values.

    Attributes:
        offsets: offset in the arena of each value that is stored there, and of each reading.
        slots: the user's array (inputs first, then outputs), and the offset there, of each value
            that is stored in one.
        scratch: place in the arena of each call's scratch, of all threads one after the other.
        arena_bytes: size of the arena.
        peak_bytes: the most bytes that are needed at once; no arena can be smaller.
        buffers: of the arena, scratch among them, with their offsets.
    """

    offsets: Mapping[str, int]
    slots: Mapping[str, Slot]
    scratch: tuple[int, ...]
    arena_bytes: int
    peak_bytes: int
    buffers: PlacedBuffers

    @property
    def live_bytes(self) -> int:
        """The largest set of values alive at once."""
        return largest_live_set([b for b, _ in self.buffers if not b.scratch and not b.streamed])

    @property
    def scratch_bytes(self) -> int:
        """The most scratch of one call, of all threads together."""
        return max((b.bytes for b, _ in self.buffers if b.scratch), default=0)


class _Kernel(Protocol):
    @property
    def scratch_bytes(self) -> int: ...


class _Call(Protocol):
    """A kernel over values, see `codegen.lowered.Call`; what it reads comes before the results."""

    @property
    def kernel(self) -> _Kernel: ...
    @property
    def reads(self) -> tuple[str, ...]: ...
    @property
    def results(self) -> tuple[str, ...]: ...
    @property
    def in_place(self) -> tuple[int, ...]: ...
    @property
    def alive(self) -> tuple[str, ...]: ...


class _Step(Protocol):
    @property
    def calls(self) -> Sequence[_Call]: ...


class Placeable(Protocol):
    """A lowered graph, for any device: see `LoweredGraph`."""

    @property
    def steps(self) -> Sequence[_Step]: ...
    @property
    def bytes(self) -> Mapping[str, int]: ...
    @property
    def views(self) -> Views[str]: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Reading:
    """A constant that is read into the arena in each run: see `weight_streaming`.

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


def place(
    lowered: Placeable,
    threads: int = 0,
    pinned: PlacedBuffers | None = None,
    read: Sequence[Reading] = (),
) -> Storage:
    """Assign storage: views share it, results take over operands that die, the rest is packed.

    Args:
        lowered: the network.
        threads: how many need scratch.
        pinned: buffers of a plan file, whose offsets are used if `check_offsets` accepts them.
        read: constants that each run reads into the arena.
    """
    parts = {name: lowered.views.find(name) for name in lowered.bytes}
    owner = {name: root for name, (root, _) in parts.items()}
    ends = [*lowered.inputs, *lowered.outputs]
    slots = {owner[name]: i for i, name in enumerate(ends)}
    bytes_of: dict[str, int] = {}
    for name, size in lowered.bytes.items():
        if owner[name] not in slots:
            bytes_of[owner[name]] = max(bytes_of.get(owner[name], 0), size)
    uses = _uses(lowered, owner)
    found = lifetimes(uses, bytes_of)
    owner = {name: found.owner.get(owner[name], owner[name]) for name in owner}
    values = [Lifetime(b, aligned(bytes_of[b]), t, found.last[b]) for b, t in found.first.items()]
    names = [_scratch_name(time, lowered) for time in range(len(uses))]
    scratch = [
        Lifetime(name, use.scratch_bytes * threads, time, time, scratch=True)
        for time, (name, use) in enumerate(zip(names, uses, strict=True))
        if use.scratch_bytes * threads
    ]
    streamed = [
        Lifetime(each.name, aligned(each.bytes), each.free, each.last, streamed=True)
        for each in read
    ]
    buffers = values + scratch + streamed
    placed = None
    if pinned is not None:
        placed = check_offsets(buffers, {buffer.name: offset for buffer, offset in pinned})
    if placed is None:
        placed = assign_offsets(buffers) if buffers else ({}, 0)
    offsets, total = placed
    return Storage(
        {
            name: offsets[owner[name]] + offset
            for name, (_, offset) in parts.items()
            if owner[name] in offsets
        }
        | {each.name: offsets[each.name] for each in read},
        {
            name: Slot(slots[owner[name]], offset)
            for name, (_, offset) in parts.items()
            if owner[name] in slots
        },
        tuple(offsets.get(name, 0) for name in names),
        total,
        largest_live_set(buffers),
        tuple((buffer, offsets[buffer.name]) for buffer in buffers),
    )


def _uses(lowered: Placeable, owner: Mapping[str, str]) -> list[BufferUse[str]]:
    """List the buffers of each call; values without an owner are constants.

    A result takes over memory only where both are all of a buffer.
    """
    sizes = lowered.bytes

    def is_whole(name: str) -> bool:
        return name in owner and sizes[name] == sizes[owner[name]]

    return [
        BufferUse(
            tuple(owner.get(name) for name in call.reads),
            tuple(owner[name] for name in call.results),
            tuple(i for i in call.in_place if is_whole(call.reads[i]))
            if is_whole(call.results[0])
            else (),
            aligned(call.kernel.scratch_bytes),
            tuple(owner[name] for name in call.alive),
        )
        for step in lowered.steps
        for call in step.calls
    ]


def _scratch_name(time: int, lowered: Placeable) -> str:
    """A name that no value of the file has."""
    name = f"scratch of call {time}"
    while name in lowered.bytes:
        name += "'"
    return name


# -- buffers that are the bytes of others, whole or in part --------------------------------------
Buffer = TypeVar("Buffer", bound=Hashable)


class Views(Generic[Buffer]):
    """Buffers that are bytes of others, with the byte where each begins."""

    def __init__(self) -> None:
        self._parents: dict[Buffer, tuple[Buffer, int]] = {}

    def find(self, buffer: Buffer) -> tuple[Buffer, int]:
        """The buffer that a buffer lies in and that lies in no other, and the offset there."""
        chain = []
        while buffer in self._parents:
            chain.append(buffer)
            buffer = self._parents[buffer][0]
        offset = 0
        for each in reversed(chain):  # so that long chains are walked once
            offset += self._parents[each][1]
            self._parents[each] = buffer, offset
        return buffer, offset

    def add(self, view: Buffer, of: Buffer, offset: int = 0) -> None:
        """Let a buffer begin at a byte of another one; what it is part of moves with it."""
        inner, before = self.find(view)
        outer, start = self.find(of)
        if inner != outer:
            self._parents[inner] = outer, start + offset - before

    def place(
        self,
        parts: Sequence[tuple[Buffer | None, int]],
        whole: Buffer,
        size: Callable[[Buffer], int],
        is_fixed: Callable[[Buffer], bool],
    ) -> list[bool]:
        """Let parts of a buffer be computed where they belong, as far as they can be.

        A part that is bytes of another buffer takes that one with it, if all that this covers of
        the whole are its own bytes.

        Args:
            parts: which buffers the whole consists of, in order, and from which byte on; None for
                those that are never computed in their place.
            whole: nothing is part of it yet.
            size: bytes of a buffer.
            is_fixed: whether a buffer that lies in no other must remain where it is.

        Returns:
            Of each part whether it is placed.
        """
        length = size(whole)
        begins = [offset for _, offset in parts]
        ends = [*begins[1:], length]
        placed = [False] * len(parts)
        for number, (part, offset) in enumerate(parts):
            if part is None:
                continue
            root, inside = self.find(part)
            if root == whole:
                placed[number] = inside == offset  # a value may be there twice
                continue
            first = offset - inside
            last = first + size(root)
            if is_fixed(root) or first < 0 or last > length:
                continue
            covered = parts[bisect_right(ends, first) : bisect_left(begins, last)]
            if all(
                each is not None and self.find(each) == (root, at - first) for each, at in covered
            ):
                self.add(root, whole, first)
                placed[number] = True
        return placed


# -- buffers of a graph that is being lowered ----------------------------------------------------
class ValuePlacer(ABC):
    """The buffers of a graph that is being lowered. A format that is missing is made by a reorder.

    Args:
        graph: after the passes.

    Attributes:
        bytes: size of every buffer that is computed or given.
        views: buffers that are bytes of others.
        constants: arrays by name.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bytes: dict[str, int] = {}
        self.views: Views[str] = Views()
        self.constants: dict[str, np.ndarray] = {}
        self._places: dict[str, dict[Format, str]] = {}  # of each value, the buffer in each format
        self._formats: dict[str, Format] = {}  # of each value, the one that it was computed in
        self._marks: dict[str, int] = {}  # of each name, how many the last fresh one has
        self._outputs: set[str] = set()  # the user's arrays that are written already

    @abstractmethod
    def size(self, name: str, form: Format) -> int:
        """Bytes of a value in a format."""

    @abstractmethod
    def reorder(
        self, name: str, source: str, result: str, source_form: Format, form: Format
    ) -> None:
        """Add a step that writes a value into another buffer, in another format or the same."""

    @abstractmethod
    def plain_constant(self, name: str) -> str:
        """The buffer that holds a constant in the format of the user's arrays."""

    def is_used(self, name: str) -> bool:
        """Return whether a buffer or a value of the graph has this name."""
        return name in self.bytes or name in self.constants or name in self.graph.types

    def fresh(self, name: str) -> str:
        """A new name, unlike all values of the file."""
        marks = self._marks.get(name, 0)
        while self.is_used(name + "'" * marks):
            marks += 1
        self._marks[name] = marks  # a Concat asks thousands of times for one name
        return name + "'" * marks

    def define(self, name: str, form: Format) -> str:
        """Place a value that is computed or given in a buffer of its own name."""
        self._formats[name] = form
        self._places[name] = {form: name}
        self.bytes[name] = self.size(name, form)
        return name

    def read(self, name: str, form: Format) -> str:
        """The buffer that holds a value in a format; reordered if there is none yet."""
        places = self._places[name]
        if form not in places:
            source_form, source = next(iter(places.items()))
            result = self.fresh(f"{name}/{form}")
            self.bytes[result] = self.size(name, form)
            self.reorder(name, source, result, source_form, form)
            places[form] = result
        return places[form]

    def is_fixed(self, root: str) -> bool:
        """Return whether a buffer that lies in no other is the user's, or a constant."""
        return root in self.graph.inputs or root in self.constants or root in self._outputs

    def deliver(self, name: str) -> str:
        """Bring an output into the user's array: by a view if its bytes can be computed there."""
        out = self.fresh(f"{name}/out")
        if name in self.graph.constants:
            form, source = PLAIN, self.plain_constant(name)
        else:
            places = self._places[name]
            form = PLAIN if PLAIN in places else self._formats[name]
            source = places[form]
        root, _ = self.views.find(source)
        self.bytes[out] = self.size(name, PLAIN)
        self._outputs.add(out)
        if form == PLAIN and not self.is_fixed(root) and self.bytes[root] <= self.bytes[out]:
            self.views.add(root, out)
        else:
            self.reorder(name, source, out, form, PLAIN)
        return out
