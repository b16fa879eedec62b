"""ONNX files to graphs: read once, then bind to the shapes of the inputs.

Reading checks everything that does not depend on shapes: the file's format, the names, the
order, which operations and opsets there are, and what must be known at load. Binding infers
every shape, computes what depends on constants and shapes only, and gives the normal form.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from weakref import WeakSet

import numpy as np

from leanconv.errors import (
    InputError,
    LeanConvError,
    ModelError,
    UnsupportedError,
    located,
    short,
    shown,
)
from leanconv.files import reason
from leanconv.graph.builder import Builder
from leanconv.graph.data_dependent import Tail, late_nodes, reads_of
from leanconv.graph.element_types import (
    as_float,
    computed_dtype,
    entered,
    float_bytes,
    given_as_declared,
    in_bfloat16,
)
from leanconv.graph.file_kinds import folder_kind, refuse_other
from leanconv.graph.ir import Graph, TensorType
from leanconv.graph.limits import Limits
from leanconv.graph.network_inputs import NeedsInputsError, is_small
from leanconv.graph.onnx_binding import Scope
from leanconv.graph.onnx_file import FileModel, ModelInput, check_flow, read_file
from leanconv.graph.onnx_tensor import ExternalFiles, GivenWeights, open_view
from leanconv.graph.ops.base import Array, checked, integer
from leanconv.graph.value import SequenceValue, Value
from leanconv.records import dataclass, replace
from leanconv.spec.arguments import mended
from leanconv.symbolic import plain
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, FLOATS, DType, find_dtype
from leanconv.units import shape_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Model(FileModel):
    """A network as its file has it, checked but with no shape inferred.

    Attributes:
        dtype: the float type that is computed in first.
        bytes: the size of the file and its external data, where that is packed in less than a byte
            the size of its floats.
        limits: for binding.
        halves: whether numbers that the file has in float16 are computed in it.
        stored: the half precision of all values, in which they are stored, too; None without one.
        half_names: values of float16 where not all are.
        has_data_beside: whether some of its data lies in other files, or was given with it.
    """

    dtype: DType
    bytes: int
    limits: Limits
    halves: bool = False
    stored: DType | None = None
    half_names: frozenset[str] = frozenset()
    has_data_beside: bool = False

    def bind(
        self,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        dtype: DType | None = None,
        *,
        holds_graphs: bool = True,
        late: bool = False,
        values: Mapping[str, Array] | None = None,
    ) -> Graph:
        """Make the graph for concrete input shapes.

        Args:
            shapes: the shape of every input; those that the file fixes may be left out.
            dtype: `float64` to compute a float32 model in double precision; None for the
                model's own dtype.
            holds_graphs: whether a node may hold the body of a loop; else all are written out.
            late: whether nodes that depend on values may be left for a tail, as
                `graph.data_dependent` says.
            values: of inputs that are constants of the graph, which has them as inputs no more.

        Returns:
            A graph in normal form, constants and shape arithmetic computed.

        Raises:
            InputError: a shape is missing, or contradicts the file's.
            NeedsInputsError: branches or shapes follow from values of small inputs.
            ModelError: the nodes do not fit each other at these shapes.
            UnsupportedError: something that leanconv does not do.
        """
        single = FLOAT64 if self.runtime_dtype(dtype) != self.dtype else FLOAT32
        builder = Builder(single, self.limits, self.bytes, holds_graphs, self.halves)
        builder.budget.fill(self.spread_bytes)
        bound, contradiction = self._bound_shapes(shapes or {})
        inputs = {}
        for each in self.inputs:
            promoted = builder.is_promoted(each.dtype)
            kind = each.dtype if promoted else builder.kept(each.dtype)
            inputs[each.name] = Value(TensorType(bound[each.name], kind.held))
            if kind.held != kind:
                builder.as_narrow(inputs[each.name], kind)
        known = {name: builder.constant(array) for name, array in (values or {}).items()}
        builder.settings = {
            value: frozenset((name,))
            for name, value in inputs.items()
            if is_small(value.shape, value.type.dtype) and value not in builder.narrow
        }
        inputs.update(known)
        held = {
            name: entered(builder, value, builder.narrow.get(value))
            for name, value in inputs.items()
        }
        scope = Scope(builder, self.opset, self.constants, held)
        try:
            left: Mapping[int, UnsupportedError | None] = {}
            if late:
                left = scope.bind_known(self.nodes)
            else:
                scope.bind(self.nodes, ())
            by = late_nodes(self.nodes, left, scope.cuts, self.outputs)
            tail = [node for nodes in by.values() for node in nodes]
            made = {name for node in tail for name in node.outputs}
            names = [name for name in self.outputs if name not in made]
            read = reads_of(tail, self.constants)
            names += [name for name in read if name not in inputs and name not in names]
            outputs = dict(zip(names, scope.bind((), names), strict=True))
            lists = [name for name, v in outputs.items() if isinstance(v, SequenceValue)]
            if lists:
                raise UnsupportedError(
                    f"output {shown(lists[0])!r} is a sequence; expected tensors: join them, or "
                    "make an output of each"
                )
            outputs = given_as_declared(self, builder, outputs, tail)
            for name in self._given_in_half.intersection(names):
                outputs[name] = as_float(outputs[name], FLOAT16, builder)
        except UnsupportedError:
            _check_wanted(builder, known)
            raise
        except ModelError as error:
            if contradiction is None:
                raise
            raise contradiction from error
        _check_wanted(builder, known)
        if contradiction is not None and self not in _warned:
            _warned.add(self)
            log.warning("%s; the network takes it all the same", contradiction)
        given = {name: value for name, value in inputs.items() if name not in known}
        graph = builder.finish(given, outputs, scope.names)
        if not by:
            return graph
        reasons = {number: str(left[number] or "") for number in by}
        cuts = {number: scope.cuts[number] for number in by if number in scope.cuts}
        return replace(graph, late=MappingProxyType(reasons), cuts=MappingProxyType(cuts))

    @property
    def _given_in_half(self) -> set[str]:
        """The outputs that are float16 in the file and float32 in the graph."""
        pairs = zip(self.outputs, self.output_dtypes, strict=True)
        return {name for name, kind in pairs if self.halves and kind == FLOAT16}

    def tail(self, graph: Graph, dtype: DType | None = None) -> Tail | None:
        """Return the tail of a graph that was bound with `late`; None where that is nothing.

        Args:
            graph: bound, perhaps simplified.
            dtype: as `bind` takes it.
        """
        if not graph.late:
            return None
        found = late_nodes(self.nodes, graph.late, graph.cuts, self.outputs).values()
        nodes = tuple(node for each in found for node in each)
        made = {name for node in nodes for name in node.outputs}
        promoted = self.runtime_dtype(dtype) != self.dtype
        return Tail(
            nodes,
            tuple(filter(None, graph.late.values())),
            reads_of(nodes, self.constants),
            tuple(name for name in self.outputs if name in made),
            self.constants,
            self.opset,
            self.limits,
            FLOAT64 if promoted else FLOAT32,
            self.halves,
            frozenset(self._given_in_half),
            frozenset(in_bfloat16(self)),
        )

    def runtime_dtype(self, dtype: object) -> DType:
        """The dtype that the network runs in when `dtype` is requested.

        Raises:
            InputError: networks do not run in this dtype.
            UnsupportedError: the dtype would lose precision.
        """
        if dtype is None:
            return self.dtype
        computed = find_dtype(dtype) if isinstance(dtype, str | np.dtype) else None
        if computed not in FLOATS:
            raise InputError(f"dtype is {short(dtype)}; expected {' or '.join(FLOATS)}")
        if computed == FLOAT32 != self.dtype:
            raise UnsupportedError(
                "dtype is 'float32' for a model in float64, which would lose precision; expected "
                "None or 'float64'; convert the file itself"
            )
        return computed

    def _bound_shapes(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, tuple[int, ...]], InputError | None]:
        """All inputs' shapes, and why they contradict the file's names of extents, if they do.

        Exporters give extents one name that need not be equal: what the network computes decides.
        """
        unknown = sorted(set(shapes) - {each.name for each in self.inputs})
        if unknown:
            listed = ", ".join(repr(shown(each.name)) for each in self.inputs)
            raise InputError(f"got a shape for {unknown[0]!r}; expected an input's name: {listed}")
        symbols: dict[str, int] = {}
        result, contradiction = {}, None
        for each in self.inputs:
            given = shapes.get(each.name, each.static_shape)
            if given is None:
                raise InputError(
                    f"input {shown(each.name)!r} is declared as {shape_text(each.shape)}; expected "
                    "its shape to be given"
                )
            extents = tuple(integer(n) for n in given)
            result[each.name] = extents
            contradiction = _checked(each, extents, symbols) or contradiction
        return result, contradiction


def _check_wanted(builder: Builder, known: Collection[str]) -> None:
    """Raise if values of small inputs were needed that are not known."""
    wanted = builder.wanted.difference(known)
    if wanted:
        raise NeedsInputsError(wanted)


_warned: WeakSet[Model] = WeakSet()  # of names of extents that are wrong


def _checked(
    declared: ModelInput, given: tuple[int, ...], symbols: dict[str, int]
) -> InputError | None:
    """Check a shape against the declared one and against the symbols bound before.

    Returns:
        What is to be said where nothing but symbols of one name differ; None where all fits.

    Raises:
        InputError: the shape does not fit.
    """
    name = shown(declared.name)
    if any(extent < 0 for extent in given):
        raise InputError(
            f"input {name!r} got the shape {shape_text(given)}; expected extents that are not "
            "negative"
        )
    try:
        checked(given, FLOAT64)
    except ModelError as error:
        raise InputError(f"input {name!r}: {error}") from error
    if declared.shape is None:
        return None
    before = dict(symbols)
    named, fits = True, len(given) == len(declared.shape)
    for extent, wanted in zip(given, declared.shape, strict=False):
        if isinstance(wanted, str):
            named = symbols.setdefault(wanted, extent) == extent and named
        else:
            fits = fits and (wanted is None or wanted == extent)
    if fits and named:
        return None
    given = tuple(plain(n) for n in given)
    axes = mended("x", given, declared.shape)
    # Of another rank, its own extents are not those of the symbols.
    binding = symbols if len(given) == len(declared.shape) else before
    known = {symbol: plain(n) for symbol, n in binding.items() if symbol in declared.shape}
    found = InputError(
        f"input {name!r} got the shape {shape_text(given)}; expected "
        + shape_text(declared.shape)
        + (f" with {', '.join(f'{s} = {n}' for s, n in known.items())}" if known else "")
        + (f": give arrays as {axes}" if axes else "")
    )
    if not fits:
        raise found
    return found


def read_model(
    source: str | Path | bytes,
    limits: Limits | None = None,
    weights: GivenWeights | None = None,
    data: memoryview | None = None,
) -> Model:
    """Read and check an ONNX model.

    Args:
        source: the path of a file, beside which external data may be, or the file's bytes.
        limits: how much the file may use; the defaults are meant for files of any origin.
        weights: that are given with it.
        data: the bytes of the file, where somebody has mapped or read it already.

    Returns:
        The model; large weights are views of the mapped file, which must not shrink while
        the model is in use.

    Raises:
        InputError: the file cannot be read, or is of another format that is known.
        ModelError: the file is damaged, malicious or breaks ONNX's rules.
        UnsupportedError: the model needs something that leanconv does not do.
    """
    limits = limits or Limits()
    if isinstance(source, bytes):
        if len(source) > limits.file_bytes:
            raise ModelError(f"got {len(source)} bytes; expected at most {limits.file_bytes}")
        return _read(memoryview(source), ExternalFiles(None, weights), limits)
    path = Path(source)
    try:
        target = path.resolve(strict=True)
        folder = target.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"the model {str(source)!r} cannot be read: {reason(error)}") from error
    if folder:
        raise InputError(f"the model {str(source)!r} is {folder_kind(target)}")
    data = open_view(target, InputError) if data is None else data
    if len(data) > limits.file_bytes:
        refuse_other(data, path.name)
        raise InputError(
            f"{str(target)!r} has {len(data)} bytes; expected at most {limits.file_bytes}; store "
            "the weights as external data"
        )
    try:
        return _read(data, ExternalFiles(path, weights), limits, path)
    except LeanConvError as error:
        raise located(error, f"model {str(source)!r}") from error


def model_of(data: memoryview, path: Path | None) -> Model:
    """Read the bytes of a model that was read before, and has no data beside; `path` had them."""
    return _read(data, ExternalFiles(None), Limits(), path)


def _read(
    data: memoryview, files: ExternalFiles, limits: Limits, path: Path | None = None
) -> Model:
    file = read_file(data, files, limits, path.name if path else "")
    check_flow(file)
    if not file.inputs:
        raise UnsupportedError("the model has no inputs; expected at least one")
    return Model(
        **vars(file),
        **vars(computed_dtype(file)),
        bytes=len(data) + files.bytes + float_bytes(file),
        has_data_beside=files.used,
        limits=limits,
    )
