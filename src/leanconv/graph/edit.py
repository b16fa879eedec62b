"""Rebuild a graph node by node: what every pass is written with."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from leanconv.files import mapped_file
from leanconv.graph.ir import Attributes, Graph, Node, TensorType, is_filled, is_spread
from leanconv.records import cached_property, dataclass, replace
from leanconv.types import as_dtype

Array = npt.NDArray[Any]

# A pass may make this many times the bytes of constants that its graph came with, and a little
# more. Honest networks need twice at most; a file whose nodes all share one large weight must not
# make a copy of it for each of them. Constants that repeat one number count once, and spread ones
# twice: they have taken no memory so far.
_GROWTH = 4
_GROWTH_BYTES = 16 * 2**20
PIECE_ELEMENTS = 64 * 1024  # of weights that a pass computes at once, so that they stay in cache


_moved: ContextVar[Callable[[Array], Array]] = ContextVar("moved", default=lambda array: array)


@contextmanager
def moving_constants(move: Callable[[Array], Array]) -> Iterator[None]:
    """Let editors keep a function's result for each constant: the same, perhaps elsewhere."""
    token = _moved.set(move)
    try:
        yield
    finally:
        _moved.reset(token)


class Editor:
    """A graph while it is rebuilt, with its uses counted at every moment.

    A pass visits the nodes in order. For each one it calls `keep`, `replace` or `alias` once;
    whatever nothing reads any more goes away by itself.

    Attributes:
        types: the type of every value, old and new.
        constants: every constant, old and new.
    """

    def __init__(self, graph: Graph) -> None:
        self.types: dict[str, TensorType] = dict(graph.types)
        self.constants: dict[str, Array] = dict(graph.constants)
        self._graph = graph
        self._nodes: dict[str, Node] = {}  # by their keys, in order of emission
        self._producers: dict[str, Node] = {}  # of each value that a node defines
        self._serials: dict[str, int] = {}
        self._outputs = set(graph.outputs)
        self._uses = dict.fromkeys(graph.types, 0)
        for node in graph.nodes:
            for name in node.inputs:
                if name:
                    self._uses[name] += 1
        self._aliases: dict[str, str] = {}
        self._renames: dict[str, str] = {}  # inner name -> name of the graph output that it became
        self._numbers: dict[str, int] = {}
        self._uniform: dict[str, float | None] = {}
        self._made_bytes = 0

    # What is there

    def producer(self, name: str) -> Node | None:
        """The node, among those emitted so far, that defines a value."""
        return self._producers.get(name)

    def position(self, name: str) -> int:
        """When a value was emitted: later is larger; -1 for inputs and constants."""
        return self._serials.get(name, -1)

    def is_private(self, name: str, uses: int = 1) -> bool:
        """Return whether a value has exactly so many uses and is no output of the graph."""
        return self._uses.get(name) == uses and name not in self._outputs

    def uses(self, name: str) -> int:
        """Return the number of nodes' inputs that read a value."""
        return self._uses.get(name, 0)

    def private_producer(self, name: str, *ops: str) -> Node | None:
        """The producer of a private value if it is one of `ops`, else None."""
        node = self._producers.get(name)
        return node if node is not None and node.op in ops and self.is_private(name) else None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value."""
        return self.types[name].shape

    def uniform(self, name: str) -> float | None:
        """The one number that all elements of a constant equal, None if there is none."""
        if name not in self._uniform:
            array = self.constants.get(name)
            number = None
            if (
                array is not None
                and array.size
                and (is_filled(array) or bool(np.all(array == array.flat[0])))
            ):
                number = float(array.flat[0])
            self._uniform[name] = number
        return self._uniform[name]

    # What is new

    def may_add(self, byte_count: int) -> bool:
        """Return whether so many bytes of constants may be made; passes check before they work."""
        return byte_count <= self._most_bytes - self._made_bytes

    @cached_property
    def _most_bytes(self) -> int:
        """Bytes of all constants that may be made."""
        return _GROWTH_BYTES + sum(
            array.nbytes * (1 if is_filled(array) else 2 if is_spread(array) else _GROWTH)
            for array in self._graph.constants.values()
        )

    def value(self, hint: str, kind: TensorType) -> str:
        """A new name for a value of the given type."""
        number = self._numbers.get(hint, 0)
        while (name := f"{hint}.{number}") in self.types:
            number += 1
        self._numbers[hint] = number + 1
        self.types[name] = kind
        self._uses[name] = 0
        return name

    def constant(self, hint: str, array: Array) -> str:
        """Add a constant and return its name."""
        if not is_filled(array):
            array = _moved.get()(array)
            array = np.ascontiguousarray(array).reshape(array.shape)  # a scalar stays one
        array.flags.writeable = False
        name = self.value(hint, TensorType(array.shape, as_dtype(array.dtype)))
        self.constants[name] = array
        self._made_bytes += array.nbytes
        return name

    # What happens to the node that is visited

    def resolve(self, node: Node) -> Node:
        """The node with the current names of its inputs."""
        if any(name in self._aliases for name in node.inputs):
            return replace(node, inputs=tuple(self._aliases.get(n, n) for n in node.inputs))
        return node

    def keep(self, node: Node) -> None:
        """Emit the visited node as it is."""
        self._insert(node)

    def replace(self, node: Node, *new: Node) -> None:
        """Emit `new` for the visited node; the last one defines the visited node's outputs."""
        assert new[-1].outputs == node.outputs, (node, new)
        for each in new:
            for name in each.inputs:
                if name:
                    self._uses[name] += 1
            self._insert(each)
        self._release(node)

    def alias(self, node: Node, *sources: str) -> bool:
        """Let all users of the visited node read `sources` instead, which equal its outputs.

        Returns:
            Whether that was done. It cannot be done between two values whose names the user of
            the network knows, such as an input that is given out again.
        """
        pairs = list(zip(node.outputs, sources, strict=True))
        known = [(out, source) for out, source in pairs if out in self._outputs]
        if any(s in self._outputs or s not in self._producers for _, s in known):
            return False
        for out, source in pairs:
            assert self.types[out] == self.types[source], (node, source)
            if out in self._outputs:
                self._outputs.remove(out)
                self._outputs.add(source)
                self._renames[source] = out
            self._aliases[out] = source
            self._uses[source] += self._uses.pop(out)
        self._release(node)
        return True

    def finish(self) -> Graph:
        """The rebuilt graph, holding only the constants and types that it uses."""
        renames = self._renames

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(renames.get(name, name) for name in names)

        nodes = tuple(
            replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs))
            if renames
            else node
            for node in self._nodes.values()
        )
        names = dict.fromkeys((*self._graph.inputs, *self._graph.outputs))
        for node in nodes:
            names.update(dict.fromkeys(name for name in node.inputs if name))
            names.update(dict.fromkeys(node.outputs))
        types = MappingProxyType({name: self.types[name] for name in names})
        constants = {name: self.constants[name] for name in names if name in self.constants}
        return self._graph.edited(nodes=nodes, types=types, constants=MappingProxyType(constants))

    def _insert(self, node: Node) -> None:
        self._nodes[node.key] = node
        for out in node.outputs:
            self._producers[out] = node
            self._serials[out] = len(self._serials)

    def _release(self, node: Node) -> None:
        """Take back a node's uses, and remove the nodes that nothing reads then."""
        dead = [node]
        while dead:
            for name in dead.pop().inputs:
                if not name:
                    continue
                self._uses[name] -= 1
                producer = self._producers.get(name)
                if producer is not None and self._is_unread(producer):
                    for out in producer.outputs:
                        del self._producers[out]
                    dead.append(self._nodes.pop(producer.key))

    def _is_unread(self, node: Node) -> bool:
        return not any(self._uses[out] or out in self._outputs for out in node.outputs)


Rule = Callable[[Editor, Node], bool]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Visit every node in order; keep those for which `rule` returns False.

    Args:
        graph: a verified graph.
        rule: called with the editor and the node; returns True when it has called the editor's
            `replace` or `alias` for that node, and False when it has changed nothing.

    Returns:
        A graph with the same inputs and outputs.
    """
    editor = Editor(graph)
    for node in graph.nodes:
        current = editor.resolve(node)
        if not rule(editor, current):
            editor.keep(current)
    return editor.finish()


def rewriting(rule: Rule) -> Callable[[Graph], Graph]:
    """The pass that visits every node of a graph with a rule: see `rewrite`."""

    @wraps(rule)
    def rewritten(graph: Graph) -> Graph:
        return rewrite(graph, rule)

    return rewritten


def node_like(node: Node, **changes: Any) -> Node:
    """A copy of a node with fields changed; `attributes` are added to those it has."""
    attributes: Mapping[str, Any] = changes.pop("attributes", {})
    if attributes:
        changes["attributes"] = frozen({**node.attributes, **attributes})
    return replace(node, **changes)


def frozen(attributes: Mapping[str, Any]) -> Attributes:
    """Attributes that cannot be changed."""
    return MappingProxyType(dict(attributes))


def reshape_node(source: str, out: str, shape: tuple[int, ...], name: str = "") -> Node:
    """A Reshape from `source` to `out`, whose shape is given."""
    return Node("Reshape", (source,), (out,), frozen({"shape": shape}), name)


def part_nodes(node: Node, shape: tuple[int, ...]) -> Iterator[Node]:
    """A Slice for each part that a Split makes of an input of the given shape."""
    axis, start = node.attributes["axis"], 0
    for out, size in zip(node.outputs, node.attributes["sizes"], strict=True):
        attributes = {
            "starts": tuple(start if i == axis else 0 for i in range(len(shape))),
            "steps": (1,) * len(shape),
            "sizes": tuple(size if i == axis else extent for i, extent in enumerate(shape)),
        }
        yield Node("Slice", node.inputs, (out,), frozen(attributes), node.name)
        start += size


@dataclass(frozen=True)
class DenseView:
    """A value that is a convolution's output, perhaps seen through a private Reshape.

    Attributes:
        conv: the Conv or ConvTranspose, whose output is private.
        view: the Reshape of its output, None when the value is the output itself.
        axis: the axis of the value that is the convolution's channels.
    """

    conv: Node
    view: Node | None
    axis: int


def conv_behind(editor: Editor, name: str) -> DenseView | None:
    """Find the convolution of which a private value holds the output, channels on one axis.

    Through a Reshape the channels are still one axis when the convolution makes 1x1 maps
    (R, M, 1, 1) and the last extent of the view is M, as after a fully connected layer.
    """
    conv = editor.private_producer(name, "Conv", "ConvTranspose")
    if conv is not None:
        return DenseView(conv, None, 1)
    view = editor.private_producer(name, "Reshape")
    conv = editor.private_producer(view.inputs[0], "Conv", "ConvTranspose") if view else None
    if view is None or conv is None:
        return None
    inner, outer = editor.shape(conv.output), editor.shape(name)
    if not outer or any(extent != 1 for extent in inner[2:]) or outer[-1] != inner[1]:
        return None
    return DenseView(conv, view, len(outer) - 1)


def channel_extent(shape: tuple[int, ...], target: tuple[int, ...], axis: int) -> bool:
    """Return whether an array of `shape` broadcasts to `target` and varies along `axis` only."""
    if len(shape) > len(target) or not 0 <= axis < len(target):
        return False
    full = (1,) * (len(target) - len(shape)) + shape
    others = all(extent == 1 for i, extent in enumerate(full) if i != axis)
    return others and full[axis] in (1, target[axis])


def channel_slope(editor: Editor, node: Node, axis: int) -> Array | None:
    """The slopes of a PRelu, (C,), None unless they are along an axis and may become constants."""
    slope, shape = editor.constants.get(node.inputs[1]), editor.shape(node.inputs[0])
    if slope is None or not channel_extent(slope.shape, shape, axis):
        return None
    if not editor.may_add(shape[axis] * slope.itemsize):
        return None
    return channel_vector(slope, shape[axis]).astype(slope.dtype)


def channel_vector(array: Array, channels: int) -> npt.NDArray[np.float64]:
    """A constant for which `channel_extent` holds, as float64 of shape (channels,)."""
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def release_read(array: Array) -> None:
    """Give back the pages of a mapped file that an array fills; read again, they come again."""
    file = mapped_file(array)
    if file is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if array.flags.c_contiguous and last > first:
        file.madvise(mmap.MADV_DONTNEED, first, last - first)
