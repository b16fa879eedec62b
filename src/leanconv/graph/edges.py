"""Casts at the edges of a network, which are done where it is called.

Everything inside flows in one float dtype. A network may take its images as bytes and cast them
first, or cast what it found last; between the Cast and the edge elements may be moved, since a
Cast does the same before and after. Such Casts are taken out of the nodes here, and inputs and
outputs say what is converted instead, by ONNX's rules: to float by rounding to nearest, to integers
by truncation. An ArgMax or ArgMin, with nothing but Casts behind it, is done there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.conversions import Conversion, Extreme
from leanconv.graph.convert import RULES, FileNode
from leanconv.graph.onnx_file import FileInput, FileModel
from leanconv.graph.onnx_names import shown
from leanconv.graph.onnx_operations import held_flow
from leanconv.graph.ops.base import Array
from leanconv.records import dataclass
from leanconv.types import FLOAT16, FLOAT32, FLOATS, INT64, DType, as_dtype

# What gives back elements of its first input, or of all in Concat, as they are
_MOVES = frozenset(
    (
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
_CASTS = ("Cast", "CastLike")
_EXTREMES = ("ArgMax", "ArgMin")


@dataclass(frozen=True)
class Edges:
    """A network's nodes without the Casts at its edges.

    Attributes:
        nodes: where such a Cast was, an Identity is.
        dtype: of everything that flows.
        casts: for each output, what is done to it, one after the other.
    """

    nodes: tuple[FileNode, ...]
    dtype: DType
    casts: tuple[tuple[Conversion, ...], ...]


@dataclass(frozen=True)
class _Held:
    """What a value that depends on the inputs is, next to the run-time dtype in which it flows.

    Attributes:
        kind: its dtype in the file.
        casts: conversions that are left to do at the outputs.
        given: whether its elements are an input's, not converted yet in the file.
    """

    kind: DType
    casts: tuple[Conversion, ...] = ()
    given: bool = False

    @property
    def reshaped(self) -> bool:
        """Whether its shape is another one than that of what flows."""
        return any(isinstance(each, Extreme) for each in self.casts)

    @property
    def plain(self) -> bool:
        """Whether it can be computed on."""
        return not self.casts and not self.given


def take_casts(file: FileModel) -> Edges:
    """Take the Casts at the edges out of a file's nodes.

    Raises:
        UnsupportedError: something other than one float dtype is computed on.
    """
    dtype = _run_dtype(file)
    walk = _Walk(file.constants, dtype)
    walk.held.update((each.name, _input(each, dtype)) for each in file.inputs)
    nodes = tuple(walk.without_cast(node) for node in file.nodes)
    casts = tuple(walk.casts_of(name) for name in file.outputs)
    return Edges(nodes, dtype, casts)


def _input(declared: FileInput, dtype: DType) -> _Held:
    return _Held(declared.dtype, given=declared.dtype != dtype)


class _Walk:
    """The values from the inputs to the outputs."""

    def __init__(self, constants: Mapping[str, Array], dtype: DType) -> None:
        self.held: dict[str, _Held] = {}
        self._constants, self._dtype = constants, dtype

    def without_cast(self, node: FileNode) -> FileNode:
        """The node, an Identity for a Cast at an edge; says what its outputs are."""
        read = _data_inputs(node, self.held)
        target = self._target(node)
        ended = [self.held[n] for n in node.reads if n in self.held and self.held[n].reshaped]
        if ended and node.op not in _CASTS:
            raise self._refused(node, ended[0], "reads")
        if node.op == "CastLike" and target is not None:
            kind = MappingProxyType({"to": target})
            node = replace(node, op="Cast", inputs=node.inputs[:1], attributes=kind)
        if not read:
            return node
        found = [self.held[name] for name in read]
        if node.op in _CASTS:
            if target is None:
                return node  # the builder knows the dtype, or refuses it
            self.held[node.outputs[0]] = self._cast(node, found[0], target)
            return replace(node, op="Identity", attributes=MappingProxyType({}))
        result = _Held(self._dtype)
        if node.op in _EXTREMES and found[0].plain:
            result = _Held(INT64, (_extreme(node),))
        elif node.op in _MOVES:
            result = found[0]
            whole = node.op != "Concat" or len(read) == len([name for name in node.inputs if name])
            if any(each != result for each in found) or not (whole or result.plain):
                raise self._refused(node, next(e for e in found if not e.plain), "joins")
        elif any(not each.plain for each in found):
            raise self._refused(node, next(e for e in found if not e.plain), "computes on")
        outputs = held_flow(node, self.held, any) if node.graphs else node.outputs
        self.held.update((name, result) for name in outputs if name)
        return node

    def _target(self, node: FileNode) -> DType | None:
        """The dtype that a cast makes, if the file says it."""
        if node.op == "Cast":
            return node.attributes.get("to")
        if node.op != "CastLike" or len(node.inputs) < 2:
            return None
        like = node.inputs[1]
        if like in self.held:
            return self.held[like].kind
        return as_dtype(self._constants[like].dtype) if like in self._constants else None

    def _cast(self, node: FileNode, x: _Held, target: DType) -> _Held:
        if target == x.kind:
            return x
        if x.given:
            if target == self._dtype:
                return _Held(target)
            if np.can_cast(x.kind, target) and np.dtype(target).kind in "iu":
                return replace(x, kind=target)
            raise self._refused(node, x, f"casts to {target}")
        exact = all(_holds(each, self._dtype) for each in x.casts)
        if target == self._dtype and exact:
            return _Held(target)
        return _Held(target, (*(() if exact else x.casts), target))

    def casts_of(self, name: str) -> tuple[Conversion, ...]:
        """The conversions of an output.

        Raises:
            UnsupportedError: it is an input that the run-time dtype does not hold.
        """
        held = self.held.get(name)
        if held is None or not held.given:
            return held.casts if held else ()
        if not np.can_cast(held.kind, self._dtype):
            raise UnsupportedError(
                f"output {shown(name)!r} gives back elements of an input in {held.kind}, which "
                f"{self._dtype} does not hold; expected {' or '.join(FLOATS)}; leave it out"
            )
        return (held.kind,)

    def _refused(self, node: FileNode, held: _Held, what: str) -> UnsupportedError:
        where = f"node {node.name!r} ({node.op}, opset {node.opset})"
        half = held.kind == FLOAT16 and any(a.dtype == FLOAT16 for a in self._constants.values())
        if half:  # a Cast of the input would not help
            return UnsupportedError(
                f"{where} {what} {held.kind}, as the network's weights are, which is not supported "
                f"on data yet; expected {' or '.join(FLOATS)}: export the float32 network "
                "(in PyTorch model.float())"
            )
        if held.given:
            return UnsupportedError(
                f"{where} {what} elements of an input in {held.kind}, which is not supported on "
                f"data yet; expected {' or '.join(FLOATS)}: a Cast to {self._dtype} right behind "
                "the input"
            )
        source = "ArgMax or ArgMin gives" if held.reshaped else f"is cast to {held.kind}"
        return UnsupportedError(
            f"{where} {what} what {source}, "
            f"which is not supported on data yet; expected {' or '.join(FLOATS)}, and that only at "
            "the network's end"
        )


def _extreme(node: FileNode) -> Extreme:
    given = node.attributes
    return Extreme(
        given.get("axis", 0),
        bool(given.get("keepdims", 1)),
        bool(given.get("select_last_index", 0)),
        node.op == "ArgMin",
    )


def _holds(dtype: Conversion, other: str) -> bool:
    """Whether it is a float dtype that holds every number of another float dtype."""
    if isinstance(dtype, Extreme):
        return False
    return np.dtype(dtype).kind == "f" and np.can_cast(other, dtype)


def _data_inputs(node: FileNode, running: Mapping[str, object]) -> list[str]:
    """The inputs that depend on the network's and of which elements are read."""
    rule = RULES[node.op]
    if rule.knows_shape:
        return []
    places = enumerate(node.reads)
    return [name for index, name in places if name in running and index not in rule.typed]


def _run_dtype(file: FileModel) -> DType:
    """The float dtype that the network computes in."""
    kinds = {each.name: each.dtype for each in file.inputs}
    computed: list[DType] = []
    for node in file.nodes:
        read = _data_inputs(node, kinds)
        if not read:
            continue
        kind = kinds[read[0]]
        if node.op == "Cast":
            kind = node.attributes.get("to", kind)
        elif node.op == "CastLike" and len(node.inputs) > 1:
            like = node.inputs[1]
            held = file.constants.get(like)
            kind = kinds.get(like, kind if held is None else as_dtype(held.dtype))
        elif node.op not in _MOVES:
            computed.append(kind)
            kind = INT64 if node.op in _EXTREMES else kind
        outputs = held_flow(node, kinds, any) if node.graphs else node.outputs
        kinds.update((name, kind) for name in outputs if name)
    ends = [kinds[name] for name in file.outputs if name in kinds]
    starts = [each.dtype for each in file.inputs]
    return next((kind for kind in _found(computed, ends, starts) if kind in FLOATS), FLOAT32)


def _found(*groups: Sequence[DType]) -> list[DType]:
    return [kind for group in groups for kind in group]
