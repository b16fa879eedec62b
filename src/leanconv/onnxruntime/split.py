"""A network whose ends leanconv lacks: its region in leanconv, the rest in the real onnxruntime.

The region is what does not depend on an unsupported operator, or what none depends on: either the
network's beginning or its end. It is worth it where it has most of the convolutions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec, Shape
from leanconv.errors import LeanConvError, UnsupportedError
from leanconv.files import open_regular
from leanconv.graph import onnx_schema as schema
from leanconv.graph.convert import FILE_RULES
from leanconv.graph.file_graph import DOMAINS
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_graph import OnnxGraph, named_value
from leanconv.graph.onnx_import import read_model
from leanconv.graph.wire import Reader
from leanconv.onnxruntime.engines import Arrays, Native, Other, real
from leanconv.onnxruntime.options import SessionOptions
from leanconv.records import dataclass, replace
from leanconv.runtime.locks import Lock
from leanconv.types import as_dtype

log = logging.getLogger(__name__)

# Operators are looked for one by one, by reading parts of the file: of so many nodes and bytes.
_MOST_NODES, _MOST_BYTES = 400_000, 8 << 30
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_EXTERNAL = 1  # TensorProto.data_location


class FileParts:
    """A file that can be taken apart: some of its nodes, with the weights that they read.

    Args:
        data: the file.

    Attributes:
        nodes: in the file's order, in which they can run.
        outputs: names.
        constant: the numbers of nodes that depend on weights alone.
        bytes: of the file.

    Raises:
        ModelError: the file is damaged.
    """

    def __init__(self, data: memoryview) -> None:
        self._graph, self.bytes = OnnxGraph.read(data), len(data)
        self.nodes, self.outputs = tuple(self._graph.nodes), tuple(self._graph.outputs)
        self._reads = [frozenset(filter(None, node.reads)) for node in self.nodes]
        self._writers = {name: i for i, node in enumerate(self.nodes) for name in node.outputs}
        self.constant = self._constant()

    def _constant(self) -> frozenset[int]:
        known, found = {*self._graph.tensors, *self._graph.sparse}, []
        given = {*self._writers, *self._graph.inputs}
        for index, node in enumerate(self.nodes):
            outer = self._reads[index] & given
            if outer <= known and node.domain in DOMAINS and "Random" not in node.bare_op:
                known.update(node.outputs)
                found.append(index)
        return frozenset(found)

    @property
    def external(self) -> bool:
        """True if weights lie in other files."""
        reader = Reader(Limits().fields)
        tensors = [*self._graph.tensors.values()]
        for each in self._graph.sparse.values():
            held = reader.message(each, schema.SPARSE, "sparse initializer")
            tensors += [held[part] for part in ("values", "indices") if part in held]
        messages = (reader.message(each, schema.TENSOR, "initializer") for each in tensors)
        return any(each.get("data_location") == _EXTERNAL for each in messages)

    def knows(self, number: int) -> bool:
        """Return whether leanconv has an operation, or the file a function, for a node."""
        node = self.nodes[number]
        return node.op in FILE_RULES or (node.domain, node.bare_op) in self._graph.functions

    def of(self, number: int) -> frozenset[int]:
        """The nodes whose outputs a node reads."""
        found = (self._writers.get(name) for name in self._reads[number])
        return frozenset(index for index in found if index is not None)

    def crossing(self, first: Collection[int], second: Collection[int]) -> list[str]:
        """Names of the values that the first nodes write and the second read, in order.

        What depends on weights alone does not cross: each part computes it for itself.
        """
        read = {name for number in second for name in self._reads[number]}
        return [
            name
            for number in sorted(first)
            if number not in self.constant
            for name in self.nodes[number].outputs
            if name and name in read
        ]

    def written_by(self, numbers: Collection[int]) -> list[str]:
        """Names of the file's outputs that these nodes write."""
        return [name for name in self.outputs if self._writers.get(name) in numbers]

    def part(
        self, numbers: Iterable[int], given: Mapping[str, bytes], outputs: Sequence[str]
    ) -> bytes:
        """A file of some nodes, and of those that depend on weights alone and that these read.

        Args:
            numbers: of the nodes.
            given: the ValueInfoProto of inputs beside the file's own, by name.
            outputs: names.
        """
        chosen = self.constant.union(numbers)
        known = {**self._graph.values, **self._graph.outputs}
        made = replace(
            self._graph,
            nodes=[self.nodes[number] for number in sorted(chosen)],
            outputs={name: known.get(name, named_value(name)) for name in outputs},
        ).pruned()
        read = {name for node in made.nodes for name in node.reads}.union(outputs)
        inputs = {**self._graph.inputs, **given}
        # A network without inputs is refused, whatever its nodes are.
        made.inputs = {name: data for name, data in inputs.items() if name in read} or inputs
        return made.data()


@dataclass(frozen=True, eq=False)
class Cut:
    """A network's nodes in two parts: one in leanconv, one in the real onnxruntime.

    Attributes:
        parts: of the file.
        ours, theirs: the nodes' numbers.
        ours_first: whether leanconv's come first.
        lacking: the operators that it lacks.
    """

    parts: FileParts
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    ours_first: bool
    lacking: tuple[str, ...]

    @property
    def given(self) -> list[str]:
        """Names of the values that the second part reads from the first."""
        first, second = self.ours, self.theirs
        return self.parts.crossing(*((first, second) if self.ours_first else (second, first)))

    def file(self, ours: bool, given: Mapping[str, bytes]) -> bytes:
        """One of the two parts as a file; `given` describes its inputs, where it is the second."""
        numbers = self.ours if ours else self.theirs
        outputs = self.parts.written_by(numbers)
        if ours == self.ours_first:
            outputs += [name for name in self.given if name not in outputs]
        return self.parts.part(numbers, given, outputs)

    @property
    def text(self) -> str:
        """A sentence for users: the operators that onnxruntime computes."""
        names = ", ".join(self.lacking)
        count, of = len(self.theirs), len(self.theirs) + len(self.ours)
        place = "last" if self.ours_first else "first"
        return f"onnxruntime computes the {place} {count} of {of} operators, for {names}"


class Split:
    """The network in two parts: one in leanconv, one in the real onnxruntime.

    Attributes:
        network: leanconv's part.
        text: the cut in words, for users.
    """

    def __init__(self, cut: Cut, options: SessionOptions) -> None:
        self.text, self._options = cut.text, options
        self._first: Native | Other
        self._second: Native | Other | None = None
        self._given, self._outputs = cut.given, cut.parts.outputs
        self._making = Lock("the second part of the same session")
        self._cut: Cut | None = cut  # until both parts are made: it keeps the file
        if cut.ours_first:
            native = self._first = Native(cut.file(True, {}), options)
            self.network = native.network
            known = {each.name: each for each in self.network.outputs}
            specs = [known[name] for name in self._given]
            if all(isinstance(n, int) for each in specs for n in each.shape or (None,)):
                self._second_of(specs)
        else:
            self._first = _other(cut.file(False, {}), options)
            found = {each.name: each for each in self._first.outputs() if each is not None}
            specs = [found[name] for name in self._given if name in found]
            if len(specs) < len(self._given):
                raise UnsupportedError("onnxruntime gives what leanconv does not take; expected it")
            native = self._second = Native(cut.file(True, _values(specs)), options)
            self.network, self._cut = native.network, None

    @classmethod
    def of(
        cls, source: Path | bytes, options: SessionOptions, shapes: Mapping[str, Shape]
    ) -> Split | None:
        """The network in two parts; None where that does not pay, or something else is lacking.

        Args:
            source: the file, or its path.
            options: of the session.
            shapes: of inputs, as far as they are known.
        """
        if real() is None:
            return None
        try:
            data = source if isinstance(source, bytes) else _contents(source)
            cut = found_cut(FileParts(memoryview(data)), shapes)
            return None if cut is None else cls(cut, options)
        except (LeanConvError, OSError) as error:
            log.debug("the network is not split: %s", error)
            return None

    def outputs(self) -> Sequence[InputSpec | None]:
        """Return None for each output: only the file describes them."""
        return [None] * len(self._outputs)

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """Compute all outputs.

        Raises:
            UnsupportedError: its part needs what leanconv lacks at these shapes.
            OnnxRuntimeError: the real onnxruntime's error, under the same name.
        """
        values = self._first.run(feed, options)
        second = self._second
        if second is None:
            specs = [
                InputSpec(name, (None,) * values[name].ndim, as_dtype(values[name].dtype))
                for name in self._given
            ]
            second = self._second_of(specs)
        given = {name: values[name] for name in self._given}
        values.update(second.run({**feed, **given}, options))
        return {name: values[name] for name in self._outputs}

    def _second_of(self, specs: Sequence[InputSpec]) -> Native | Other:
        """Onnxruntime's part, where it is the second; of several threads one makes it."""
        with self._making.held:
            if self._second is None:
                assert self._cut is not None, "the file is kept until then"
                self._second = _other(self._cut.file(False, _values(specs)), self._options)
                self._cut = None
            return self._second


def _other(data: bytes, options: SessionOptions) -> Other:
    found = Other.of(data, options)
    if found is None:
        raise UnsupportedError("onnxruntime does not take its part; expected that it does")
    return found


def _contents(path: Path) -> bytes:
    """The bytes of a model's file, of at most the size that a reader takes."""
    with open_regular(path, Limits().file_bytes, what="model") as file:
        return file.read()


def _values(specs: Sequence[InputSpec]) -> dict[str, bytes]:
    """Encode values for a file. Names of extents are left out: they are one part's own."""
    result = {}
    for each in specs:
        shape = None
        if each.shape is not None:
            shape = [n if isinstance(n, int) else None for n in each.shape]
        result[each.name] = named_value(each.name, each.dtype.onnx, shape)
    return result


def found_cut(parts: FileParts, shapes: Mapping[str, Shape]) -> Cut | None:
    """The cut that leaves most convolutions to leanconv.

    Args:
        parts: of the file.
        shapes: of inputs, as far as they are known.

    Returns:
        The cut; None where leanconv would have fewer convolutions than onnxruntime, or none.
    """
    if parts.external or not parts.outputs:
        return None
    lacking = _lacking(parts, shapes)
    if not lacking:
        return None
    every = range(len(parts.nodes))
    behind = _closed(lacking, every, parts.of)
    readers: dict[int, set[int]] = {}
    for number in every:
        for before in parts.of(number):
            readers.setdefault(before, set()).add(number)
    ahead = _closed(lacking, reversed(every), lambda n: readers.get(n, ()))
    ops = tuple(dict.fromkeys(parts.nodes[number].bare_op for number in sorted(lacking)))
    cuts = []
    for theirs, ours_first in ((behind, True), (ahead, False)):
        ours = tuple(n for n in every if n not in theirs)
        cut = Cut(parts, ours, tuple(sorted(theirs)), ours_first, ops)
        outputs = parts.written_by(ours) + parts.written_by(cut.theirs)
        if len(outputs) == len(parts.outputs):
            cuts.append(cut)
    best = max(cuts, key=lambda cut: _convolutions(parts, cut.ours), default=None)
    if best is None:
        return None
    own, others = (_convolutions(parts, each) for each in (best.ours, best.theirs))
    return best if own and own >= others else None


def _convolutions(parts: FileParts, numbers: Collection[int]) -> int:
    return sum(parts.nodes[number].bare_op in _CONVOLUTIONS for number in numbers)


def _closed(
    start: Collection[int], order: Iterable[int], neighbours: Callable[[int], Iterable[int]]
) -> frozenset[int]:
    """The start, and all that have a neighbour in it, in an order in which one pass finds them."""
    found = set(start)
    for number in order:
        if not found.isdisjoint(neighbours(number)):
            found.add(number)
    return frozenset(found)


def _lacking(parts: FileParts, shapes: Mapping[str, Shape]) -> set[int]:
    """The nodes that leanconv lacks; what depends on one of them counts for nothing.

    Raises:
        UnsupportedError: finding them takes too long.
    """
    found = {number for number, _ in enumerate(parts.nodes) if not parts.knows(number)}
    every, nodes, size = range(len(parts.nodes)), _MOST_NODES, _MOST_BYTES

    def fits(numbers: Sequence[int]) -> bool:
        nonlocal nodes, size
        nodes, size = nodes - len(numbers), size - parts.bytes
        if min(nodes, size) < 0:
            raise UnsupportedError("it is too large to look for what is lacking; expected less")
        return _fits(parts, numbers, shapes)

    while True:
        tainted = _closed(found, every, parts.of)
        left = [n for n in every if n not in tainted and n not in parts.constant]
        if fits(left):
            return found
        low, high = 0, len(left)  # the first `low` nodes fit, the first `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            if fits(left[:middle]):
                low = middle
            else:
                high = middle
        found.add(left[low])


def _fits(parts: FileParts, numbers: Sequence[int], shapes: Mapping[str, Shape]) -> bool:
    others = set(range(len(parts.nodes))) - set(numbers) - parts.constant
    outputs = parts.written_by(numbers)
    outputs += [name for name in parts.crossing(numbers, others) if name not in outputs]
    if not outputs:
        return True
    try:
        model = read_model(parts.part(numbers, {}, outputs))
        known = {each.name: shapes.get(each.name, each.static_shape) for each in model.inputs}
        bound = {name: shape for name, shape in known.items() if shape is not None}
        if len(bound) == len(known):
            model.bind(bound)
    except LeanConvError:
        return False
    return True
