"""Extents of which only a bound is known: values have room for all elements that may be found.

How many elements are found is known when the network has run, and the others are cut off then
(`graph.convert.selection`). Nodes that compute each element by itself (the boxes at the places that
were found, their classes, a cast) are bound with the room in place of what is cut from it: they are
compiled with all others, and their results are cut instead. Nodes that gather and select read how
many there are; the rest is computed for the whole room where that is small, whatever lies behind
the elements that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from leanconv.errors import LeanConvError, UnsupportedError
from leanconv.graph.convert import RULES
from leanconv.graph.convert.selection import ROWS
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import TensorType
from leanconv.graph.value import Value
from leanconv.records import dataclass, replace
from leanconv.symbolic import NeedsNumberError
from leanconv.types import INT64

ROOM_BYTES = 1 << 18  # of what is computed for a whole room, though less may be found


@dataclass(frozen=True, eq=False)
class Room:
    """A value that is cut.

    Attributes:
        value: the room.
        count: the name of how many are found.
        axis: along which they lie.
        why: it is cut when the network has run.
        places: the NonZero that gives it; None for what is computed of it.
        among: of places, the name of how many there are among which they were found; "" for all.
    """

    value: Value
    count: str
    axis: int
    why: UnsupportedError
    places: FileNode | None = None
    among: str = ""

    @property
    def leads(self) -> bool:
        """True if the elements found lie at the beginning, however many there are."""
        return all(extent == 1 for extent in self.value.shape[: self.axis])


_Given = Sequence[Value | None]
_Read = Mapping[int, Room]


class Rooms:
    """The rooms of a graph while its nodes are bound.

    Args:
        bind: gives the results of a node of some inputs.
        value: gives a value that has been bound, by name; None for others.
        keep: keeps a value by a name that it makes of another one, and gives that.

    Attributes:
        rooms: by the name of what is cut from each.
    """

    def __init__(
        self,
        bind: Callable[[FileNode, Sequence[Value | None]], Sequence[Value]],
        value: Callable[[str], Value | None],
        keep: Callable[[str, Value], str],
    ) -> None:
        self._bind, self._value, self.keep = bind, value, keep
        self.rooms: dict[str, Room] = {}
        self._among: dict[str, str] = {}  # of names of counts

    def begin(self, cut: FileNode, maker: FileNode, why: UnsupportedError) -> None:
        """Take note of a node that cuts, why it is late, and of the node that gives the room."""
        room, (_, count) = self._value(cut.inputs[0]), cut.inputs
        if room is None or room.is_known:
            return
        axis = cut.attributes["axis"] % len(room.shape)
        if room.shape[axis] > 1:
            places = maker if maker.op == "NonZero" else None
            lists = maker.op == "NonMaxSuppression" or (places and room.shape[0] == 1)
            among = self._among.get(count, "") if lists else ""
            self.rooms[cut.outputs[0]] = Room(room, count, axis, why, places, among)

    def follow(self, node: FileNode) -> Sequence[Room]:
        """The rooms of a node's results; none where it is not computed for whole rooms."""
        try:
            found = self._followed(node)
        except (LeanConvError, NeedsNumberError):
            return ()
        if not all(room.leads for room in found.values()):
            return ()
        self.rooms.update(found)
        return tuple(found.values())

    def select(self, node: FileNode) -> Sequence[Value]:
        """The results of a node that selects among found elements; none for other nodes."""
        rule = RULES[node.op]
        fits = SELECT.get(rule.follows)
        if fits is None:
            return ()
        try:
            read, inputs = self._inputs(node)
            if not (read and all(room.leads for room in read.values()) and fits(node, read)):
                return ()
            inputs += [None] * (rule.most - len(inputs))
            count = next(iter(read.values())).count
            self._among[node.outputs[1]] = count
            return self._bind(node, [*inputs, self._value(count)])
        except (LeanConvError, NeedsNumberError):
            return ()

    def _inputs(self, node: FileNode) -> tuple[dict[int, Room], list[Value | None]]:
        """The rooms among a node's inputs, of one count and extent, and all inputs.

        No rooms where these differ, or where something else is not bound.
        """
        named = list(enumerate(node.inputs))
        read = {n: self.rooms[name] for n, name in named if name in self.rooms}
        inputs = [read[n].value if n in read else self._bound(name) for n, name in named]
        lacking = any(name and inputs[n] is None for n, name in named)
        if set(read) == {0, 1} and node.op in ("Gather", "GatherND"):
            axis = node.attributes.get("axis", 0) % max(1, len(read[0].value.shape))
            if (read[0].count, read[0].axis) == (read[1].among, axis) and read[0].leads:
                read = {1: read[1]}  # elements found among others lie in the room of these
        alike = len({room.count for room in read.values()}) == 1
        extents = list(map(_extent, read.values()))
        same = all(extent == extents[0] for extent in extents)
        return read if alike and same and not lacking else {}, inputs

    def _followed(self, node: FileNode) -> dict[str, Room]:
        read, inputs = self._inputs(node)
        rooms, follows = list(read.values()), RULES[node.op].follows
        if follows not in FOLLOWED or not rooms:
            return {}
        first = rooms[0]
        if node.op == "Transpose" and first.places is not None and not first.leads:
            return self._rows(node, first.places, first)
        if not all(room.leads for room in rooms):
            return {}
        if node.op == "Slice" and (end := _first_until(inputs, first)) is not None:
            return self._shortened(node, inputs, first, end)
        most = ROOM_BYTES
        if node.op in ("Gather", "GatherND") and 1 in read:
            inputs = [*inputs, self._value(first.count)]
            most = max(most, inputs[0].type.bytes if inputs[0] is not None else 0)
        results = self._bind(node, inputs)
        found: dict[str, Room] = {}
        for name, value in zip(node.outputs, results, strict=False):
            axis = FOLLOWED[follows](node, inputs, read, value)
            if axis is None or value.is_known or value.shape[axis] != _extent(first):
                return {}
            picks = node.op in ("Cast", "Slice") or follows == "shape"
            picks = picks or (node.op == "Gather" and 0 in read)
            found[name] = Room(value, first.count, axis, first.why, among=first.among * picks)
        size = sum(room.value.type.bytes for room in found.values())
        return found if follows == "shape" or size <= most else {}

    def _shortened(self, node: FileNode, inputs: _Given, room: Room, end: int) -> dict[str, Room]:
        """The first of the found elements, at most so many."""
        most = Value(TensorType((1,), INT64), np.array([end], np.int64))
        fewer = FileNode("Min", (), (), MappingProxyType({}), node.name)
        (count,) = self._bind(fewer, [self._value(room.count), most])
        (value,) = self._bind(node, inputs)
        name = self.keep(f"{node.outputs[0]}#count", count)
        return {node.outputs[0]: Room(value, name, room.axis, room.why, among=room.among)}

    def _bound(self, name: str) -> Value | None:
        return self._value(name) if name else None

    def _rows(self, node: FileNode, places: FileNode, room: Room) -> dict[str, Room]:
        """The transposed places of a NonZero, which gives them so."""
        if node.attributes.get("perm", (1, 0)) != (1, 0):
            return {}
        rows, x = replace(places, attributes=MappingProxyType({ROWS: 1})), places.inputs[0]
        among = self.rooms.get(x)
        given = [among.value, self._value(among.count)] if among else [self._value(x)]
        value = self._bind(rows, given)[0]
        return {node.outputs[0]: Room(value, room.count, 0, room.why, among=room.among)}


def _extent(room: Room) -> int:
    return room.value.shape[room.axis]


# Each gives the axis of a result along which what is found lies; None where it does not.


def _each(node: FileNode, inputs: _Given, read: _Read, result: Value) -> int | None:
    """Elements at one place of all operands: operands without a room have extent 1 there."""
    del node
    ends = {len(room.value.shape) - room.axis for room in read.values()}
    (end,) = ends if len(ends) == 1 else (0,)
    others = [value for n, value in enumerate(inputs) if value is not None and n not in read]
    if not end or any(len(v.shape) >= end and v.shape[-end] != 1 for v in others):
        return None
    return len(result.shape) - end


def _first_until(inputs: _Given, room: Room) -> int | None:
    """Return the end of a Slice that takes the first found elements; None for any other Slice."""
    known = [value.array if value is not None else None for value in inputs[1:]]
    if len(known) < 3 or any(each is None or each.size != 1 for each in known):
        return None
    begin, end, axis, *step = (int(each.item()) for each in known if each is not None)
    first = axis % len(room.value.shape) == room.axis and begin == 0 and step in ([], [1])
    return end if first and end >= 0 else None


def _shaped(node: FileNode, inputs: _Given, read: _Read, result: Value) -> int | None:
    """The same elements in the same order."""
    room = read.get(0)
    if room is None or len(read) > 1:
        return None
    if node.op == "Squeeze" and not (node.attributes.get("axes") or len(inputs) > 1):
        return None  # how many axes are left would follow from how many are found
    if node.op == "Transpose":
        rank = len(room.value.shape)
        perm = node.attributes.get("perm", tuple(reversed(range(rank))))
        moved = [axis for axis in perm if room.value.shape[axis] != 1]
        if moved != sorted(moved):
            return None
    axis = next((n for n, extent in enumerate(result.shape) if extent != 1), None)
    if axis is not None and node.op == "Reshape":
        wanted = node.attributes.get("shape")
        if wanted is None:
            known = inputs[1].array if len(inputs) > 1 and inputs[1] is not None else None
            wanted = () if known is None else tuple(known.reshape(-1))
        kept = axis == room.axis and not node.attributes.get("allowzero", 0)
        said = wanted[axis] if axis < len(wanted) else 1
        if not (isinstance(said, int | np.integer) and (said == -1 or (said == 0 and kept))):
            return None
    return axis


def _gather(node: FileNode, inputs: _Given, read: _Read, result: Value) -> int | None:
    """The axis of indices with a room, or that of gathered elements if another one is indexed."""
    del result
    x = inputs[0]
    assert x is not None
    axis = node.attributes.get("axis", 0)
    axis += len(x.shape) if axis < 0 else 0
    if 0 in read:  # no places among them, but along another axis
        return read[0].axis if 1 not in read and axis > read[0].axis else None
    one = all(extent == 1 for extent in read[1].value.shape[read[1].axis + 1 :])
    return int(axis + read[1].axis) if one and x.type.elements else None


def _gather_nd(node: FileNode, inputs: _Given, read: _Read, result: Value) -> int | None:
    del result
    x, room = inputs[0], read.get(1)
    if x is None or room is None or len(read) > 1 or node.attributes.get("batch_dims", 0):
        return None
    one = all(extent == 1 for extent in room.value.shape[room.axis + 1 : -1])
    return room.axis if one and x.type.elements else None


def _behind(node: FileNode, inputs: _Given, read: _Read, result: Value) -> int | None:
    """Something along an axis behind that of the found elements, which all operands have."""
    del result
    places = {room.axis for room in read.values()}
    axes = node.attributes.get("axis", 1 if node.op == "Concat" else 0)
    if node.op == "Slice":
        known = inputs[3].array if len(inputs) > 3 and inputs[3] is not None else None
        axes = None if known is None or known.dtype == object else known.reshape(-1).tolist()
    elif len(places) > 1 or (node.op == "Concat" and len(read) < len(inputs)):
        return None
    (place,) = places
    rank = len(read[0].value.shape) if 0 in read else 0
    listed = axes if isinstance(axes, list) else [axes]
    if axes is None or not rank or any(axis + rank * (axis < 0) <= place for axis in listed):
        return None
    return place


def _places(node: FileNode, read: _Read) -> bool:
    del node
    return set(read) == {0}


def _flagged(node: FileNode, read: _Read) -> bool:
    """Return whether there is a flag for each found element."""
    axis, x, flags = node.attributes.get("axis"), read.get(0), read.get(1)
    if flags is not None and flags.value.type.elements != _extent(flags):
        return False
    return x is None or (axis is not None and axis % len(x.value.shape) == x.axis)


def _boxed(node: FileNode, read: _Read) -> bool:
    """Return whether boxes and scores have room along the axes of boxes."""
    del node
    return set(read) == {0, 1} and (read[0].axis, read[1].axis) == (1, 2)


_Axis = Callable[[FileNode, _Given, _Read, Value], int | None]
# By how what was found runs through an operation (`Rule.follows`).
FOLLOWED: Mapping[str, _Axis] = {
    "each": _each,
    "shape": _shaped,
    "behind": _behind,
    "gather": _gather,
    "lists": _gather_nd,
}
# When what selects among the found fits them.
SELECT: Mapping[str, Callable[[FileNode, _Read], bool]] = {
    "places": _places,
    "flags": _flagged,
    "boxes": _boxed,
}
