"""Builds a graph in normal form, computing at once whatever depends on constants only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.ir import Attributes, Graph, TensorType, is_filled, is_spread, spread_zeros
from leanconv.graph.limits import FoldBudget, Limits, RunBudget
from leanconv.graph.narrow_codes import read_mark
from leanconv.graph.ops import OPS, check_dtypes, evaluate, infer, table_bytes, working_bytes
from leanconv.graph.ops.base import SYMBOLIC_DTYPES, Array, checked, checked_symbols, dtype_of
from leanconv.graph.ops.movement import moves_nothing
from leanconv.graph.value import (
    Emitted,
    NeedsValuesError,
    Unmade,
    Value,
    alive,
    are_numbers,
    finished,
    has_symbols,
    known_if_empty,
)
from leanconv.symbolic import plain
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, DType, as_dtype
from leanconv.units import shape_text

_CHOSEN = slice(1, 3)  # inputs of a Where
_PIECE = 64 * 1024  # elements of a spread constant that are converted at once


class Builder:
    """Collects nodes; `emit` checks, simplifies and folds, `finish` names and prunes.

    Attributes:
        single: the type in place of the file's float32: float64 when the model is promoted.
        budget: for the cost of folding.
        holds_graphs: whether nodes may hold graphs: a loop its body.
        halves: whether the file's float16 becomes `single`, too.
        running: whether the network runs: all values are known, and no graph is made.
        segments: compiles parts of a network that runs (`graph.segments.Segments`); None where
            NumPy computes all of it.
        bounds: whether extents that follow from values count as the most that they may be.
        settings: values that follow from small inputs alone, with the names of these.
        wanted: names of those whose values were needed.
        narrow: the element types of values that are codes of types of at most 8 bits: see
            `graph.narrow_codes`.
        blocked: the codes of floats that are constant codes in blocks: see
            `graph.convert.blocked_weights`.
    """

    def __init__(
        self,
        single: DType,
        limits: Limits,
        model_bytes: int,
        holds_graphs: bool = True,
        halves: bool = False,
    ) -> None:
        self.halves = halves
        self.segments: Any = None
        self.bounds = False
        self.single, self.holds_graphs, self.running = single, holds_graphs, False
        filled = limits.filled_bytes * (2 if single == FLOAT64 else 1)  # as declared
        traffic, most = limits.fold_budget(model_bytes), limits.made_budget(model_bytes)
        self.budget = FoldBudget(traffic, most, filled, limits.held_nodes)
        self.settings: dict[Value, frozenset[str]] = {}
        self.narrow: dict[Value, DType] = {}
        self.blocked: dict[Value, Any] = {}
        self.wanted: set[str] = set()
        self._nodes: list[Emitted] = []
        self._deferred: dict[Value, Emitted] = {}

    @classmethod
    def in_a_run(
        cls,
        single: DType,
        limits: Limits,
        memory: int | None = None,
        halves: bool = False,
        segments: Any = None,
    ) -> Builder:
        """A builder that computes everything at once, within the bounds of one run.

        Args:
            single, halves: as the builder's of the graph.
            limits: of the network.
            memory: bytes for arrays and compiled segments; None for the limits'.
            segments: compiles parts of the network; None where NumPy computes all of it.
        """
        made = cls(single, limits, 0, holds_graphs=False, halves=halves)
        made.running, made.segments = True, segments
        made.budget = RunBudget(limits, memory, segments)
        return made

    @property
    def emitted(self) -> int:
        """The number of nodes until now."""
        return len(self._nodes)

    def bytes_since(self, first: int) -> int:
        """Bytes of the values of all nodes from a number on, and of what NumPy works in."""
        nodes = self._nodes[first:]
        values = sum(value.type.bytes for node in nodes for value in node.outputs)
        return values + max((node.working for node in nodes), default=0)

    def kept(self, dtype: DType) -> DType:
        """The dtype in which the file's numbers of a dtype are kept."""
        return self.single if dtype == FLOAT32 or self.is_promoted(dtype) else dtype

    def is_promoted(self, dtype: DType) -> bool:
        """Return whether a dtype is float16 that becomes `single`."""
        return self.halves and dtype == FLOAT16

    def inner(self) -> Builder:
        """A builder of a graph that a node holds; the budget is this one's, too."""
        made = copy(self)
        made._nodes, made._deferred = [], {}
        return made

    def constant(self, array: Array) -> Value:
        """A value that is known; float32 and float16 as what they become."""
        array, narrow = read_mark(array)
        if narrow is not None:
            return self.as_narrow(Value(TensorType(array.shape, narrow.held), array), narrow)
        if array.dtype in (np.float32, np.float16):
            kept = self.kept(as_dtype(array.dtype))
            array = array if array.dtype == kept else _converted(array, kept)
        return Value(TensorType(array.shape, dtype_of(array)), array)

    def as_narrow(self, codes: Value, kind: DType) -> Value:
        """Codes, known to be of a type of at most 8 bits from now on."""
        self.narrow[codes] = kind
        return codes

    def declared(self, value: Value) -> DType:
        """The element type of a value as the file has it."""
        return self.narrow.get(value, value.type.dtype)

    def filled(self, number: Array, shape: Sequence[int]) -> Value:
        """One number repeated, as a view of it that takes no memory.

        Args:
            number: an array of one element.
            shape: of the constant.

        Raises:
            ModelError: no tensor may have that shape.
            UnsupportedError: such constants would take too many bytes when they are packed.
        """
        result = checked(shape, as_dtype(number.dtype))
        self.budget.fill(result.bytes)
        if has_symbols(result):
            given = [Value(TensorType(number.shape, result.dtype), number)]
            (made,) = self._defer("Expand", given, (result,), {"shape": result.shape}, "")
            return made
        one = number.reshape(())
        return Value(result, self.computed(lambda: np.broadcast_to(one, result.shape), result))

    def unknown(self, kind: TensorType, working: int) -> Value:
        """A value of which only the type is known, as if a node gave it.

        Args:
            kind: of the value.
            working: bytes in which NumPy works to make it.
        """
        made = Value(kind)
        self._nodes.append(Emitted("", (), (made,), MappingProxyType({}), "", working))
        return made

    def emit(
        self, op: str, inputs: Sequence[Value | None], source: str = "", **attributes: Any
    ) -> Value:
        """`emit_all` for an operation that has one output."""
        (output,) = self.emit_all(op, inputs, source, **attributes)
        return output

    def number(self, number: float, like: Value) -> Value:
        """A scalar constant of another value's dtype."""
        dtype = like.type.dtype
        return Value(TensorType((), dtype), np.asarray(number, dtype=dtype))

    def kind(self, value: Value) -> TensorType:
        """The type of a value."""
        return value.type

    def emit_all(
        self, op: str, inputs: Sequence[Value | None], source: str = "", **attributes: Any
    ) -> tuple[Value, ...]:
        """Add an operation in normal form, or its results when they are known already.

        They are known when all inputs are constants, and when they have no elements. Floats of
        codes are made only where something reads their numbers: a node gives them to layers, for
        which most of them stay codes.

        Args:
            op: a key of `graph.ops.OPS`.
            inputs: its inputs, None for absent ones.
            source: the name of the file's node.
            attributes: in normal form.

        Returns:
            A value for each output of the operation.

        Raises:
            ModelError: the inputs do not fit the operation, or folding costs too much.
            UnsupportedError: the operation does not compute on such data.
        """
        made = self._emitted(op, inputs, source, attributes)
        moved = _CHOSEN if op == "Where" else OPS[op].moves
        if self.narrow and moved:
            kinds = {self.narrow.get(value) for value in inputs[moved] if value is not None}
            (kind,) = kinds if len(kinds) == 1 else (None,)
            if kind is not None:
                self.narrow.update(dict.fromkeys(made, kind))
        return made

    def _emitted(
        self, op: str, inputs: Sequence[Value | None], source: str, attributes: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        types = [value.type if value else None for value in inputs]
        results = infer(op, types, attributes)
        inputs = [value and known_if_empty(value) for value in inputs]
        if op == "Concat" and results[0].elements:  # what has no elements adds nothing
            inputs = [value for value in inputs if value and value.type.elements]
        first, result = inputs[0], results[0]
        still = len(results) == 1 and moves_nothing(op, len(inputs), result.shape, attributes)
        if first and still and len(first.shape) == len(result.shape) and first.type == result:
            return (first,)
        if not any(kind.elements for kind in results):
            made = self._computed_all(lambda: [np.empty(kind.shape) for kind in results], results)
            return tuple(map(Value, results, made))
        if all(value is None or value.is_known for value in inputs):
            if op == "DequantizeLinear" and not self.running and are_numbers(inputs):
                return self._later(op, inputs, results, attributes, source)
            if self._follows_sizes(op, inputs, results):
                return self._defer(op, inputs, results, attributes, source)
            return self._fold(op, inputs, results, attributes)
        if not self.bounds:
            check_dtypes(op, types)
        tables = table_bytes(op, types, attributes, results)
        self.budget.charge(plain(tables))
        working = tables + working_bytes(op, types, results) if self.bounds else 0
        outputs = tuple(map(Value, results))
        if self.settings:
            self._follow(inputs, outputs)
        facts = MappingProxyType(dict(attributes))
        self._nodes.append(Emitted(op, tuple(inputs), outputs, facts, source, working))
        return outputs

    def needs(self, value: Value, text: str) -> NeedsValuesError:
        """The error that a value is data; the small inputs that it follows from are wanted."""
        self.wanted |= self.settings.get(value, frozenset())
        return NeedsValuesError(text).of(value)

    def _follow(self, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> None:
        """Note that outputs follow from small inputs alone, if their operands do."""
        unknown = (value for value in inputs if value is not None and not value.is_known)
        found = [self.settings.get(value) for value in unknown]
        names = [each for each in found if each]
        if len(names) == len(found):
            self.settings.update(dict.fromkeys(outputs, frozenset().union(*names)))

    def _fold(
        self,
        op: str,
        inputs: Sequence[Value | None],
        results: tuple[TensorType, ...],
        attributes: Attributes,
    ) -> tuple[Value, ...]:
        types = [value.type if value else None for value in inputs]
        number = _repeated(op, inputs[0]) if results[0].elements else None
        if number is not None:
            return tuple(self.filled(number, kind.shape) for kind in results)
        self._charge(op, types, attributes, results)
        symbols = OPS[op].takes_symbols
        arrays = [(v.array if symbols else v.numbers) if v else None for v in inputs]
        try:
            made = self._computed_all(lambda: evaluate(op, arrays, attributes), results)
        except ModelError as error:
            empty = [str(kind) for kind in types if kind and not kind.elements]
            if not empty:
                raise
            raise UnsupportedError(
                f"computes {results[0]} from {empty[0]}, which has no elements; expected extents "
                "of at least 1; bind a larger input"
            ) from error
        return tuple(map(Value, results, made))

    def _charge(
        self,
        op: str,
        types: Sequence[TensorType | None],
        attributes: Attributes,
        results: tuple[TensorType, ...],
    ) -> None:
        """Account for an operation on constants: its traffic, and its bytes at once."""
        work, tables = OPS[op].work, plain(table_bytes(op, types, attributes, results))
        if op != "Reshape":
            traffic = tables + sum(kind.bytes for kind in (*results, *types) if kind)
            self.budget.charge(traffic + (4 * work(types, attributes, results) if work else 0))
        working = tables + working_bytes(op, types, results)
        self.budget.expect(working + sum(kind.bytes for kind in results))

    def _later(
        self,
        op: str,
        inputs: Sequence[Value | None],
        results: tuple[TensorType, ...],
        attributes: Attributes,
        source: str,
    ) -> tuple[Value, ...]:
        """A constant that is paid for now and made when its numbers are read; a node gives it."""
        self._charge(op, [value.type if value else None for value in inputs], attributes, results)
        arrays = [value.array if value else None for value in inputs]

        def make() -> Array:
            return self.computed(lambda: evaluate(op, arrays, attributes)[0], results[0])

        made = (Value(results[0], Unmade(make)),)
        facts = MappingProxyType(dict(attributes))
        self._nodes.append(Emitted(op, tuple(inputs), made, facts, source))
        return made

    def _follows_sizes(
        self, op: str, inputs: Sequence[Value | None], results: Sequence[TensorType]
    ) -> bool:
        """Return whether an operation on constants is to be computed for each size by itself."""
        if any(value in self._deferred and value.is_unmade for value in inputs if value):
            return True
        symbols = op == "Cast" and results[0].dtype.is_float and not are_numbers(inputs)
        return symbols or any(map(has_symbols, results))

    def _defer(
        self,
        op: str,
        inputs: Sequence[Value | None],
        results: tuple[TensorType, ...],
        attributes: Attributes,
        source: str,
    ) -> tuple[Value, ...]:
        """Constants that follow from symbols: computed for each size, see `Graph.from_sizes`.

        Something that reads their numbers has them at once, for this size alone.
        """
        self._charge(op, [value.type if value else None for value in inputs], attributes, results)

        @cache
        def made() -> list[Array]:
            arrays = [value.numbers if value else None for value in inputs]
            return self._computed_all(lambda: evaluate(op, arrays, attributes), results)

        outputs = tuple(
            Value(kind, Unmade(lambda number=number: made()[number]))  # type: ignore[misc]
            for number, kind in enumerate(results)
        )
        node = Emitted(op, tuple(inputs), outputs, MappingProxyType(dict(attributes)), source)
        self._deferred.update(dict.fromkeys(outputs, node))
        return outputs

    def cast_from(self, value: Value) -> Value:
        """The integers that a float constant was cast from, where they follow from sizes alone.

        The value itself where it is no such constant.
        """
        node = self._deferred.get(value)
        if node is None or node.op != "Cast" or not value.is_unmade:
            return value
        (found,) = node.inputs
        assert found is not None
        return found

    def computed(self, function: Callable[[], Any], result: TensorType) -> Array:
        """Call `function` for a constant, with NumPy's refusals as errors of the model."""
        (array,) = self._computed_all(lambda: (function(),), (result,))
        return array

    def _computed_all(
        self, function: Callable[[], Sequence[Any]], results: Sequence[TensorType]
    ) -> list[Array]:
        """`computed` for a function that makes several."""
        try:
            with np.errstate(all="ignore"):
                arrays = [
                    self.budget.alone(_of_dtype(np.asarray(made), kind.dtype))
                    for made, kind in zip(function(), results, strict=True)
                ]
        except (TypeError, ValueError, ArithmeticError, IndexError) as error:
            raise ModelError(
                f"the constants do not fit the operation ({error}); expected those it takes"
            ) from error
        for array, kind in zip(arrays, results, strict=True):
            if array.shape != kind.shape:
                raise ModelError(
                    f"gives a constant of shape {shape_text(array.shape)}; expected {kind}"
                )
        self.budget.made(arrays)
        return arrays

    def read_by(self, outputs: Sequence[Value]) -> set[Value]:
        """All values that outputs depend on, these counted."""
        read = {value for node in alive(self._nodes, outputs) for value in node.inputs if value}
        return {*outputs, *read}

    def finish(
        self,
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        names: Sequence[tuple[str, Value]],
    ) -> Graph:
        """The graph of everything that the outputs need: see `finished`."""
        deferred = list(dict.fromkeys(self._deferred.values()))
        return finished(self._nodes, inputs, outputs, names, deferred)


def _repeated(op: str, value: Value | None) -> Array | None:
    """The number of which an operation makes a filled constant, None if it makes another one."""
    array = value.array if value else None
    if array is None or array.dtype == object or not OPS[op].rearranges:
        return None
    repeats = is_filled(array) or (op == "Expand" and array.size == 1)
    return array[(slice(1),) * array.ndim] if repeats else None


def _of_dtype(array: Array, dtype: DType) -> Array:
    """An array as one of the dtype; integers with symbols among them stay objects."""
    if array.dtype == object and dtype in SYMBOLIC_DTYPES:
        return checked_symbols(array, dtype)
    return np.asarray(array, dtype=dtype)


def _converted(array: Array, dtype: DType) -> Array:
    """An array in another dtype; one that repeats a number, or is spread, still does and is."""
    if is_spread(array):
        made = spread_zeros(array.shape, np.dtype(dtype.numpy))
        bits, rows = array.reshape(-1).view(f"u{array.itemsize}"), made.reshape(-1)
        for first in range(0, array.size, _PIECE):
            some = slice(first, first + _PIECE)
            if bits[some].any():  # what is written takes memory
                rows[some] = array.reshape(-1)[some]
        return made
    if not is_filled(array):
        return array.astype(dtype)
    return np.broadcast_to(array[(slice(1),) * array.ndim].reshape(()).astype(dtype), array.shape)
