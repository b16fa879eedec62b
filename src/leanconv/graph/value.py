"""Values and nodes of a graph that is being built, and the graph of those that its outputs need.

What computes a value is a node, or it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Attributes, Graph, Node, TensorType, in_rows
from leanconv.graph.ops.base import Array, numbers
from leanconv.records import cached_property, dataclass
from leanconv.symbolic import Symbol
from leanconv.types import BOOL


class NeedsValuesError(UnsupportedError):
    """A node cannot be bound while a value is data; it could be computed if that were known.

    Attributes:
        value: the `Value`, if it is one; None if nothing says which.
    """

    value: object = None

    def of(self, value: object) -> NeedsValuesError:
        """Take note of the value that is needed, and return this error."""
        self.value = value
        return self


class Unmade:
    """A constant that is made when something reads its numbers.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Array]) -> None:
        self._make = make

    @cached_property
    def array(self) -> Array:
        """The constant."""
        return self._make()

    @property
    def is_made(self) -> bool:
        """True if the array has been read."""
        return "array" in self.__dict__


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that becomes part of the graph: its type, and its array when it is known already.

    Attributes:
        type: its shape and dtype.
        held: the array, or what makes it; None for a value that is computed at run time.
    """

    type: TensorType
    held: Array | Unmade | None = None

    @property
    def array(self) -> Array | None:
        """The array if it is known; of objects where integers hold symbols: see `numbers`."""
        return self.held.array if isinstance(self.held, Unmade) else self.held

    @property
    def is_known(self) -> bool:
        """True if there is an array; to ask makes none."""
        return self.held is not None

    @property
    def is_unmade(self) -> bool:
        """True if the array is known, and nothing has read its numbers."""
        return isinstance(self.held, Unmade) and not self.held.is_made

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, all extents known."""
        return self.type.shape

    @property
    def numbers(self) -> Array | None:
        """The array with numbers for symbols: results of it are for these numbers only."""
        array = self.array
        return None if array is None else numbers(array, self.type.dtype)


def are_numbers(values: Sequence[Value | None]) -> bool:
    """Return whether all values are constants without symbols."""
    arrays = (value.array for value in values if value is not None)
    return not any(array is None or array.dtype == object for array in arrays)


def has_symbols(kind: TensorType) -> bool:
    """Return whether an extent is a symbol."""
    return any(isinstance(extent, Symbol) for extent in kind.shape)


def known_if_empty(value: Value) -> Value:
    """A value; what has no elements is known, whatever makes it."""
    if value.is_known or value.type.elements:
        return value
    return Value(value.type, np.empty(value.shape, value.type.dtype.numpy))


@dataclass(frozen=True, eq=False)
class SequenceValue(Value):
    """A list of values; it is no tensor, and no node computes it.

    Attributes:
        items: in order.
    """

    items: tuple[Value, ...] = ()

    @staticmethod
    def of(items: Sequence[Value]) -> SequenceValue:
        """A sequence of values."""
        return SequenceValue(TensorType((0,), BOOL), None, tuple(items))


@dataclass(frozen=True, eq=False)
class Emitted:
    """A node that a builder has collected.

    Attributes:
        op: a key of `graph.ops.OPS`; "" for what only has a type.
        inputs: the values that it reads, None for absent ones.
        outputs: the values that it defines.
        attributes: in normal form.
        source: the name of the file's node.
        working: bytes in which NumPy works, where bounds are wanted.
    """

    op: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Attributes
    source: str
    working: int = 0


def finished(
    emitted: Sequence[Emitted],
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    names: Sequence[tuple[str, Value]],
    deferred: Sequence[Emitted] = (),
) -> Graph:
    """Make the graph of everything that the outputs need.

    Args:
        emitted: all nodes, in order.
        inputs, outputs: the network's, by name.
        names: the file's names of values, in order; the first name of a value counts.
        deferred: nodes of what follows from sizes alone, in order: see `Graph.from_sizes`.
    """
    outputs, copies = _own_outputs(inputs, outputs)
    nodes = alive([*emitted, *copies], outputs.values())
    called = _Names([(n, v) for n, v in (*inputs.items(), *outputs.items(), *names)])
    types: dict[str, TensorType] = {name: value.type for name, value in inputs.items()}
    constants: dict[str, Array] = {}
    given = {value for node in nodes for value in node.outputs}
    later = {value for node in deferred for value in node.outputs if value.is_unmade}
    sized: dict[str, Value] = {}
    for value in (*outputs.values(), *(v for node in nodes for v in node.inputs if v)):
        name = called.of(value, "constant")
        if value in later:
            sized[name] = value
            types[name] = value.type
            continue
        array = None if value in given or name in constants else value.array
        if array is not None:
            constants[name] = _plain(array)
            types[name] = value.type
    made = []
    for node in nodes:
        defined = tuple(called.of(value, node.source or node.op) for value in node.outputs)
        types.update((n, v.type) for n, v in zip(defined, node.outputs, strict=True))
        read = tuple(called.of(value, "constant") if value else "" for value in node.inputs)
        made.append(Node(node.op, read, defined, node.attributes, node.source))
    return Graph(
        inputs=(*inputs, *sized),
        outputs=tuple(outputs),
        nodes=tuple(made),
        types=MappingProxyType(types),
        constants=MappingProxyType(constants),
        from_sizes=finished(deferred, {}, sized, names) if sized else None,
    )


def alive(emitted: Sequence[Emitted], roots: Iterable[Value]) -> list[Emitted]:
    """The nodes that some values depend on, in order."""
    needed = set(roots)
    found = []
    for node in reversed(emitted):
        if not needed.isdisjoint(node.outputs):
            found.append(node)
            needed.update(value for value in node.inputs if value)
    return found[::-1]


def _own_outputs(
    inputs: Mapping[str, Value], outputs: Mapping[str, Value]
) -> tuple[dict[str, Value], list[Emitted]]:
    """Give every output a value of its own: copies of inputs and of other outputs.

    Returns:
        The outputs, and the nodes that copy.
    """
    taken = set(inputs.values())
    result: dict[str, Value] = {}
    copies = []
    for name, value in outputs.items():
        own = value
        if value in taken and inputs.get(name) is not value:
            own = known_if_empty(Value(value.type, value.array))
            if not own.is_known:
                shape = MappingProxyType({"shape": value.shape})
                copies.append(Emitted("Reshape", (value,), (own,), shape, name))
        taken.add(own)
        result[name] = own
    return result, copies


class _Names:
    """Names of values: the file's where it has one, otherwise made up and unique."""

    def __init__(self, known: Sequence[tuple[str, Value]]) -> None:
        self._names: dict[Value, str] = {}
        self._taken = {name for name, _ in known}
        self._next: dict[str, int] = {}
        used: set[str] = set()
        for name, value in known:
            if name not in used and value not in self._names:
                self._names[value] = name
                used.add(name)

    def of(self, value: Value, hint: str) -> str:
        """The name of a value; made from `hint` when the file has none."""
        if value not in self._names:
            while True:
                number = self._next.get(hint, 0)
                self._next[hint] = number + 1
                name = f"{hint}#{number}"
                if name not in self._taken:
                    break
            self._taken.add(name)
            self._names[value] = name
        return self._names[value]


def _plain(array: Array) -> Array:
    """A row-major, read-only array of the machine's byte order.

    It may be unaligned: weights begin anywhere in files, and stay there until used.
    """
    plain = in_rows(array)
    if plain.flags.writeable:
        plain = plain.view()
        plain.flags.writeable = False
    return plain
