"""Parts of a network that are compiled in a run, when the extents that they read have been found.

Behind a stage that depends on values there may be convolutions. What NumPy would take long for
becomes a network of its own: from the first such node on all nodes that can be planned once the
values before them are there. It is planned for their shapes and, where a node wants constants, for
their numbers; for others it is planned anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from leanconv.errors import UnsupportedError
from leanconv.graph.convert import RULES
from leanconv.graph.convert.indexing import SEQUENCES
from leanconv.graph.convert.selection import PARTS
from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Kept, RunBudget
from leanconv.graph.onnx_flow import flowing
from leanconv.graph.ops.base import Array
from leanconv.graph.value import Value
from leanconv.records import dataclass

_ALONE = frozenset(("Unique", *PARTS, *SEQUENCES))  # never part of a segment
_MOST_KNOWN = 1024  # elements of a constant


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes that are compiled together.

    Attributes:
        nodes: in an order in which they can run.
        inputs: values that they read, by name.
        constants: the file's weights, and values that must be constants.
        known: the names of the latter.
        outputs: the results that other nodes read.
        opset: of nodes that say none of their own.
    """

    nodes: tuple[FileNode, ...]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    known: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int


class Segments(Kept, Protocol):
    """Compiles parts of a network, keeps them, and runs them."""

    def run(self, segment: Segment, budget: RunBudget) -> Mapping[str, Array]:
        """The outputs by name.

        Args:
            segment: the one to compute.
            budget: of this run: of the networks as many are kept as it has room for.

        Raises:
            LeanConvError: the segment cannot be compiled, or not within the budget.
        """


def needs_compiler(nodes: Sequence[FileNode]) -> bool:
    """Return whether NumPy would take very long for one of the nodes or of those they hold."""
    return any(
        RULES[node.op].products or any(needs_compiler(g.nodes) for g in node.graphs.values())
        for node in nodes
    )


class SegmentFinder:
    """Finds nodes that are compiled together, of those that have not run.

    Args:
        value: of a name that has been computed.
        weight: a constant of the file of that name; None where it has none.
    """

    def __init__(
        self, value: Callable[[str], Value], weight: Callable[[str], Array | None]
    ) -> None:
        self._value, self._weight = value, weight

    def numbers(self, nodes: Sequence[FileNode]) -> list[int]:
        """The numbers of the nodes that can be planned together with the first one.

        Nodes that hold graphs are not among them, nor those whose results' extents follow from
        values, nor whatever wants constants that are data, or reads arrays without elements.

        Args:
            nodes: in order; the first one needs a compiler.

        Raises:
            UnsupportedError: a node wants weights that are no constants.
        """
        taken: list[int] = []
        made: dict[str, bool] = {}  # what the segment gives, and whether it is data
        left: set[str] = set()  # what other nodes give
        for number, node in enumerate(nodes):
            rule = RULES[node.op]
            late = node.graphs or node.op in _ALONE or not left.isdisjoint(node.reads)
            late = late or (bool(taken) and self.reads_nothing(node, made))
            data = [] if late else [n for n in range(len(node.inputs)) if self._data(node, n, made)]
            wanted = [] if rule.running is None or rule.knows_shape else data
            wrong = [node.inputs[n] for n in wanted if n not in (rule.running or ())]
            if wrong and not taken:
                raise UnsupportedError(
                    f"node {node.name!r} ({node.op}): {wrong[0]!r} depends on the network's "
                    "inputs, which is not supported on data yet; expected a constant"
                )
            if late or wrong:
                left.update(filter(None, node.outputs))
                continue
            taken.append(number)
            passes = not rule.knows_shape and any(n not in rule.typed for n in data)
            made.update((name, passes) for name in node.outputs if name)
        return taken

    def reads_nothing(self, node: FileNode, made: Collection[str] = ()) -> bool:
        """Return whether a node reads an array without elements that no node of a segment makes."""
        return any(
            not self._value(name).type.elements
            for name in node.inputs
            if name and name not in made and self._weight(name) is None
        )

    def _data(self, node: FileNode, index: int, made: Mapping[str, bool]) -> bool:
        """Return whether an input is data, and no number that may become a constant."""
        name = node.inputs[index]
        if not name or name in made:
            return made.get(name, False)
        if self._weight(name) is not None:
            return False
        kind = self._value(name).type
        return kind.dtype.is_float or kind.elements > _MOST_KNOWN

    def segment(self, nodes: Sequence[FileNode], outputs: Sequence[str], opset: int) -> Segment:
        """The segment of some nodes, with the values that they read.

        Args:
            nodes: of the segment.
            outputs: the results that other nodes read.
            opset: of nodes that say none of their own.
        """
        made = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(n for node in nodes for n in node.reads if n and n not in made)
        weights = {name: array for name in read if (array := self._weight(name)) is not None}
        values = {name: self._value(name).array for name in read if name not in weights}
        arrays = {name: array for name, array in values.items() if array is not None}
        wanted = _wanted_constants(nodes, arrays)
        held = {name: array for name, array in arrays.items() if name in wanted}
        inputs = {name: array for name, array in arrays.items() if name not in wanted}
        return Segment(
            tuple(nodes), inputs, {**weights, **held}, tuple(held), tuple(outputs), opset
        )


def _wanted_constants(nodes: Sequence[FileNode], values: Collection[str]) -> set[str]:
    """The values that must be constants where nodes are bound, or from which such ones follow."""
    wanted: set[str] = set()
    for node, flows in flowing(nodes, values):
        rule = RULES[node.op]
        if rule.running is not None and not rule.knows_shape:
            wanted.update(node.inputs[index] for index in flows if index not in rule.running)
    for node in reversed(nodes):  # what they are computed from
        if not wanted.isdisjoint(node.outputs) and not RULES[node.op].knows_shape:
            wanted.update(name for name in node.reads if name)
    return wanted
