"""The end of a network whose extents, or whose constants, follow from values: NumPy computes it.

What can be planned becomes the graph. The nodes that cannot, since an extent is known only when the
network has run (NonZero, NonMaxSuppression) or because what must be a constant is data (the size of
a Resize, the condition of an If), are late, and so is whatever reads their results. In a run these
nodes are bound again, as at load, but with all values at hand: then each operation is computed at
once, by the same functions that compute constants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.builder import Builder
from leanconv.graph.convert.indexing import SEQUENCES
from leanconv.graph.convert.selection import PARTS, cut_node
from leanconv.graph.element_types import entered, leaving
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import Cut, TensorType, owner
from leanconv.graph.limits import Limits, is_large_part
from leanconv.graph.onnx_binding import Scope
from leanconv.graph.ops.base import Array
from leanconv.graph.segments import Segments, needs_compiler
from leanconv.graph.value import Value
from leanconv.records import cached_property, dataclass
from leanconv.types import BFLOAT16, FLOAT16, DType
from leanconv.units import counted


@dataclass(frozen=True, eq=False)
class Tail:
    """The late nodes of a network.

    Attributes:
        nodes: in an order in which they can run.
        reasons: why, of those that do not merely follow on another.
        reads: names of values that they read, which are inputs of the network or which the graph
            gives.
        gives: the network's outputs that they compute.
        constants, opset, limits: the file's.
        single: the type in place of the file's float32.
        halves: whether its float16 does, too.
        in_half: the outputs that are given in float16 then.
        coded: the network's inputs and outputs that are codes of bfloat16.
    """

    nodes: tuple[FileNode, ...]
    reasons: tuple[str, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    constants: Mapping[str, Array]
    opset: int
    limits: Limits
    single: DType
    halves: bool = False
    in_half: frozenset[str] = frozenset()
    coded: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        """True if NumPy computes all nodes, on tensors of the types that they have."""
        kinds = self.halves or self.in_half or self.coded
        held = any(node.graphs or node.op in SEQUENCES for node in self.nodes)
        return not (kinds or held or self.is_compiled)

    @property
    def is_compiled(self) -> bool:
        """True if parts of the tail are compiled in a run."""
        return needs_compiler(self.nodes)

    @cached_property
    def cuts(self) -> tuple[tuple[str, str, str, int], ...]:
        """If all nodes cut, and do nothing else: each output, its room, how many, along which axis.

        Then that is done without binding anything.
        """
        if not (self.in_half | self.coded).isdisjoint(self.gives):
            return ()
        found = tuple(
            (node.outputs[0], room, count, int(node.attributes["axis"]))
            for node in self.nodes
            if node.op in PARTS
            for room, count in (node.inputs,)
        )
        return found if len(found) == len(self.nodes) else ()

    def most_bytes(self, types: Mapping[str, TensorType]) -> int | None:
        """The most that arrays take at once; None if the file does not bound them.

        Where parts are compiled in a run, their networks take memory, too, and what comes behind
        them is computed before what the file has first: the run bounds that.

        Args:
            types: of the values that the graph gives, and of the network's inputs.
        """
        return None if self.is_compiled else self._bytes_in_order(types)

    def likely_bytes(self, types: Mapping[str, TensorType]) -> int:
        """Guess the bytes of a run, with the weights of nodes that it compiles; it is no bound.

        Args:
            types: as of `most_bytes`.
        """
        weights = {
            name: self.constants[name]
            for node in self.nodes
            for name in node.reads
            if name in self.constants
        }
        held = sum(array.nbytes for array in (*weights.values(), *_held(self.nodes)))
        return held + (self._bytes_in_order(types) or 0)

    def _bytes_in_order(self, types: Mapping[str, TensorType]) -> int | None:
        """The most that arrays take where nodes run in the file's order; None as `most_bytes`."""
        builder = Builder(self.single, self.limits, 0, holds_graphs=False, halves=self.halves)
        builder.bounds = True
        given, cast = {}, 0
        for name in self.reads:
            kind = types[name]
            dtype = self.single if name in self.coded else builder.kept(kind.dtype)
            given[name] = Value(TensorType(kind.shape, dtype))
            if given[name].type != kind:
                cast += given[name].type.bytes
        scope = Scope(builder, self.opset, self.constants, given)
        most = scope.most_bytes(self.nodes, self.gives)
        return None if most is None else cast + most

    def __str__(self) -> str:
        operations = ", ".join(dict.fromkeys(node.op for node in self.nodes))
        but = ", but for what is compiled once its extents are known" * self.is_compiled
        return (
            f"then NumPy computes {counted(len(self.nodes), 'node')} ({operations}) in each run"
            f"{but}: {self.reasons[0]}"
        )

    def _given(self, builder: Builder, name: str, array: Array) -> Value:
        value = builder.constant(array)
        return entered(builder, value, BFLOAT16) if name in self.coded else value

    def run(
        self,
        values: Mapping[str, Array],
        segments: Segments | None = None,
        memory: int | None = None,
    ) -> dict[str, Array]:
        """Compute the outputs.

        Args:
            values: of `reads`.
            segments: compiles what NumPy would take long for; None where it computes that, too.
            memory: bytes for arrays and compiled segments; None for the limits'.

        Returns:
            New arrays by name.

        Raises:
            LeanConvError: values do not fit the nodes, or there are too many.
        """
        builder = Builder.in_a_run(self.single, self.limits, memory, self.halves, segments)
        given = {name: self._given(builder, name, values[name]) for name in self.reads}
        builder.budget.expect(0)  # runs of other shapes may have kept more than fits now
        builder.budget.given((*values.values(), *self.constants.values()))
        builder.budget.made([value.array for value in given.values() if value.array is not None])
        scope = Scope(builder, self.opset, self.constants, given)
        results = scope.run(self.nodes, self.gives)
        taken = {id(array) for array in (*values.values(), *self.constants.values())}
        made = {}
        for name, result in zip(self.gives, results, strict=True):
            if name in self.in_half and result.type.dtype.is_float:
                result = builder.emit("Cast", [result], to=FLOAT16)
            if name in self.coded and result.type.dtype.is_float:
                result = leaving(builder, result)
            if result.array is None:
                raise UnsupportedError(f"output {name!r} is a sequence; expected tensors")
            builder.budget.expect(result.type.bytes)
            made[name] = own(result.array, np.dtype(result.type.dtype.numpy), taken)
            builder.budget.made([made[name]])
        return made


def _held(nodes: Sequence[FileNode]) -> Iterator[Array]:
    """The weights of graphs that nodes hold."""
    for graph in (graph for node in nodes for graph in node.graphs.values()):
        yield from graph.constants.values()
        yield from _held(graph.nodes)


def own(array: Array, dtype: np.dtype[Any], taken: set[int], lent: Iterable[Array] = ()) -> Array:
    """An array that is nobody else's, row by row.

    Args:
        array: of any kind.
        dtype: of the result.
        taken: the ids of arrays that somebody has; the result's is added.
        lent: arrays that nobody else has: a view of one may be given, if it is a large part of it.
    """
    flags, whole = array.flags, owner(array)
    plain = flags.c_contiguous and flags.writeable and array.dtype == dtype
    free = whole is array or any(
        whole is owner(each) and is_large_part(array, whole) for each in lent
    )
    if not (plain and free) or id(array) in taken or id(whole) in taken:
        array = whole = np.array(array, dtype, order="C")
    taken.update((id(array), id(whole)))
    return array


def late_nodes(
    nodes: Sequence[FileNode],
    late: Collection[int],
    cuts: Mapping[int, Sequence[Cut]],
    outputs: Collection[str],
) -> dict[int, tuple[FileNode, ...]]:
    """The late nodes that a network's outputs need, by number, those that cut in place of some.

    Args:
        nodes: of the file.
        late: numbers of those that are late.
        cuts: of some of these, what is cut of their results.
        outputs: of the network.
    """
    needed, found = set(outputs), {}
    for number in sorted(late, reverse=True):
        node = nodes[number]
        made = tuple(cut_node(node, each) for each in cuts[number]) if number in cuts else (node,)
        kept = tuple(each for each in made if not needed.isdisjoint(each.outputs))
        needed.update(name for each in kept for name in each.reads)
        if kept:
            found[number] = kept
    return dict(reversed(found.items()))


def reads_of(nodes: Sequence[FileNode], constants: Mapping[str, Array]) -> tuple[str, ...]:
    """The values that late nodes read and that none of them gives, each once."""
    given = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.reads if name)
    return tuple(name for name in read if name not in given and name not in constants)
