"""Late nodes as a few calls of NumPy, which hold for all extents that answer their guards alike.

To bind a node takes 20 to 60 us, mostly more than to compute it. So late nodes are bound once, with
symbols (`leanconv.symbolic`) for what values decide: how many boxes were kept, how many places were
found. What comes out is a graph whose nodes NumPy computes one after the other in each run, with
numbers for the symbols. Such a stage goes on until a node needs values that it computes itself:
that node begins the next stage, or is bound in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from leanconv.errors import LeanConvError, TerminatedError
from leanconv.graph.builder import Builder
from leanconv.graph.data_dependent import Tail, own
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import Graph, TensorType
from leanconv.graph.limits import alone
from leanconv.graph.network_inputs import is_small
from leanconv.graph.onnx_binding import Scope
from leanconv.graph.open_sizes import sized_filler, tables_filler
from leanconv.graph.ops import OPS, table_bytes, working_bytes
from leanconv.graph.ops.base import Array
from leanconv.graph.passes.simplify import drop_dead, simplify
from leanconv.graph.value import NeedsValuesError, Value
from leanconv.interrupts import check
from leanconv.symbolic import (
    Guards,
    Holes,
    Memo,
    NeedsNumberError,
    Trace,
    Values,
    attempted,
    guarded,
    most,
)
from leanconv.types import INT64, as_dtype

_MOST_KEPT = 8  # stages from one node on, whose extents answer guards in other ways
_PARTS = ("Slice", "Split")  # their results are parts of what they read
_FAILURES = (LeanConvError, NeedsNumberError, ArithmeticError, LookupError, TypeError, ValueError)
Found = tuple["Stage", Values]  # with the numbers of its holes


# A node: what computes it; places of what it reads in a list; its attributes, or what makes them;
# places of its results, and their types; whether these may be parts of what is freed, and what is.
_Step = tuple[
    Callable[[Any, Any], Any],
    tuple[int, ...],
    Mapping[str, Any],
    Callable[[Sequence[Any]], Mapping[str, Any]] | None,
    tuple[tuple[int, Any], ...],
    bool,
    tuple[int, ...],
]


class Stage:
    """Nodes that were bound together.

    Args:
        graph: of them, with symbols; its inputs are arrays.
        guards: comparisons of symbols on which binding depended.
        count: nodes of the file.
        bounded: whether the plan says what its nodes may take, so that no run has to count it.
    """

    def __init__(self, graph: Graph, guards: Guards, count: int, bounded: bool) -> None:
        self.count = count
        holes, sized = Holes(), graph.from_sizes
        tables, later = tables_filler(graph, holes), () if sized is None else sized.outputs
        self._makers: list[Callable[[Sequence[Any]], Mapping[str, Array]]] = []
        if any(array.dtype == object for array in graph.constants.values()):
            self._makers.append(tables)
        if sized is not None:
            self._makers.append(sized_filler(sized, holes))
        place = {name: number for number, name in enumerate(graph.types)}
        self._start = [*(graph.constants.get(name) for name in graph.types), None]
        self._inputs = [(name, place[name]) for name in graph.inputs if name not in later]
        self._outputs = [(name, place[name]) for name in graph.outputs]
        self._place, self._steps = place, _steps(graph, place, holes)
        self._computes = any(OPS[node.op].moves is None for node in graph.nodes)
        size = (0 if bounded else _size(graph)) + (0 if sized is None else _size(sized))
        fill = holes.filler(size)
        self.size: Callable[[Values], int] = fill or (lambda _: int(size))
        self.numbers = guarded(guards, holes.symbols)

    def at(self, values: Values) -> Found | None:
        """This and the numbers of its holes; None if a guard does not hold."""
        found = self.numbers(values)
        return None if found is None else (self, found)

    def run(self, numbers: Values, values: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name; they may be views of what is read, and of each other."""
        held: list[Any] = self._start.copy()
        for make in self._makers:
            for name, array in make(numbers).items():
                held[self._place[name]] = array
        for name, place in self._inputs:
            held[place] = values[name]
        if self._computes:
            with np.errstate(all="ignore"):
                self._compute(held, numbers)
        else:
            self._compute(held, numbers)
        return {name: held[place] for name, place in self._outputs}

    def _compute(self, held: list[Any], numbers: Values) -> None:
        """Compute the nodes in order, each from the values so far."""
        for evaluate, reads, attributes, fill, writes, parts, last in self._steps:
            given = attributes if fill is None else fill(numbers)
            made = evaluate([held[place] for place in reads], given)
            for (place, dtype), array in zip(writes, made, strict=True):
                result = np.asarray(array, dtype)
                held[place] = alone(result) if parts else result
            for place in last:
                held[place] = None


def _steps(graph: Graph, place: Mapping[str, int], holes: Holes) -> list[_Step]:
    """The calls of a graph's nodes, in order, with the values that each frees."""
    kept = {*graph.inputs, *graph.constants, *graph.outputs}
    steps: list[_Step] = []
    lasting = {*graph.inputs, *graph.constants}  # values whose memory nothing frees
    for node in graph.nodes:
        if node.op in ("Reshape", *_PARTS) and node.inputs[0] in lasting:
            lasting.update(node.outputs)
    for node in reversed(graph.nodes):
        names = {name for name in (*node.inputs, *node.outputs) if name} - kept
        kept |= names
        reads = tuple(place[name] if name else -1 for name in node.inputs)
        writes = tuple((place[name], graph.types[name].dtype.numpy) for name in node.outputs)
        parts = node.op in _PARTS and node.inputs[0] not in lasting
        last, given = tuple(place[name] for name in names), node.attributes
        evaluate, fill = OPS[node.op].evaluate, holes.filler(given)
        steps.append((evaluate, reads, given, fill, writes, parts, last))
    return steps[::-1]


def _size(graph: Graph) -> int:
    """Bytes of all that is computed, and in which NumPy works, as if nothing were freed."""
    size = working = 0
    for node in graph.nodes:
        types = [graph.types[name] if name else None for name in node.inputs]
        results = [graph.types[name] for name in node.outputs]
        size = size + sum(kind.bytes for kind in results)
        tables = table_bytes(node.op, types, node.attributes, tuple(results))
        working = most(working, working_bytes(node.op, types, results) + tables)
    return size + working


_Asked = tuple[str, ...]


class _Begin:
    """The stages that begin at one node. Threads make some at once, and each reads `asked` once.

    Attributes:
        names: of the values that nodes from there on read.
        asked: the names among them of values whose numbers the nodes need.
        memos: the stages, by what was asked, and the ranks and types of the values.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.asked: _Asked = ()
        self.memos: dict[object, Memo[Found]] = {}

    def pattern(self, values: Mapping[str, Array], asked: _Asked) -> object:
        """Return a key of the stages that can be the same but for numbers."""
        shapes = (values[name].shape for name in asked)
        return (asked, *((values[n].dtype, values[n].ndim) for n in self.names), *shapes)

    def numbers(self, values: Mapping[str, Array], asked: _Asked, extents: bool) -> tuple[int, ...]:
        """Return the numbers of the variables: open extents, then the elements asked for."""
        found: list[int] = []
        if extents:
            for name in self.names:
                found += () if name in asked else values[name].shape
        for name in asked:
            found += values[name].reshape(-1).tolist()
        return tuple(found)


class Stages:
    """The stages of a tail, for arrays of the shapes that one plan gives.

    Args:
        tail: the late nodes.
        bounded: whether the plan says what their arrays may take, and that is within the limits.

    Attributes:
        serve: whether the tail has any.
    """

    def __init__(self, tail: Tail, bounded: bool) -> None:
        self._tail, self._bounded = tail, bounded
        self._begins: dict[int, _Begin] = {}
        self._last = {name: n for n, node in enumerate(tail.nodes) for name in node.reads}
        self._last.update(dict.fromkeys(tail.gives, len(tail.nodes)))
        constants = (tail.constants.get(name) for name in self._last)
        self._constants = set(map(id, constants))
        self.serve = tail.is_plain

    def run(
        self, values: Mapping[str, Array], room: int, lent: Sequence[Array] = ()
    ) -> dict[str, Array] | None:
        """The outputs of the tail.

        Args:
            values: the inputs of the tail, by name.
            room: bytes that all arrays may take together.
            lent: arrays of `values` of which an output may be a view.

        Returns:
            New arrays; None where each node is to be bound, be it to say what is wrong.
        """
        if not self.serve:
            return None
        held, at, end = values, 0, len(self._tail.nodes)
        try:
            while True:
                check()
                count, made = self._advanced(at, held, room)
                at += count
                if at == end:
                    break
                room -= sum(array.nbytes for array in made.values())
                kept = (
                    (name, each) for name, each in held.items() if self._last.get(name, 0) >= at
                )
                held = {**dict(kept), **made}
        except TerminatedError:
            raise
        except _FAILURES:
            return None
        taken = self._constants.union(map(id, values.values())).difference(map(id, lent))
        given = {name: made[name] if name in made else held[name] for name in self._tail.gives}
        return {name: own(array, array.dtype, taken, lent) for name, array in given.items()}

    def _advanced(
        self, at: int, held: Mapping[str, Array], room: int
    ) -> tuple[int, dict[str, Array]]:
        """Compute nodes from `at` on; return how many, and the results that later ones read."""
        found = self._found(at, held)
        if found is not None:
            stage, numbers = found
            if stage.size(numbers) > room:
                raise LookupError("together they may take too much")
            return stage.count, stage.run(numbers, held)
        tail, node = self._tail, self._tail.nodes[at]
        builder = Builder.in_a_run(tail.single, tail.limits, room)
        builder.budget.given((*held.values(), *tail.constants.values()))
        given = {name: builder.constant(held[name]) for name in node.reads if name in held}
        scope = Scope(builder, tail.opset, tail.constants, given)
        scope.bind((node,), ())
        made = ((name, scope.values[name].array) for name in node.outputs if name in self._last)
        return 1, {name: array for name, array in made if array is not None}

    def _found(self, at: int, held: Mapping[str, Array]) -> Found | None:
        """The stage from a node on; None where that node is bound in each run."""
        begin = self._begins.get(at)
        if begin is None:
            read = dict.fromkeys(n for node in self._tail.nodes[at:] for n in node.reads)
            new = _Begin(tuple(name for name in read if name in held))
            begin = self._begins.setdefault(at, new)
        asked = begin.asked
        memo = begin.memos.get(begin.pattern(held, asked) if at else asked)
        if memo is not None:
            found = memo.at(begin.numbers(held, asked, at > 0))
            if found is not None or memo.full or memo.refusals:
                return found
        while True:
            made = attempted(partial(self._made, at, begin, held, asked))
            if not isinstance(made, str):
                break
            asked = (*asked, made)
        begin.asked = tuple(dict.fromkeys((*begin.asked, *asked)))
        pattern = begin.pattern(held, asked) if at else asked
        memo = begin.memos.setdefault(pattern, Memo(_MOST_KEPT))
        if isinstance(made, Exception):
            memo.refuse("a late node is bound in each run,", made)
            return None
        memo.keep(made)
        return made.at(begin.numbers(held, asked, at > 0))

    def _made(
        self, at: int, begin: _Begin, held: Mapping[str, Array], asked: _Asked
    ) -> Stage | str:
        """A new stage, or the name of a value that has to be asked, too.

        Raises:
            NeedsNumberError: not even the first node can be bound with symbols.
        """
        trace, tail = Trace(), self._tail
        builder = Builder(tail.single, tail.limits, 0, holds_graphs=False)
        given = _with_symbols(begin, held, asked, trace, at > 0)
        scope = Scope(builder, tail.opset, tail.constants, given)
        count, lacking = _bound(scope, tail.nodes[at:])
        name = next((n for n, value in given.items() if value is lacking), None)
        if name is not None and name not in asked and _is_asked(held[name]):
            return name
        if not count:
            raise NeedsNumberError(f"{tail.nodes[at].op} follows from values")
        stop = at + count
        names = [name for node in tail.nodes[at:stop] for name in node.outputs]
        outputs = {n: scope.values[n] for n in names if self._last.get(n, -1) >= stop}
        inputs = {name: value for name, value in given.items() if not value.is_known}
        graph = drop_dead(simplify(builder.finish(inputs, outputs, ())))
        return Stage(graph, trace.guards, count, self._bounded)


def _with_symbols(
    begin: _Begin, held: Mapping[str, Array], asked: _Asked, trace: Trace, extents: bool
) -> dict[str, Value]:
    """Return the values that nodes read, with the variables of `_Begin.numbers` for numbers."""
    variables = iter(enumerate(begin.numbers(held, asked, extents)))

    def symbol() -> Any:
        return trace.variable(*next(variables))

    given: dict[str, Value] = {}
    for name in begin.names:
        if name not in asked:
            array = held[name]
            shape = tuple(symbol() for _ in array.shape) if extents else array.shape
            given[name] = Value(TensorType(shape, as_dtype(array.dtype)))
    for name in asked:
        numbers = np.array([symbol() for _ in range(held[name].size)], object)
        shape = held[name].shape
        given[name] = Value(TensorType(shape, INT64), numbers.reshape(shape))
    return given


def _is_asked(array: Array) -> bool:
    """Return whether the numbers of a value may be symbols."""
    return bool(array.dtype == np.int64 and array.size and is_small(array.shape, INT64))


def _bound(scope: Scope, nodes: Sequence[FileNode]) -> tuple[int, object]:
    """Bind nodes as far as possible; return how many, and the value that the next one needs."""
    for count, node in enumerate(nodes):
        try:
            scope.bind((node,), ())
        except NeedsValuesError as error:
            return count, error.value
        except (LeanConvError, NeedsNumberError):
            return count, None
    return len(nodes), None
