"""Keep the values between the operations of a float32 network in half precision.

What computes reads and writes halves as it does float32 (`graph.halves`), so that hardly anything
is cast: only what moves elements needs them all in one type, and what takes no halves float32. The
network's inputs and outputs keep their types. Float32 stay, too:

- values of few elements, which take few bytes, where no weights make them;
- what grows large or small where its inputs do not, as squares and exponentials, and what is as
  large as that: between the steps of a normalisation nothing overflows;
- places in images, which 11 digits do not tell apart, what becomes an integer or a remainder,
  angles, exponents, as the scores before a softmax, and all that they are sums, parts or multiples
  of: a relative error of a large one is an absolute one, and a mask of -10000 has no digits left
  for the scores behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from leanconv.graph.edit import Editor, reshape_node, rewrite
from leanconv.graph.halves import computes, moves
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.passes.fuse_chains import fuse_chains, separated
from leanconv.half_arrays import in_memory
from leanconv.types import BOOL, FLOAT16, FLOAT32, DType

_KEEPS_RANGE = ("exact", "scaled")
_RESIDUAL = 3  # the input's number in a Conv
_FEW = 4096  # elements


def store_in_halves(graph: Graph, half: DType, names: Collection[str] | None = None) -> Graph:
    """Store values of float32 in halves.

    Args:
        graph: after the other passes.
        half: the half precision.
        names: of the values; None for all.
    """
    graph = separated(graph)
    storing = _Storing(graph, half)
    if names is not None:
        storing.wide |= graph.types.keys() - set(names)
    return fuse_chains(storing.run())


class _Storing:
    def __init__(self, graph: Graph, half: DType) -> None:
        self.graph, self.half = graph, half
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self.nodes: list[Node] = []
        self.names: dict[str, str] = {}  # what a value is read as that a Cast gave before
        self.cast: dict[tuple[str, DType], str] = {}
        self.wide = set(graph.outputs) | self._precise()
        self.spreading: set[str] = set()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            read = tuple(self.names.get(name, name) for name in node.inputs)
            self._store(replace(node, inputs=read))
        open_axes = dict(self.graph.open_axes)
        for (name, _), made in self.cast.items():
            if name in open_axes:
                open_axes[made] = open_axes[name]
        graph = replace(
            self.graph,
            nodes=tuple(self.nodes),
            types=MappingProxyType(self.types),
            constants=MappingProxyType(self.constants),
            open_axes=MappingProxyType(open_axes),
        )
        return _without_casts_at_the_end(graph)

    def _precise(self) -> set[str]:
        """Return values whose absolute errors count, and what these are sums or multiples of."""
        found: set[str] = set()
        for node in reversed(self.graph.nodes):
            precise = slice(1) if _counts(node) else OPS[node.op].precise
            found.update(node.inputs[precise or slice(0)])
            if _keeps_errors(node) and not found.isdisjoint(node.outputs):
                found.update(name for name in node.inputs if name not in self.graph.constants)
        return {name for name in found if self._is(name, FLOAT32)}

    def _is(self, name: str, *dtypes: DType) -> bool:
        return bool(name) and self.types[name].dtype in dtypes

    def _store(self, node: Node) -> None:
        if node.op == "Cast":
            self._store_cast(node)
        elif moves(node):
            self._store_moved(node)
        elif computes(node):
            self._store_computed(node)
        else:
            read = [self._as(n, FLOAT32) if self._is(n, self.half) else n for n in node.inputs]
            self.nodes.append(replace(node, inputs=tuple(read)))

    def _store_cast(self, node: Node) -> None:
        source, to = node.inputs[0], node.attributes["to"]
        if to == FLOAT32 and node.output not in self.wide:
            to = self.half
        if self._is(source, to) and node.output not in self.graph.outputs:
            self.names[node.output] = source
            return
        self._hold(node.output, to)
        self.nodes.append(replace(node, attributes=MappingProxyType({"to": to})))

    def _store_moved(self, node: Node) -> None:
        moved = [name for name in node.inputs[OPS[node.op].moves or slice(0)] if name]
        if not all(self._is(name, FLOAT32, self.half) for name in moved):
            self.nodes.append(node)
            return
        running = {self.types[name].dtype for name in moved if name not in self.constants}
        to = FLOAT32 if self.half not in running or self.wide & set(node.outputs) else self.half
        if not running and self.half == FLOAT16 and not self.wide & set(node.outputs):
            to = FLOAT16  # a table of constants: they are kept in halves
        if any(name in self.spreading for name in moved):
            self.spreading.update(node.outputs)
        ready = {name: self._as(name, to) for name in moved}
        for name in node.outputs:
            self._hold(name, to)
        self.nodes.append(replace(node, inputs=tuple(ready.get(n, n) for n in node.inputs)))

    def _store_computed(self, node: Node) -> None:
        floats = [n for n in node.inputs if self._is(n, FLOAT32, self.half)]
        running, halves = [n for n in floats if n not in self.constants], OPS[node.op].halves
        squared = node.op == "Mul" and len(set(node.inputs)) == 1
        large = [name in self.spreading for name in running]
        # A factor, as that of a normalisation, may make what is large small.
        several = all(large) if OPS[node.op].neutral == 1 else any(large)
        spread = halves in _KEEPS_RANGE and running and several
        if halves == "wide" or squared or spread:
            self.spreading.update(node.outputs)
        weighted = any(name in self.constants for name in node.inputs[1:])
        for name in node.outputs:
            few = not weighted and self.types[name].elements <= _FEW
            if name in self.wide or name in self.spreading or few:
                continue
            if self._is(name, FLOAT32):
                self._hold(name, self.half)
        if node.op == "Conv" and node.input(_RESIDUAL):
            inputs = list(node.inputs)
            inputs[_RESIDUAL] = self._as(inputs[_RESIDUAL], self.types[node.output].dtype)
            node = replace(node, inputs=tuple(inputs))
        self.nodes.append(node)

    def _hold(self, name: str, dtype: DType) -> None:
        self.types[name] = TensorType(self.types[name].shape, dtype)

    def _as(self, name: str, dtype: DType) -> str:
        """Return a value in another type: a Cast of it, shared by all that read it so."""
        kind = self.types[name]
        if kind.dtype == dtype:
            return name
        if (name, dtype) not in self.cast:
            made = self.cast[name, dtype] = self._fresh(f"{name} as {dtype}")
            self.types[made] = TensorType(kind.shape, dtype)
            held = self.constants.get(name)
            if held is not None and dtype == FLOAT16:
                self.constants[made] = in_memory(np.asarray(held), dtype)
            else:
                to = MappingProxyType({"to": dtype})
                self.nodes.append(Node("Cast", (name,), (made,), to, made))
        return self.cast[name, dtype]

    def _fresh(self, name: str) -> str:
        while name in self.types:
            name += "'"
        return name


def _counts(node: Node) -> bool:
    """Return whether a node makes integers of floats, more than a half precision can count to."""
    to = node.attributes["to"] if node.op == "Cast" else BOOL
    return bool(to.is_integer and to.bytes > 1)


def _keeps_errors(node: Node) -> bool:
    """Return whether a node gives its inputs' absolute errors again, or a multiple of each."""
    entry = OPS[node.op]
    one = entry.halves in _KEEPS_RANGE and not entry.keeps_single
    return one or entry.moves is not None or node.op == "Cast"


def _without_casts_at_the_end(graph: Graph) -> Graph:
    """The graph without Casts to the type that a value has already: its producer gives the output.

    A value that the network gives itself, or that several outputs are, is copied.
    """

    def rule(editor: Editor, node: Node) -> bool:
        if node.op != "Cast" or node.output not in graph.outputs:
            return False
        (source,), kind = node.inputs, editor.types[node.output]
        if editor.types[source] != kind:
            return False
        if not editor.alias(node, source):
            editor.replace(node, reshape_node(source, node.output, kind.shape, node.name))
        return True

    return rewrite(graph, rule)
