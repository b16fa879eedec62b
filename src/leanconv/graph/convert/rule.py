"""The importer's record of an ONNX operation, and how a converter sees a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Builder
from leanconv.graph.file_graph import FileGraph, FileNode
from leanconv.graph.ir import TensorType
from leanconv.graph.ops.base import MAX_RANK, Array, checked, dtype_of, integer, numbers
from leanconv.graph.value import SequenceValue, Unmade, Value
from leanconv.records import dataclass, field
from leanconv.symbolic import Symbol
from leanconv.types import DType

FIRST_OPSET, LAST_OPSET = 1, 28


@dataclass(frozen=True)
class Older:
    """Attributes and inputs that an operation had in the first opsets only.

    Attributes:
        before: the opset that took it away.
        attributes: the kinds of the attributes that it had besides, by name.
        inputs: the least and the most inputs that it had, None for those of later opsets.
    """

    before: int = 0
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    inputs: tuple[int, int] | None = None


@dataclass(frozen=True)
class Rule:
    """The import of one ONNX operation.

    Attributes:
        convert: makes the values of the node's outputs.
        attributes: the kinds of the attributes it may have, by name.
        least, most: how many inputs it may have.
        running: the inputs that may depend on the network's inputs; None for all of them.
        typed: of these, the inputs of which only the dtype is read.
        knows_shape: its outputs depend on shapes only, so they are constants.
        since, until: the opsets that have the operation.
        outputs: how many outputs may be used.
        moved: the opset that made inputs of some attributes, and those attributes; before it
            the operation has no more than `least` inputs, from it on not those attributes.
        older: attributes and inputs of the first opsets alone.
        graphs: the attributes that are graphs, which a node must have.
        codes: what engines make of codes of 8 bits that it reads: of the same scale, as it gives
            numbers that it reads ("kept"), of a scale of their own ("mixed"), the same within
            bounds ("bounded"); "" where it takes floats.
        halves: whether it errs in float16 no more than what it reads, as all that takes codes does.
        homogeneous: whether a positive factor of each channel may follow it instead.
        quantised: whether it reads or gives codes of values that are computed.
        gives: the element type of its first output; None for that of the last input that is data.
        moves: whether it gives elements back as they are or converts them, and computes nothing.
        narrow: whether it takes elements of at most 8 bits that are codes: of int4, of float8.
        products: whether it sums so many products that NumPy would take very long; it becomes a
            convolution, beside other nodes, where its weights are constants.
        finds: the axis of its first output along which there is what it finds in a run.
        follows: how what was found, in room for more, runs through it, as `bounded_extents` says;
            "" where it does not.
    """

    convert: Callable[[Call], Sequence[Value]]
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    least: int = 1
    most: int = 1
    running: Sequence[int] | None = (0,)
    typed: tuple[int, ...] = ()
    knows_shape: bool = False
    since: int = FIRST_OPSET
    until: int = LAST_OPSET
    outputs: int = 1
    moved: tuple[int, tuple[str, ...]] = (0, ())
    older: Older = Older()
    graphs: tuple[str, ...] = ()
    codes: Literal["", "kept", "mixed", "bounded"] = ""
    halves: bool = False
    homogeneous: bool = False
    quantised: bool = False
    gives: DType | None = None
    moves: bool = False
    narrow: bool = False
    products: bool = False
    finds: int | None = None
    follows: str = ""


@dataclass(frozen=True, eq=False)
class Held:
    """A graph that a node holds, bound by itself.

    Attributes:
        builder: has its operations.
        inputs: the values given, by name.
        captured: values of the graph around it, and those that stand for them in it, by name.
        outputs: in the file's order.
        names: the file's names of its values.
    """

    builder: Builder
    inputs: Mapping[str, Value]
    captured: Mapping[str, tuple[Value, Value]]
    outputs: Sequence[Value]
    names: Sequence[tuple[str, Value]]


# Makes further inputs of a graph, given its builder and what a value around it is in it.
MoreInputs = Callable[[Builder, Callable[[Value], Value]], Sequence[Value]]


class Graphs(Protocol):
    """Binds the graphs that a node holds."""

    def inline(self, graph: FileGraph, inputs: Sequence[Value]) -> list[Value]:
        """Bind a graph among the operations around it; gives its outputs."""

    def hold(
        self, graph: FileGraph, inputs: Sequence[Value], more: MoreInputs | None = None
    ) -> Held:
        """Bind a graph by itself; `more` makes the last of its inputs."""


class Call:
    """A node with its values, as a converter reads it."""

    def __init__(
        self,
        builder: Builder,
        node: FileNode,
        opset: int,
        inputs: Sequence[Value | None],
        graphs: Graphs | None = None,
    ) -> None:
        self.builder = builder
        self.node = node
        self.opset = opset
        self._inputs = inputs
        self._graphs = graphs

    def with_inputs(self, inputs: Sequence[Value | None], node: FileNode | None = None) -> Call:
        """The node with other inputs, or another node in its place."""
        return Call(self.builder, node or self.node, self.opset, inputs, self._graphs)

    def __len__(self) -> int:
        return len(self._inputs)

    def optional(self, index: int) -> Value | None:
        """An input, or None when it is absent.

        Raises:
            ModelError: the input is a sequence.
        """
        found = self.anything(index)
        if isinstance(found, SequenceValue):
            raise ModelError(f"input {index} is a sequence; expected a tensor")
        return found

    def anything(self, index: int) -> Value | None:
        """An input, be it a sequence, or None when it is absent."""
        return self._inputs[index] if index < len(self._inputs) else None

    def sequence(self, index: int) -> list[Value]:
        """The elements of a sequence.

        Raises:
            ModelError: the input is none.
        """
        found = self.anything(index)
        if not isinstance(found, SequenceValue):
            raise ModelError(f"input {index} is no sequence; expected one")
        return list(found.items)

    def value(self, index: int = 0) -> Value:
        """An input that must be there.

        Raises:
            ModelError: the input is absent.
        """
        found = self.optional(index)
        if found is None:
            raise ModelError(f"input {index} is absent; expected a tensor")
        return found

    def constant(self, index: int) -> Array:
        """The array of an input that must be known at load, as numbers.

        Raises:
            NeedsValuesError: the input is computed at run time.
        """
        return numbers(self.symbolic(index), self.value(index).type.dtype)

    def symbolic(self, index: int) -> Array:
        """A known input as an array, of objects where its integers have symbols.

        Raises:
            NeedsValuesError: the input depends on the network's inputs.
        """
        found = self.value(index)
        array = found.array
        if array is None:
            raise self.builder.needs(
                found,
                f"input {index} depends on the network's inputs, which is not supported on data "
                "yet; expected a constant",
            )
        return array

    def check_not_narrow(self) -> None:
        """Raise unless all inputs are of types that networks compute in.

        Raises:
            UnsupportedError: one has elements of at most 8 bits that are codes.
        """
        for index, value in enumerate(self._inputs):
            kind = None if value is None else self.builder.narrow.get(value)
            if kind is not None:
                raise UnsupportedError(
                    f"input {index} has elements of type {kind}, which are only cast, quantised, "
                    "dequantised and moved; expected another type: insert a Cast"
                )

    def declared(self, index: int) -> DType:
        """The element type of an input as the file has it."""
        return self.builder.declared(self.value(index))

    def dtype(self, index: int) -> DType:
        """The dtype of an input."""
        return self.value(index).type.dtype

    def integers(self, index: int, most: int = MAX_RANK) -> tuple[int, ...]:
        """A short list of integers that an input holds; a scalar counts as a list of one.

        Raises:
            ModelError: the input is no such list.
        """
        array, kind = self.symbolic(index), self.value(index).type
        if array.ndim > 1 or not kind.dtype.is_integer or array.size > most:
            raise ModelError(f"input {index} is {kind}; expected a list of at most {most} integers")
        return tuple(integer(number) for number in array.reshape(-1))

    def listed(self, name: str, index: int, as_input: int, most: int = MAX_RANK) -> Any:
        """Integers, None where absent: an attribute, or an input from opset `as_input` on."""
        if self.opset < as_input:
            return self.attribute(name, None)
        return self.integers(index, most) if self.optional(index) is not None else None

    def reduced(self, rank: int, as_input: int) -> tuple[int, ...] | None:
        """The axes of a reduction, given as `listed` says; None where nothing is reduced."""
        axes = self.listed("axes", 1, as_input)
        if not axes and self.opset >= as_input and self.flag("noop_with_empty_axes"):
            return None
        return self.axes(axes, rank) if axes else tuple(range(rank))

    def scalar(self, index: int) -> Any:
        """The one element that an input holds.

        Raises:
            ModelError: the input has another number of elements.
        """
        array = self.symbolic(index)
        if array.size != 1:
            raise ModelError(f"input {index} has {array.size} elements; expected one")
        number = array.reshape(-1)[0]
        return number if isinstance(number, Symbol | int) else number.item()

    def whole(self, index: int) -> int:
        """The one integer that an input holds, be it of a float dtype.

        Raises:
            ModelError: the input is no such number.
        """
        number = self.scalar(index)
        if isinstance(number, float) and not number.is_integer():
            raise ModelError(f"input {index} is {number}; expected an integer")
        return int(number)

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return self.node.attributes.get(name, default)

    def flag(self, name: str, default: int = 0) -> bool:
        """An attribute that is 0 or 1.

        Raises:
            ModelError: the attribute is another number.
        """
        number = self.attribute(name, default)
        if number not in (0, 1):
            raise ModelError(f"attribute {name} is {number}; expected 0 or 1")
        return bool(number)

    def axis(self, number: int, rank: int, what: str = "axis") -> int:
        """An axis counted from the front.

        Raises:
            ModelError: there is no such axis.
        """
        if not -rank <= number < rank:
            raise ModelError(f"{what} is {number}; expected -{rank} to {rank - 1}")
        number = int(number)  # a symbol would have no hash, and the type depends on it anyway
        return number + rank if number < 0 else number

    def axes(self, numbers: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes counted from the front.

        Raises:
            ModelError: one does not exist or is given twice.
        """
        if len(numbers) > rank:
            raise ModelError(f"got {len(numbers)} axes; expected at most {rank}")
        result = tuple(self.axis(number, rank, "an element of axes") for number in numbers)
        if len(set(result)) != len(result):
            raise ModelError(f"axes is {result}; expected distinct axes")
        return result

    def inline(
        self, name: str, inputs: Sequence[Value] = (), outputs: Sequence[str] | None = None
    ) -> list[Value]:
        """Compute a graph that the node holds, here and now.

        Args:
            name: the attribute's.
            inputs: of the graph.
            outputs: the names of those that are wanted; None for all.

        Returns:
            Its outputs.

        Raises:
            LeanConvError: as binding the nodes of the network.
        """
        assert self._graphs is not None, "nothing binds graphs that nodes hold"
        graph = self.node.graphs[name]
        return self._graphs.inline(graph if outputs is None else graph.part(outputs), inputs)

    def hold(self, name: str, inputs: Sequence[Value], more: MoreInputs | None = None) -> Held:
        """Bind a graph that the node holds by itself; `more` makes the last of its inputs."""
        assert self._graphs is not None, "nothing binds graphs that nodes hold"
        return self._graphs.hold(self.node.graphs[name], inputs, more)

    def emit(self, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """Add an operation in normal form; see `Builder.emit`."""
        return self.builder.emit(op, inputs, self.node.name, **attributes)

    def emit_all(
        self, op: str, inputs: Sequence[Value | None], **attributes: Any
    ) -> tuple[Value, ...]:
        """Add an operation of several outputs in normal form; see `Builder.emit_all`."""
        return self.builder.emit_all(op, inputs, self.node.name, **attributes)

    def cast(self, x: Value, to: DType) -> Value:
        """A value in another dtype."""
        return x if x.type.dtype == to else self.emit("Cast", [x], to=to)

    def kind(self, value: Value) -> TensorType:
        """The type of a value."""
        return value.type

    def number(self, number: float, like: Value) -> Value:
        """A scalar constant of another value's dtype, whatever the network computes in."""
        dtype = like.type.dtype
        return Value(TensorType((), dtype), np.asarray(number, dtype=dtype))

    def fold(
        self, function: Callable[[], Array], shape: Sequence[int], dtype: DType, working: int = 0
    ) -> Value:
        """A constant of a type that is checked and paid for before it is computed.

        Args:
            function: computes it; it is not called for one without elements, whatever its extents.
            shape, dtype: of the constant.
            working: bytes in which NumPy works, beside it and what is read.
        """
        result = checked(shape, dtype)
        read = sum(v.type.bytes for v in self._inputs if v is not None and v.is_known)
        self.builder.budget.charge(result.bytes + working + read)
        self.builder.budget.expect(result.bytes + working)
        make = function if result.elements else partial(np.empty, result.shape)
        return Value(result, self.builder.computed(make, result))

    def later(self, function: Callable[[], Array], shape: Sequence[int], dtype: DType) -> Value:
        """A constant as `fold` has it, paid for now and made when its numbers are read."""
        result = checked(shape, dtype)
        self.builder.budget.charge(result.bytes)
        return Value(result, Unmade(lambda: self.builder.computed(function, result)))

    def constant_of(self, array: Array) -> Value:
        """An array as a constant."""
        return self.fold(lambda: array, array.shape, dtype_of(array))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """A value's elements in another shape."""
        return self.emit("Reshape", [value], shape=tuple(integer(extent) for extent in shape))
