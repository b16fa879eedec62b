"""Networks on the CPU: planned, emitted, packed, for the input shapes at hand."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from leanconv.api.backend import Compiled
from leanconv.api.fast_call import FastCall, Given
from leanconv.api.fitting_sizes import with_sizes
from leanconv.api.inputs import NOTHING_KNOWN, Known, Shape, input_specs, validated_input
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions
from leanconv.api.pickling import received, sent
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.api.shape_ranges import ShapeRanges
from leanconv.api.stored_graphs import StoredGraphs
from leanconv.api.tail_call import TailCall
from leanconv.codegen.ahead import CodeAhead, described
from leanconv.codegen.kernel import Kernel
from leanconv.errors import BudgetError, InputError, ModelError, SpecError
from leanconv.graph.edit import moving_constants
from leanconv.graph.ir import Graph, TensorType, is_filled
from leanconv.graph.late import Tail
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import PASSES, UNFUSED_PASSES, run_passes
from leanconv.graph.passes.cut_weights import cutting_weights
from leanconv.graph.small_inputs import NeedsInputsError
from leanconv.graph.template import Templates
from leanconv.graph.verify import check_flowing
from leanconv.operators.accuracy import Accuracy, layer_error
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import CompiledNetwork, SharedMemory, planned_kernels
from leanconv.planner.constant_pool import OwnedGraph
from leanconv.planner.decision import Decision
from leanconv.planner.overrides import check_layers, tuned, with_algorithms
from leanconv.planner.plan_file import PlanFile, graph_digest, other_target
from leanconv.progress import steps
from leanconv.records import cached_property
from leanconv.runtime.calibration import alike, planning_target
from leanconv.runtime.constant_file import ConstantFile
from leanconv.runtime.memory import Held, give_back, mapped_files
from leanconv.runtime.pool import default_threads
from leanconv.runtime.weight_file import WeightFiles
from leanconv.settings import current_settings
from leanconv.target import Target
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, DType
from leanconv.units import counted, format_bytes, shape_text

log = logging.getLogger(__name__)
_Made = TypeVar("_Made")
# Of a network's max_error: what one layer in halves errs at the outputs, and no less.
_ROUNDOFFS = 8.0
_CONSTANT_FILES = 4  # times the bytes of a network's constants that passes may write to a file


class CpuBackend:
    """What compiles a network for this CPU.

    Args:
        model: what the file says.
        options: of `load`.
        pinned: a plan to follow where it fits.
        ranges: the shapes that it is for; None for any that the file takes.
        target: the processor that it plans for; by default the settings', or this one.

    Attributes:
        ahead: the code of these shapes.
        deciding: names of inputs whose values were found to decide what is computed.
    """

    most_cached = 2**31  # bounded in bytes alone

    def __init__(
        self,
        model: Model,
        options: NetworkOptions,
        pinned: PlanFile | None = None,
        ranges: ShapeRanges | None = None,
        target: Target | None = None,
    ) -> None:
        self.model, self._options, self._pinned = model, options, pinned
        check_layers(options.algorithms, model.nodes)
        self.threads = options.threads or default_threads()
        self.dtype = self.input_dtype = model.runtime_dtype(options.dtype)
        error, half = layer_error(options.max_error, self.dtype), options.precision
        self.accuracy = Accuracy(error, options.reproducible, half=half)
        settings = current_settings()
        self.cache_bytes = settings.plan_cache_bytes
        self.target: Target = target or planning_target()
        self._inputs = input_specs(model, self.dtype)
        made_for = f"{self.dtype} {self.accuracy}"
        self._shared = SharedMemory(files=_weight_files(options), made_for=made_for)
        halves, asked = self._halves()
        compares = bool(halves) and self._compares_storage()
        self._planners: WeakKeyDictionary[Graph, Planner] = WeakKeyDictionary()
        free = options.precision is not None or options.max_error is not None
        names = None if free else model.half_names or None
        time = self._estimated_ns
        self._graphs = StoredGraphs(model, self._bound, halves, asked, compares, time, names)
        self._probed: tuple[tuple[Shape, ...], OwnedGraph] | None = None
        self.deciding: tuple[str, ...] = ()
        self._ranges, self.ahead = ranges, CodeAhead(self.target)
        make = self._network_of
        self._segments = SegmentNetworks(model, self.dtype, make, settings.plan_cache_bytes)

    @property
    def options(self) -> NetworkOptions:
        """Those of `load`."""
        return self._options

    def private_bytes(self, held: Held) -> int:
        """All, but for weights in a file that processes share."""
        return held.bytes if self._shared.files is None else held.own_bytes + held.working_bytes

    @property
    def output_bytes(self) -> int:
        """Of all its plans together."""
        return self._shared.outputs.free_bytes

    @property
    def follows_plan(self) -> bool:
        """Whether it was given a plan, which is for some input shapes and no others."""
        return self._pinned is not None

    def _network_of(self, part: Model, memory_limit: int | None) -> Network:
        """A part of the network that is compiled in a run, with the options that fit it."""
        names = {node.name for node in part.nodes}
        chosen = {n: text for n, text in self._options.algorithms.items() if n in names}
        options = replace(self._options, algorithms=chosen, memory_limit=memory_limit)
        return Network(CpuBackend(part, options, target=self.target), "a part")

    def validated(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The inputs as kernels can read them."""
        pairs = zip(arrays, self._inputs, strict=True)
        return [validated_input(array, spec) for array, spec in pairs]

    def compile(self, shapes: tuple[Shape, ...], known: Known = NOTHING_KNOWN) -> FastCall:
        """Plan, emit and compile for input shapes, and for the values of `deciding` inputs."""
        return self._deciding(known, lambda chosen: self._compiled_for(shapes, chosen))

    def decided_graph(self, shapes: tuple[Shape, ...], known: Known) -> Graph:
        """The network's graph for input shapes, and for the values of `deciding` inputs."""
        return self._deciding(known, lambda chosen: self.graph(shapes, chosen))

    def _deciding(self, known: Known, make: Callable[[Known], _Made]) -> _Made:
        """What is made with the values of those inputs that decide what is computed."""
        while True:
            chosen = {name: known[name] for name in self.deciding if name in known}
            try:
                return make(chosen)
            except NeedsInputsError as error:
                new = [name for name in error.names if name not in self.deciding]
                self.deciding = (*self.deciding, *new)
                if not (new and known.keys() >= set(error.names)):
                    raise

    def _compiled_for(self, shapes: tuple[Shape, ...], known: Known) -> FastCall:
        try:
            return self._compiled_within(shapes, known)
        except BudgetError:
            if self._in_least_parts is None:
                raise
        return self._in_least_parts._compiled_for(shapes, known)

    @cached_property
    def _in_least_parts(self) -> CpuBackend | None:
        """The same with large weights in the smallest parts; the least limit is that of these.

        So that it does not follow from the limit that was given.
        """
        options = self._options.in_least_parts
        if options is None:
            return None
        made = CpuBackend(self.model, options, self._pinned, target=self.target)
        made._shared, made.deciding = self._shared, self.deciding
        return made

    def _compiled_within(self, shapes: tuple[Shape, ...], known: Known) -> FastCall:
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
        return FastCall(given, self._compiled(owned))

    def _with_tail(self, given: Given, owned: OwnedGraph, tail: Tail) -> TailCall:
        """A compiled network with what runs after it, whose arrays the memory limit counts."""
        graph, limit = owned.graph, self._options.memory_limit
        # The graph has no inputs any more whose values are known, but the tail may read them.
        pairs = zip(self._inputs, given.shapes, strict=True)
        inputs = {spec.name: TensorType(shape, spec.dtype.held) for spec, shape in pairs}
        types = {**inputs, **graph.types}
        bound = tail.most_bytes(types)
        most = (bound or 0) + sum(
            graph.types[n].bytes for n in graph.outputs if n not in self.model.outputs
        )
        likely = 0
        if bound is None and limit is not None and self._pinned is None:
            likely = tail.likely_bytes(types)
        try:
            compiled = self._compiled(owned, most, likely)
        except BudgetError as error:
            if not error.smallest_bytes:
                raise
            least = error.smallest_bytes + most
            raise BudgetError(
                f"{error}; with {counted(most, 'byte')} for arrays that depend on values it is "
                f"memory_limit={least}",
                least,
            ) from error
        text, room = str(tail), None
        if bound is None:
            arrays = self.model.limits.late_bytes
            if limit is not None:
                room = max(0, limit - compiled.plan.memory_bytes - most)
                arrays = min(arrays, room)
            text += f"; nothing bounds its arrays but the run: at most {format_bytes(arrays)}"
            if limit is not None:
                text += ", with what is compiled" * tail.is_compiled
        compiled.plan = replace(
            compiled.plan,
            late_bytes=most,
            late_bounded=bound is not None,
            limit=limit,
            late_text=text,
        )
        return TailCall(given, compiled, tail, self.model.outputs, self._segments, room)

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

    @property
    def templates(self) -> Sequence[Templates]:
        """The network's graphs with symbols for open extents, those of each way to store values."""
        return self._graphs.templates

    def limit_to(self, memory_limit: int) -> None:
        """Let later plans take at most so many bytes, whatever `load` was told."""
        self._options = replace(self._options, memory_limit=memory_limit)
        self.__dict__.pop("_in_least_parts", None)

    def planner(self, graph: Graph, layer: float | None = None) -> Planner:
        """What finds plans; `layer` is the error accepted of one layer, if not the options'.

        What has compared how values may be stored goes on from there.
        """
        known = self._planners.get(graph) if layer is None else None
        if known is not None:
            return known
        accuracy = self.accuracy.of_network(graph, self.target)
        if layer is not None:
            accuracy = replace(accuracy, layer_error=layer)
        options = self._options
        given = graph, self.target, self.threads, accuracy, options.max_error
        return Planner(*given, streams=options.stream_weights)

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
        if limit is not None:
            limit = max(1, limit - reserved)
        if pinned is not None and self._is_for(pinned, owned.graph):
            try:
                following = planner
                if pinned.measured_error is not None:  # whatever its layers state by themselves
                    following = self.planner(owned.graph, layer_error(None, self.dtype))
                compiled = CompiledNetwork(owned, following, limit, pinned, shared=self._shared)
            except (BudgetError, SpecError) as error:
                log.warning("%s is not followed: %s", pinned.name, error)
            else:
                for reason in compiled.misfits:
                    log.warning("%s is followed, but %s", pinned.name, reason)
                return compiled
        decisions = self._decisions(owned.graph)
        return CompiledNetwork(owned, planner, limit, decisions=decisions, shared=self._shared)

    def _decisions(self, graph: Graph) -> tuple[Decision, ...] | None:
        """The decisions of nodes where an option overrides the planner's, else None."""
        if not (self._options.algorithms or self._options.tune):
            return None
        decided = with_algorithms(graph, self.target, self._options.algorithms)
        if self._options.tune:
            accuracy = self.accuracy.of_network(graph, self.target)
            decided = tuned(graph, self.target, self.threads, accuracy, decided)
        return decided

    def _is_for(self, pinned: PlanFile, graph: Graph) -> bool:
        """Whether a pinned plan is for this network, these shapes and this machine."""
        reason = other_target(pinned, self.target)
        shapes = {name: graph.types[name].shape for name in graph.inputs}
        if shapes != dict(pinned.inputs):
            if all(spec.takes(pinned.inputs.get(spec.name)) for spec in self._inputs):
                if pinned.source:  # else nobody chose the plan for these shapes
                    log.warning(
                        "%s is for inputs %s; %s is planned anew",
                        pinned.name,
                        _listed(pinned.inputs),
                        _listed(shapes),
                    )
                return False
            reason = (
                f"it was made for inputs {_listed(pinned.inputs)}, here they are {_listed(shapes)}"
            )
        elif pinned.network != graph_digest(graph) or pinned.dtype != graph.dtype:
            if self.deciding and not pinned.source:
                return False  # it is for other values
            reason = "it was made for another network"
        if reason:
            log.warning("%s does not fit: %s; planning anew", pinned.name, reason)
        return not reason

    def graph(self, shapes: tuple[Shape, ...], known: Known = NOTHING_KNOWN) -> Graph:
        """The network's graph for input shapes, after the passes."""
        graph = check_flowing(self._followed(shapes, known) or self._graphs.graph(shapes, known))
        give_back(mapped_files(self.model.constants.values()))
        return graph

    def _bound(self, shapes: Mapping[str, Shape], known: Known = NOTHING_KNOWN) -> Graph:
        bound = self.model.bind(shapes, dtype=self.dtype, late=True, values=known)
        passes = UNFUSED_PASSES if self._options.algorithms else PASSES
        part = self._options.part_bytes
        if part is None:
            return run_passes(bound, passes)
        give_back(mapped_files(bound.constants.values()))
        held = sum(array.nbytes for array in bound.constants.values() if not is_filled(array))
        file = ConstantFile(current_settings().cache_dir, _CONSTANT_FILES * held)
        with moving_constants(file.moved):
            return run_passes(bound, (*passes, cutting_weights(part)))

    def _halves(self) -> tuple[tuple[DType, ...], bool]:
        """The half precisions that values may be stored in, and whether that is asked for."""
        half, error = self._options.precision, self._options.max_error
        if half is None and self.dtype == FLOAT32:
            half = self.model.stored
            if self.model.half_names and error is None:
                half = FLOAT16
        if half is not None:
            return (half,), True
        if error is None or self.dtype != FLOAT32 or self._options.memory_limit is not None:
            return (), False  # of two limits, what is refused names the least of float32
        allowed = (each for each in (BFLOAT16, FLOAT16) if _ROUNDOFFS * each.roundoff <= error)
        return tuple(allowed), False

    def _compares_storage(self) -> bool:
        """Whether float32 is taken where that is faster: not where a user decides on layers.

        Nor where no batch may change the bits.
        """
        options = self._options
        return not (options.algorithms or options.tune or options.reproducible)

    def _estimated_ns(self, graph: Graph) -> float:
        """Estimated time of a run within the limits."""
        planner = self._planners[graph] = self.planner(graph)
        limit = self._options.memory_limit
        if limit is None and self._options.max_error is None:
            return planner.unmerged.usual_ns
        return sum(time for _, time in planner.within(limit).step_estimates())

    def _followed(self, shapes: tuple[Shape, ...], known: Known) -> Graph | None:
        """The graph that a pinned plan is for, where values may be stored in several ways."""
        pinned = self._pinned
        if pinned is None or not self._halves()[0]:
            return None
        found = self._graphs.all(shapes, known)
        return next((graph for graph in found if graph_digest(graph) == pinned.network), None)

    def prepare(self) -> list[tuple[tuple[Shape, ...], Known]]:
        """Compile the code of a range, whose ends are to be planned; or try an open batch."""
        if self._ranges is not None:
            self._compile_ahead(self._ranges)
            return [(shapes, self._ranges.values) for shapes in self._ranges.ends]
        self._probe()
        return []

    def _probe(self) -> None:
        """Where only the batch is open, find out at load whether the network is supported."""
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
        """For a copy; it follows a tuned plan, since a second measurement may choose otherwise."""
        pinned = self._pinned
        if self._options.tune and isinstance(compiled, FastCall):
            pinned = compiled.plan.file()
        return CpuBackend(self.model, self._options, pinned, self._ranges, self.target)

    def of_model(self, model: Model) -> CpuBackend:
        """The same for another model."""
        return CpuBackend(model, self._options, target=self.target)

    def with_threads(self, threads: int) -> CpuBackend:
        """The same for a number of threads, which counts in whatever process it is sent to."""
        options = replace(self._options, threads=threads)
        return CpuBackend(self.model, options, self._pinned, self._ranges, self.target)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (sent(self.model), self._options, self._pinned, self._ranges, self.target)


def _weight_files(options: NetworkOptions) -> WeightFiles | None:
    """Where packed weights are for all processes of this machine, if they are to be shared."""
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


def _listed(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
