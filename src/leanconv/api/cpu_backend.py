"""Networks on the CPU: planned, emitted, packed, for the input shapes at hand."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.api.backend import Compiled
from leanconv.api.cpu_graphs import CpuGraphs
from leanconv.api.fast_call import Given
from leanconv.api.inputs import NOTHING_KNOWN, Known, Shape, validated_input
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions
from leanconv.api.planned_call import PlannedCall, TailCall
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.api.snapshots import SnapshotMemory, Snapshots
from leanconv.api.stated_shapes import ShapeRanges, with_sizes
from leanconv.codegen.compiler import CodeAhead, described
from leanconv.codegen.kernel import Kernel
from leanconv.errors import BudgetError, InputError, ModelError, SpecError, UnsupportedError
from leanconv.graph.data_dependent import Tail
from leanconv.graph.file_graph import FileGraph, FileNode
from leanconv.graph.ir import Graph, TensorType
from leanconv.graph.network_inputs import NeedsInputsError
from leanconv.graph.onnx_import import Model
from leanconv.planner.compiled_network import (
    CompiledNetwork,
    SharedMemory,
    plan_alone,
    planned_kernels,
)
from leanconv.planner.explain import explain_network
from leanconv.planner.lowered_graph import OwnedGraph, WeightStore
from leanconv.planner.plan_file import PlanFile
from leanconv.planner.portable_network import PortableNetwork, portable_network
from leanconv.planner.weights import packing_digest
from leanconv.progress import steps
from leanconv.records import cached_property, replace
from leanconv.runtime.calibration import alike, planning_target
from leanconv.runtime.memory import Held
from leanconv.runtime.weight_file import WeightFiles
from leanconv.settings import current_settings
from leanconv.target import Target
from leanconv.units import counted, format_bytes

log = logging.getLogger(__name__)


class CpuBackend(CpuGraphs):
    """A backend that compiles a network for this CPU, from its graphs (`CpuGraphs`).

    Args:
        model: the network as read from its file.
        options: of `load`.
        pinned: a plan to follow where it fits.
        ranges: the shapes that it is for; None for any that the file takes.
        target: the processor that it plans for; by default the settings', or this one.
        snapshots: where the networks that it makes are kept; None keeps none.
        beside: the memory of the network's snapshots that this process uses, if it does.

    Attributes:
        ahead: the code of these shapes.
    """

    most_cached = 2**31  # bounded in bytes alone
    ports = None  # the model has them

    def __init__(
        self,
        model: Model,
        options: NetworkOptions,
        pinned: PlanFile | None = None,
        ranges: ShapeRanges | None = None,
        target: Target | None = None,
        snapshots: Snapshots | None = None,
        beside: SnapshotMemory | None = None,
    ) -> None:
        super().__init__(model, options, pinned, target)
        self.input_dtype = self.dtype
        settings = current_settings()
        self.cache_bytes = settings.plan_cache_bytes
        made_for = f"{self.dtype} {self.accuracy}"
        elsewhere = None if beside is None else beside.packed
        weights = WeightStore(packing_digest if snapshots else None, elsewhere)
        self._shared = SharedMemory(weights, files=_weight_files(options), made_for=made_for)
        if beside is not None:
            self._shared = replace(self._shared, arena=beside.arena, outputs=beside.outputs)
        self._probed: tuple[tuple[Shape, ...], OwnedGraph] | None = None
        self._snapshots = snapshots
        self._ranges, self.ahead = ranges, CodeAhead(self.target)
        make = self._network_of
        self._segments = SegmentNetworks(model, self.dtype, make, settings.plan_cache_bytes)

    @property
    def whole(self) -> CpuBackend:
        """Itself: it makes plans."""
        return self

    def private_bytes(self, held: Held) -> int:
        """The bytes of `held`, but for weights in a file that processes share."""
        return held.bytes if self._shared.files is None else held.own_bytes + held.working_bytes

    @property
    def output_bytes(self) -> int:
        """Free memory for large outputs, of all plans of the network."""
        return self._shared.outputs.free_bytes

    @property
    def follows_plan(self) -> bool:
        """True if a plan was given, which is for some input shapes and no others."""
        return self._pinned is not None

    def _network_of(
        self, part: Model, memory_limit: int | None, make_room: Callable[[int], None]
    ) -> Network:
        """A part of the network that is compiled in a run, with the options that fit it."""
        names = {node.name for node in part.nodes}
        chosen = {n: text for n, text in self._options.algorithms.items() if n in names}
        options = replace(self._options, algorithms=chosen, memory_limit=memory_limit)
        backend = CpuBackend(part, options, target=self.target)
        backend._shared = replace(backend._shared, make_room=make_room)
        return Network(backend, "a part")

    def validated(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The inputs as kernels can read them."""
        pairs = zip(arrays, self._inputs, strict=True)
        return [validated_input(array, spec) for array, spec in pairs]

    def compile(self, shapes: tuple[Shape, ...], known: Known = NOTHING_KNOWN) -> PlannedCall:
        """Plan, emit and compile for input shapes, and for the values of `deciding` inputs."""
        return self.deciding.found(shapes, known, lambda chosen: self._compiled_for(shapes, chosen))

    def _compiled_for(self, shapes: tuple[Shape, ...], known: Known) -> PlannedCall:
        try:
            return self._compiled_within(shapes, known)
        except BudgetError:
            if self._in_least_parts is None:
                raise
        return self._in_least_parts._compiled_for(shapes, known)

    @cached_property
    def _in_least_parts(self) -> CpuBackend | None:
        """The backend with large weights in the smallest parts, by which the least limit is stated.

        So that it does not follow from the limit that was given.
        """
        options = self._options.in_least_parts
        if options is None:
            return None
        made = CpuBackend(self.model, options, self._pinned, target=self.target)
        made._shared = self._shared
        return made

    def _compiled_within(self, shapes: tuple[Shape, ...], known: Known) -> PlannedCall:
        if self._ranges is not None:
            self._ranges.check(shapes, known)
        probed, self._probed = self._probed, None
        if known or not probed or probed[0] != shapes:
            owned = OwnedGraph(self.graph(shapes, known))
        else:
            owned = probed[1]
        tail = self.model.tail(owned.graph, self.dtype)
        given = Given(tuple(spec.name for spec in self._inputs), shapes, known)
        if tail is not None:
            return self._with_tail(given, owned, tail)
        call = PlannedCall(given, self._compiled(owned))
        if self._snapshots is not None and not known:
            self._snapshots.keep(self.model, self.dtype, call)
        return call

    def _with_tail(self, given: Given, owned: OwnedGraph, tail: Tail) -> TailCall:
        """A compiled network with its tail, whose arrays the memory limit counts."""
        graph, limit = owned.graph, self._options.memory_limit
        inputs = self._input_types(given.shapes)
        types = {**inputs, **graph.types}
        bound = tail.most_bytes(types)
        most = (bound or 0) + self._handed_on_bytes(graph)
        likely = 0
        if bound is None and limit is not None and self._pinned is None:
            likely = tail.likely_bytes(types)
        compiled = self._compiled(owned, most, likely)
        text, room = str(tail), None
        if bound is None:
            arrays = self.model.limits.late_bytes
            if limit is not None:
                room = limit - compiled.plan.memory_bytes - most
                arrays = min(arrays, room)
            text += f"; nothing bounds its arrays but the run: at most {format_bytes(arrays)}"
            if limit is not None:
                text += ", with what is compiled" * tail.is_compiled
        plan = compiled.plan
        compiled.plan = replace(
            plan,
            outputs={n: plan.results.get(n) for n in self.model.outputs},
            late_bytes=most,
            late_bounded=bound is not None,
            limit=limit,
            late_text=text,
        )
        outputs = self.model.outputs
        return TailCall(given, compiled, tail, inputs, outputs, self._segments, room)

    def late_bytes(self, graph: Graph, shapes: Sequence[Shape]) -> int | None:
        """The most that arrays take that NumPy computes behind a graph; None if nothing says."""
        tail = self.model.tail(graph, self.dtype)
        if tail is None:
            return 0
        bound = tail.most_bytes({**self._input_types(shapes), **graph.types})
        return None if bound is None else bound + self._handed_on_bytes(graph)

    def _input_types(self, shapes: Sequence[Shape]) -> dict[str, TensorType]:
        """Types of the inputs; a graph lacks those of inputs whose values are known."""
        pairs = zip(self._inputs, shapes, strict=True)
        return {spec.name: TensorType(shape, spec.dtype.held) for spec, shape in pairs}

    def _handed_on_bytes(self, graph: Graph) -> int:
        """Return the bytes of the outputs of a graph that only its tail reads."""
        given = (name for name in graph.outputs if name not in self.model.outputs)
        return sum(graph.types[name].bytes for name in given)

    def _compile_ahead(self, ranges: ShapeRanges) -> None:
        """Compile, or fetch, the code of all kernels that any shape of the ranges needs."""
        ends = [self._kernels_of(ranges, shapes, set()) for shapes in ranges.ends]
        options = replace(self._options, shared_weights=False)  # which decides no kernel
        facts = f"{ranges} {options} {self.threads}"
        description = "\n".join((facts, *(described(kernels) for kernels in ends)))
        code = self.ahead
        if code.fetch(description):
            return
        packed: set[Hashable] = set()
        for shapes in steps("looking at shapes", ranges, ranges.count):
            code.add(self._kernels_of(ranges, shapes, packed))
        code.compile(description)

    def _kernels_of(
        self, ranges: ShapeRanges, shapes: tuple[Shape, ...], packed: set[Hashable]
    ) -> list[Kernel]:
        """The kernels of the plan for one of the shapes that `ranges` states."""
        try:
            return self.kernels(shapes, ranges.values, packed)
        except (ModelError, InputError) as error:
            why = error
            if isinstance(error, NeedsInputsError):
                raise
            if isinstance(error, ModelError):
                why = with_sizes(error, self.model, shapes)
            raise InputError(
                f"the network does not take {ranges.text_of(shapes)}, which shapes={ranges} "
                f"states: {why}; give a range, or steps, of shapes that fit"
            ) from error

    def kernels(
        self, shapes: tuple[Shape, ...], known: Known, packed: set[Hashable] | None = None
    ) -> list[Kernel]:
        """The kernels of the plan for input shapes; see `planned_kernels`."""
        graph = self.decided_graph(shapes, known)
        planner = self.planner(graph)
        limit, decisions = self._options.memory_limit, self._decisions(graph)
        try:
            return planned_kernels(graph, planner, limit, decisions, packed)
        except BudgetError:
            smaller = self._in_least_parts
            if smaller is None:
                raise
        return smaller.kernels(shapes, known, packed)

    def limit_to(self, memory_limit: int) -> None:
        """Let later plans take at most so many bytes, whatever the options of `load`."""
        if memory_limit == self._options.memory_limit:
            return
        self._options, self._snapshots = replace(self._options, memory_limit=memory_limit), None
        self.__dict__.pop("_in_least_parts", None)

    def report(self, shapes: tuple[Shape, ...], front: bool) -> dict[str, Any]:
        """Plan for input shapes, and say of every layer what was chosen; nothing is compiled."""
        graph, limit = self.graph(shapes), self._options.memory_limit
        plan, decided = plan_alone(graph, self.planner(graph), limit, self._decisions(graph))
        return explain_network(plan, decided, front)

    def portable(self, shapes: tuple[Shape, ...], compact: bool = False) -> PortableNetwork:
        """Plan for input shapes, for any target, without loading code.

        Args:
            shapes: of the inputs.
            compact: as for `portable_network`.

        Raises:
            UnsupportedError: something of the network is computed when values are known.
        """

        def made(chosen: Known) -> PortableNetwork:
            owned = OwnedGraph(self.graph(shapes, chosen))
            tail = self.model.tail(owned.graph, self.dtype)
            if tail is not None:
                names = ", ".join(f"{node.name!r} ({node.op})" for node in tail.nodes[:3])
                raise UnsupportedError(
                    f"{names}: of {counted(len(tail.nodes), 'node')} NumPy computes the results, "
                    f"once values are known; expected a network that is computed by code alone: "
                    "take these nodes out of the file"
                )
            planner, limit = self.planner(owned.graph), self._options.memory_limit
            pinned, decisions = self._pinned, self._decisions(owned.graph)
            if pinned is not None and not self._is_for(pinned, owned.graph):
                pinned = None
            return portable_network(owned, planner, limit, pinned, decisions, compact)

        return self.deciding.found(shapes, NOTHING_KNOWN, made)

    def _compiled(self, owned: OwnedGraph, reserved: int = 0, wanted: int = 0) -> CompiledNetwork:
        """The network, compiled within what the memory limit leaves.

        Args:
            owned: its graph.
            reserved: bytes that something else takes.
            wanted: bytes that are left, too, if there is a plan for it.
        """
        if wanted:
            with contextlib.suppress(BudgetError):
                return self._compiled(owned, reserved + wanted)
        planner = self.planner(owned.graph)
        pinned, limit = self._pinned, self._options.memory_limit
        room = None if limit is None else limit - reserved
        if pinned is not None and self._is_for(pinned, owned.graph):
            try:
                following = planner
                if pinned.measured_error is not None:  # whatever its layers state by themselves
                    following = self.planner(owned.graph, usual=True)
                compiled = CompiledNetwork(owned, following, room, pinned, shared=self._shared)
            except BudgetError as error:
                found = _beside(error, limit, reserved)
                log.warning("%s is not followed: %s", pinned.name, found)
            except SpecError as error:
                log.warning("%s is not followed: %s", pinned.name, error)
            else:
                for reason in compiled.misfits:
                    log.warning("%s is followed, but %s", pinned.name, reason)
                return compiled
        decisions = self._decisions(owned.graph)
        try:
            return CompiledNetwork(owned, planner, room, decisions=decisions, shared=self._shared)
        except BudgetError as error:
            raise _beside(error, limit, reserved) from None

    def prepare(self) -> list[tuple[tuple[Shape, ...], Known]]:
        """Compile the code of a range, whose ends are to be planned; or try an open batch."""
        if self._ranges is not None:
            self._compile_ahead(self._ranges)
            return [(shapes, self._ranges.values) for shapes in self._ranges.ends]
        self._probe()
        return []

    def _probe(self) -> None:
        """Find out at load whether a network is supported of which only the batch is open."""
        shapes = []
        for spec in self._inputs:
            extents = (1, *spec.shape[1:]) if spec.shape else ()
            shapes.append(tuple(extent for extent in extents if isinstance(extent, int)))
            if spec.shape is None or len(shapes[-1]) != len(spec.shape):
                return
        # Another batch may fit where one image does not: then the first call succeeds.
        with contextlib.suppress(ModelError, InputError):
            self._probed = (tuple(shapes), OwnedGraph(self.graph(tuple(shapes))))

    def copied(self, compiled: Compiled | None) -> CpuBackend:
        """A backend for a copy; it follows a tuned plan, as a new measurement may differ."""
        pinned = self._pinned
        if self._options.tune and isinstance(compiled, PlannedCall):
            pinned = compiled.plan.file()
        return CpuBackend(self.model, self._options, pinned, self._ranges, self.target)

    def kept(self, shapes: object) -> None:
        """Return None: a backend of snapshots has them."""

    def of_model(self, model: Model, shapes: Any) -> CpuBackend:
        """A backend with the same options for this model at stated shapes."""
        snapshots = None
        if self._snapshots is not None:
            snapshots = self._snapshots.stating(shapes)
            if snapshots is not None:
                self._snapshots.keep_ports(self.model, self.dtype)
        return CpuBackend(model, self._options, target=self.target, snapshots=snapshots)

    def with_threads(self, threads: int) -> CpuBackend:
        """A backend for a number of threads, whatever process it is sent to."""
        options = replace(self._options, threads=threads)
        return CpuBackend(self.model, options, self._pinned, self._ranges, self.target)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (sent(self.model), self._options, self._pinned, self._ranges, self.target)


def _beside(error: BudgetError, limit: int | None, reserved: int) -> BudgetError:
    """The error for compiled parts that do not fit beside bytes that something else takes."""
    if not reserved or limit is None or error.smallest_error is not None:
        return error
    least = error.smallest_bytes + reserved
    return BudgetError(
        f"the limit is {counted(limit, 'byte')} ({format_bytes(limit)}); the smallest plan needs "
        f"{counted(least, 'byte')} ({format_bytes(least)}): {counted(reserved, 'byte')} for arrays "
        f"that depend on values, {counted(error.smallest_bytes, 'byte')} for what is compiled; "
        f"give memory_limit={least} or more",
        least,
    )


def _weight_files(options: NetworkOptions) -> WeightFiles | None:
    """Return the files of packed weights that processes of this machine share, if any."""
    settings, given = current_settings(), options.shared_weights
    if not given or not settings.weight_cache_bytes:
        return None
    folder = settings.cache_dir / "weights" if given is True else Path(str(given))
    return WeightFiles(folder, settings.weight_cache_bytes)


def _received(
    model: Model,
    options: NetworkOptions,
    pinned: PlanFile | None,
    ranges: ShapeRanges | None,
    sender: Target,
) -> CpuBackend:
    """A backend that was pickled, for this process's CPU.

    On a processor of the sender's kind with the sender's rates, where those were measured: so it
    has the sender's bits.
    """
    target = alike(sender, planning_target())
    return CpuBackend(received(model), options, pinned, ranges, target)


_Wrap = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def sent(model: Model) -> Model:
    """The model in plain dictionaries, which can be pickled; the arrays are those of the model."""
    constants, metadata = dict(model.constants), dict(model.metadata)
    return replace(model, nodes=_nodes(model.nodes, dict), constants=constants, metadata=metadata)


def received(model: Model) -> Model:
    """Undo `sent`, in dictionaries that cannot be changed."""
    constants, metadata = _read_only(model.constants), MappingProxyType(model.metadata)
    nodes = _nodes(model.nodes, MappingProxyType)
    return replace(model, nodes=nodes, constants=constants, metadata=metadata)


def _nodes(nodes: Iterable[FileNode], wrap: _Wrap) -> tuple[FileNode, ...]:
    """The nodes with their dictionaries as `wrap` makes them, in the graphs that they hold, too."""
    return tuple(
        replace(
            node,
            attributes=wrap(node.attributes),
            graphs=wrap({name: _graph(graph, wrap) for name, graph in node.graphs.items()}),
        )
        for node in nodes
    )


def _graph(graph: FileGraph, wrap: _Wrap) -> FileGraph:
    return replace(
        graph,
        nodes=_nodes(graph.nodes, wrap),
        constants=dict(graph.constants) if wrap is dict else _read_only(graph.constants),
        captured=wrap(graph.captured),
    )


def _read_only(constants: Mapping[str, Any]) -> Mapping[str, Any]:
    for array in constants.values():
        array.setflags(write=False)
    return MappingProxyType(constants)
