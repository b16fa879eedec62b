"""Binds the nodes of a file's graphs: each becomes operations in normal form, in one builder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from leanconv.errors import LeanConvError, UnsupportedError, located, located_inside, shown
from leanconv.graph.bounded_extents import Room, Rooms
from leanconv.graph.builder import Builder
from leanconv.graph.convert import RULES, Call, Held
from leanconv.graph.convert.rule import MoreInputs
from leanconv.graph.convert.selection import CUT
from leanconv.graph.file_graph import FileGraph, FileNode
from leanconv.graph.ir import Cut
from leanconv.graph.ops.base import Array
from leanconv.graph.segments import SegmentFinder
from leanconv.graph.value import NeedsValuesError, SequenceValue, Value
from leanconv.interrupts import check

CAPTURED = "captured#"  # begins the names of values that the graph around has and that have none


class Scope:
    """The values of one graph of a file by their names, while its nodes are bound.

    Args:
        builder: collects the operations.
        opset: of nodes that say none of their own.
        constants: the graph's weights; one enters when it is first read.
        values: its inputs.
        outer: the scope of the graph around it, None if there is none.
        captured: names there, by the names that they have here.
        inside: gives a value of the graph around it in here; None where both are one graph.

    Attributes:
        cuts: of late nodes, by number, what each of their results is cut from.
    """

    def __init__(
        self,
        builder: Builder,
        opset: int,
        constants: Mapping[str, Array],
        values: Mapping[str, Value],
        outer: Scope | None = None,
        captured: Mapping[str, str] | None = None,
        inside: Callable[[Value], Value] | None = None,
    ) -> None:
        self._builder, self._opset, self._constants = builder, opset, constants
        self._outer, self._captured, self._inside = outer, captured or {}, inside
        self._inner: list[tuple[str, Value]] = []
        self.values = dict(values)
        self.cuts: dict[int, tuple[Cut, ...]] = {}
        self._taken: set[str] = set()  # names of the file

    @property
    def names(self) -> list[tuple[str, Value]]:
        """Values by the file's names, those of the graphs that nodes hold at the end."""
        return [*self.values.items(), *self._inner]

    def bind(self, nodes: Sequence[FileNode], outputs: Sequence[str]) -> list[Value]:
        """Bind nodes, and give the values of the outputs.

        Raises:
            LeanConvError: the first node that does not fit, or is not supported.
        """
        for node in nodes:
            self._bind(node)
        return [self._value(name) for name in outputs]

    def bind_known(self, nodes: Sequence[FileNode]) -> dict[int, UnsupportedError | None]:
        """Bind the nodes that can be before the network runs.

        Returns:
            The numbers of the others, and why; None where one reads what another of them gives.

        Raises:
            LeanConvError: the first node that does not fit.
        """
        late: dict[int, UnsupportedError | None] = {}
        lacking: set[str] = set()
        self._taken = {name for node in nodes for name in (*node.reads, *node.outputs)}
        rooms = Rooms(
            self._bound, lambda name: None if name in lacking else self._value(name), self._keep
        )
        for number, node in enumerate(nodes):
            why: UnsupportedError | None = None
            if lacking.isdisjoint(node.reads):
                try:
                    self._bind(node)
                    continue
                except NeedsValuesError as error:
                    if RULES[node.op].products:
                        raise
                    why = error
                if node.op == CUT:
                    rooms.begin(node, nodes[number - 1], why)
            elif selected := rooms.select(node):
                self.values.update(zip(node.outputs, selected, strict=True))
                continue
            elif found := rooms.follow(node):
                why = found[0].why
                self._cut(number, node, found)
            late[number] = why
            lacking.update(name for name in node.outputs if name)
        return self._with_sequences(nodes, late)

    def _cut(self, number: int, node: FileNode, found: Sequence[Room]) -> None:
        """Take note of rooms that a late node's results are cut from."""
        self.cuts[number] = tuple(
            (name, self._keep(f"{name}#room", room.value), room.count, room.axis)
            for name, room in zip(node.outputs, found, strict=False)
        )

    def _keep(self, name: str, value: Value) -> str:
        """Keep a value that the file has not, by this name or a longer one; gives the name."""
        while name in self.values or name in self._taken:
            name += "#"
        self.values[name] = value
        return name

    def _bound(self, node: FileNode, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The results of a node with other inputs; no small input is wanted for them."""
        wanted = set(self._builder.wanted)
        try:
            call = Call(self._builder, node, node.opset or self._opset, inputs, self)
            return RULES[node.op].convert(call)
        finally:
            self._builder.wanted = wanted

    def _with_sequences(
        self, nodes: Sequence[FileNode], late: dict[int, UnsupportedError | None]
    ) -> dict[int, UnsupportedError | None]:
        """Late nodes with those that make the sequences that they read: no graph gives these."""
        read = {name for number in late for name in nodes[number].reads}
        for number in range(len(nodes) - 1, -1, -1):
            if number in late:
                continue
            made = [self.values.get(name) for name in nodes[number].outputs if name in read]
            if any(isinstance(value, SequenceValue) for value in made):
                late[number] = None
                read.update(nodes[number].reads)
        return dict(sorted(late.items()))

    def most_bytes(self, nodes: Sequence[FileNode], outputs: Sequence[str]) -> int | None:
        """The most that arrays take at once while nodes are computed; None if nothing bounds it.

        Args:
            nodes: late ones; the builder is for bounds.
            outputs: the results that are read.
        """
        last = {name: number for number, node in enumerate(nodes) for name in node.reads}
        last.update(dict.fromkeys(outputs, len(nodes)))
        sizes: dict[str, int] = {}
        most = kept = 0
        for number, node in enumerate(nodes):
            before = self._builder.emitted
            try:
                self._bind(node)
            except LeanConvError:
                return None
            most = max(most, kept + self._builder.bytes_since(before))
            for name in node.outputs:
                if name and last.get(name, 0) > number and not self.values[name].is_known:
                    sizes[name] = self.values[name].type.bytes
                    kept += sizes[name]
            for name in node.reads:
                if last[name] == number:
                    kept -= sizes.pop(name, 0)
        return most

    def run(self, nodes: Sequence[FileNode], outputs: Sequence[str]) -> list[Value]:
        """Compute nodes from values that are all known; each is kept while a node reads it.

        Raises:
            LeanConvError: as `bind`.
        """
        left: Counter[str] = Counter(outputs)
        for node in nodes:
            left.update(node.reads)
        waiting = list(nodes)
        while waiting:
            check()
            done, waiting = self._first(waiting, left)
            for node in done:
                left.subtract(node.reads)
                for name in (*node.reads, *node.outputs):
                    if left[name] <= 0:
                        self.values.pop(name, None)
        return [self._value(name) for name in outputs]

    def _first(
        self, nodes: list[FileNode], left: Mapping[str, int]
    ) -> tuple[list[FileNode], list[FileNode]]:
        """Compute the first node, or what is compiled with it; gives what has run, and the rest.

        Args:
            nodes: the nodes that have not run.
            left: how often each value is still read.
        """
        segments = self._builder.segments
        finder = SegmentFinder(self._value, self._weight)
        alone = not RULES[nodes[0].op].products or finder.reads_nothing(nodes[0])
        if segments is None or alone:
            self._bind(nodes[0])
            return nodes[:1], nodes[1:]
        numbers = set(finder.numbers(nodes))
        done = [node for number, node in enumerate(nodes) if number in numbers]
        rest = [node for number, node in enumerate(nodes) if number not in numbers]
        inside = Counter(name for node in done for name in node.reads)
        given = (name for node in done for name in node.outputs if name)
        wanted = [name for name in given if left.get(name, 0) > inside[name]]
        segment = finder.segment(done, wanted, self._opset)
        if not segment.inputs:  # it is the same each time
            self._bind(nodes[0])
            return nodes[:1], nodes[1:]
        found = segments.run(segment, self._builder.budget)
        self._builder.budget.made(list(found.values()))
        self.values.update((name, self._builder.constant(found[name])) for name in wanted)
        return done, rest

    def _weight(self, name: str) -> Array | None:
        """A constant of the file, of this graph or of one around it."""
        if name in self._constants:
            return self._constants[name]
        if self._outer is None or name in self.values or name not in self._captured:
            return None
        return self._outer._weight(self._captured[name])

    def _bind(self, node: FileNode) -> None:
        opset = node.opset or self._opset
        try:
            inputs = [self._value(name) if name else None for name in node.inputs]
            call = Call(self._builder, node, opset, inputs, self)
            if self._builder.narrow and not RULES[node.op].narrow:
                call.check_not_narrow()
            results = RULES[node.op].convert(call)
        except LeanConvError as error:
            place = located_inside if node.graphs else located
            raise place(error, f"node {node.name!r} ({node.op}, opset {opset})") from error
        self.values.update((n, v) for n, v in zip(node.outputs, results, strict=False) if n)

    def _value(self, name: str) -> Value:
        if name not in self.values:
            if name in self._constants:
                self.values[name] = self._builder.constant(self._constants[name])
            elif self._outer is not None and name in self._captured:
                found = self._outer._value(self._captured[name])
                self.values[name] = self._inside(found) if self._inside else found
            else:
                raise UnsupportedError(
                    f"the value {shown(name)!r} is not computed; expected only the first outputs "
                    "of a node to be used; export the model for inference"
                )
        return self.values[name]

    def inline(self, graph: FileGraph, inputs: Sequence[Value]) -> list[Value]:
        """Bind a graph that a node holds among the operations of this one; gives its outputs."""
        self._enter(graph)
        given = dict(zip(graph.inputs, inputs, strict=True))
        scope = Scope(self._builder, self._opset, graph.constants, given, self, graph.captured)
        if self._builder.running:
            return scope.run(graph.nodes, graph.outputs)
        outputs = scope.bind(graph.nodes, graph.outputs)
        self._inner += scope.names
        return outputs

    def hold(
        self, graph: FileGraph, inputs: Sequence[Value], more: MoreInputs | None = None
    ) -> Held:
        """Bind a graph that a node holds by itself: what it captures become inputs of its own."""
        self._enter(graph)
        captured: dict[Value, Value] = {}

        def inside(value: Value) -> Value:
            if value.is_known:
                return value
            if isinstance(value, SequenceValue):
                raise UnsupportedError("a node that holds a graph cannot capture a sequence")
            inner = captured.setdefault(value, Value(value.type))
            if value in self._builder.settings:
                self._builder.settings[inner] = self._builder.settings[value]
            if value in self._builder.narrow:
                self._builder.as_narrow(inner, self._builder.narrow[value])
            return inner

        builder = self._builder.inner()
        if more is not None:
            inputs = [*inputs, *more(builder, inside)]
        given = dict(zip(graph.inputs, inputs, strict=True))
        scope = Scope(builder, self._opset, graph.constants, given, self, graph.captured, inside)
        outputs = scope.bind(graph.nodes, graph.outputs)
        of = {value: name for name, value in reversed(scope.values.items())}
        held = {
            of.get(inner, f"{CAPTURED}{number}"): (value, inner)
            for number, (value, inner) in enumerate(captured.items())
        }
        return Held(builder, given, held, outputs, scope.names)

    def _enter(self, graph: FileGraph) -> None:
        self._builder.budget.enter(len(graph.nodes))
        if graph.refused is not None:
            raise graph.refused
