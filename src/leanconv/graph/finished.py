"""The graph of all that its outputs need, of the nodes that a builder has collected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from leanconv.graph.ir import Attributes, Graph, Node, TensorType, in_rows
from leanconv.graph.ops.base import Array
from leanconv.graph.value import Value, known_if_empty
from leanconv.records import dataclass


@dataclass(frozen=True, eq=False)
class Emitted:
    """A node that a builder has collected.

    Attributes:
        op: a key of `graph.ops.OPS`; "" for what only has a type.
        inputs: what it reads, None for absent ones.
        outputs: what it gives.
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
        names: what the file calls the values, in order; the first name of a value counts.
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
