"""A network's graphs for input shapes, and the planner of each, on a CPU."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from weakref import WeakKeyDictionary

from leanconv.api.inputs import NOTHING_KNOWN, Known, Shape, input_specs
from leanconv.api.options import NetworkOptions
from leanconv.errors import BudgetError, LeanConvError
from leanconv.graph.edit import moving_constants
from leanconv.graph.ir import Graph, is_filled
from leanconv.graph.network_inputs import Deciding
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import UNFUSED_PASSES, run_passes
from leanconv.graph.passes.fuse_blocks import MAYBE_SPARSE, fuse_all_blocks, fuse_blocks
from leanconv.graph.passes.store_in_halves import store_in_halves
from leanconv.graph.template import Templates
from leanconv.graph.verify import check_flowing, verify
from leanconv.operators.operator import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.decisions import Decision
from leanconv.planner.found_plans import sparse_blocks
from leanconv.planner.overrides import check_layers, tuned, with_algorithms
from leanconv.planner.plan_file import PlanFile, graph_digest, other_target
from leanconv.planner.weight_streaming import cutting_weights
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import give_back, mapped_files
from leanconv.runtime.pool import default_threads
from leanconv.runtime.weight_file import ConstantFile
from leanconv.settings import current_settings
from leanconv.target import Target
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, DType
from leanconv.units import shape_text

_ALIKE = 1.03  # times that are taken for alike
_LIKELY = (1, 224)  # extents that a file leaves open: of batches, and of other axes


class StoredGraphs:
    """A network's graphs for input shapes, with values in halves where that is no slower.

    Args:
        model: the network as read from its file.
        bound: the network for input shapes, after the passes, all floats in float32.
        halves: the half precisions that are considered.
        asked: whether halves are what is asked for, and not float32.
        compares: whether the other one is considered, too.
        time: estimated nanoseconds of a run of a graph.
        names: the values that may be stored in halves; None for all.

    Raises of `time`: `BudgetError`, where no plan keeps the limits.
    """

    def __init__(
        self,
        model: Model,
        bound: Callable[..., Graph],
        halves: Sequence[DType],
        asked: bool,
        compares: bool,
        time: Callable[[Graph], float],
        names: Collection[str] | None = None,
    ) -> None:
        self._bound, self._time, self._inputs = bound, time, model.inputs
        self._names = names
        self._asked = halves[0] if asked else None
        self._storages = (*halves, None) if compares else (self._asked,)
        self._templates = {half: Templates(model, self._stored_by(half)) for half in self._storages}
        self._decided: dict[tuple[Shape, ...], DType | None] = {}

    @property
    def templates(self) -> Sequence[Templates]:
        """The templates of the network's graphs, for each way to store values."""
        return tuple(self._templates.values())

    def graph(self, shapes: Sequence[Shape], known: Known) -> Graph:
        """The graph for the shapes of all inputs, and for known values of some."""
        if len(self._storages) == 1:
            return self._templates[self._storages[0]].graph(shapes, known)
        usual = self._usual(shapes)
        if usual == tuple(shapes) or known:
            plain = self._templates[None].graph(shapes, known)
            half, graph = self._faster(plain)
            if plain.origin is None:
                return graph
        else:
            if usual not in self._decided:
                self._decided[usual] = self._faster_at(usual)
            half = self._decided[usual]
        return self._templates[half].graph(shapes, known)

    def all(self, shapes: Sequence[Shape], known: Known) -> list[Graph]:
        """The graph in each of the ways that values may be stored."""
        return [self._templates[half].graph(shapes, known) for half in self._storages]

    def _stored_by(self, half: DType | None) -> Callable[..., Graph]:
        if half is None:
            return self._bound
        return lambda *given: self._in_halves(self._bound(*given), half)

    def _in_halves(self, graph: Graph, half: DType) -> Graph:
        return verify(store_in_halves(graph, half, self._names))

    def _usual(self, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """Return shapes like these: their open extents rounded to powers of 2."""
        found = []
        for declared, shape in zip(self._inputs, shapes, strict=True):
            given = declared.shape or (None,) * len(shape)
            pairs = zip(given, shape, strict=False)
            found.append(tuple(n if isinstance(g, int) else _power_of_2(n) for g, n in pairs))
        return tuple(found)

    def _faster_at(self, shapes: tuple[Shape, ...]) -> DType | None:
        """Return the faster half precision at these shapes; the one asked for if none takes them.

        It does not depend on which shapes are asked for first.
        """
        named = {each.name: shape for each, shape in zip(self._inputs, shapes, strict=True)}
        try:
            return self._faster(self._bound(named))[0]
        except LeanConvError:
            return self._asked

    def _faster(self, plain: Graph) -> tuple[DType | None, Graph]:
        """In which half precision the network is fastest within its limits; None: in float32.

        Returns:
            The precision, and the graph in it.
        """
        least, found = math.inf, (self._asked, plain)
        for half in self._storages:
            graph = plain if half is None else self._in_halves(plain, half)
            try:
                time = self._time(graph)
            except BudgetError:
                if half is not None and half == self._asked:
                    return half, graph  # whose limits the error that is raised names
                continue
            if half == self._asked:
                time /= _ALIKE
            if time < least:
                least, found = time, (half, graph)
        return found


def _power_of_2(extent: int) -> int:
    return 1 << max(0, extent - 1).bit_length() if extent else 0


log = logging.getLogger(__name__)
# Of a network's max_error: what one layer in halves errs at the outputs, and no less.
_ROUNDOFFS = 8.0
_CONSTANT_FILES = 4  # times the bytes of a network's constants that passes may write to a file


class CpuGraphs:
    """A network's graphs for input shapes, after the passes, and their planners.

    Args:
        model: the network as read from its file.
        options: of `load`.
        pinned: a plan to follow where it fits.
        target: the processor that is planned for; by default the settings', or this one.

    Attributes:
        dtype: in which float type it computes.
        accuracy: the error and arithmetic accepted of each layer.
        deciding: the inputs whose values were found to decide what is computed.
    """

    def __init__(
        self,
        model: Model,
        options: NetworkOptions,
        pinned: PlanFile | None = None,
        target: Target | None = None,
    ) -> None:
        self.model, self._options, self._pinned = model, options, pinned
        check_layers(options.algorithms, model.nodes)
        self.threads = options.threads or default_threads()
        self.dtype = model.runtime_dtype(options.dtype)
        accuracy = Accuracy(reproducible=options.reproducible, half=options.precision)
        self.accuracy = accuracy.within(options.max_error, self.dtype)
        self.target: Target = target or planning_target()
        self.deciding = Deciding()
        self._inputs = input_specs(model, self.dtype)
        self._apart: frozenset[str] | None = None
        halves, asked = self._halves()
        compares = bool(halves) and self._compares_storage()
        self._planners: WeakKeyDictionary[Graph, Planner] = WeakKeyDictionary()
        free = options.precision is not None or options.max_error is not None
        names = None if free else model.half_names or None
        time = self._estimated_ns
        self._graphs = StoredGraphs(model, self._bound, halves, asked, compares, time, names)

    @property
    def options(self) -> NetworkOptions:
        """The options of `load`."""
        return self._options

    @property
    def templates(self) -> Sequence[Templates]:
        """The network's graphs with symbols for open extents, those of each way to store values."""
        return self._graphs.templates

    def graph(self, shapes: tuple[Shape, ...], known: Known = NOTHING_KNOWN) -> Graph:
        """The network's graph for input shapes, after the passes."""
        graph = check_flowing(self._followed(shapes, known) or self._graphs.graph(shapes, known))
        give_back(mapped_files(self.model.constants.values()))
        return graph

    def decided_graph(self, shapes: tuple[Shape, ...], known: Known) -> Graph:
        """The network's graph for input shapes, and for the values of `deciding` inputs."""
        return self.deciding.found(shapes, known, lambda chosen: self.graph(shapes, chosen))

    def planner(self, graph: Graph, usual: bool = False) -> Planner:
        """Return a graph's planner; if `usual`, layers may err as much as without a `max_error`.

        A planner that has compared how values may be stored is used again.
        """
        known = None if usual else self._planners.get(graph)
        if known is not None:
            return known
        accuracy = self.accuracy.of_network(graph, self.target)
        if usual:
            accuracy = accuracy.within(None, self.dtype)
        options = self._options
        given = graph, self.target, self.threads, accuracy, options.max_error
        return Planner(*given, streams=options.stream_weights)

    def _decisions(self, graph: Graph) -> tuple[Decision, ...] | None:
        """The decisions of nodes where an option overrides the planner's, else None."""
        if not (self._options.algorithms or self._options.tune):
            return None
        accuracy = self.accuracy.of_network(graph, self.target)
        decided = with_algorithms(graph, self.target, accuracy, self._options.algorithms)
        if self._options.tune:
            decided = tuned(graph, self.target, self.threads, accuracy, decided)
        return decided

    def _is_for(self, pinned: PlanFile, graph: Graph) -> bool:
        """Return whether a pinned plan is for this network, these shapes and this machine."""
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
            if len(graph.inputs) < len(self._inputs) and not pinned.source:
                return False  # it is for other values
            reason = "it was made for another network"
        if reason:
            log.warning("%s does not fit: %s; planning anew", pinned.name, reason)
        return not reason

    def _bound(self, shapes: Mapping[str, Shape], known: Known = NOTHING_KNOWN) -> Graph:
        bound = self.model.bind(shapes, dtype=self.dtype, late=True, values=known)
        passes = UNFUSED_PASSES
        if not self._options.algorithms:
            passes = (*passes, self._with_blocks)
        part = self._options.part_bytes
        if part is None:
            return run_passes(bound, passes)
        give_back(mapped_files(bound.constants.values()))
        held = sum(array.nbytes for array in bound.constants.values() if not is_filled(array))
        file = ConstantFile(current_settings().cache_dir, _CONSTANT_FILES * held)
        with moving_constants(file.moved):
            return run_passes(bound, (*passes, cutting_weights(part)))

    def _with_blocks(self, graph: Graph) -> Graph:
        """Fuse the blocks of a mobile network but for those in which zeros are left out.

        Which these are does not depend on the shapes that are asked for, nor on values before.
        """
        some = fuse_blocks(graph, zeros=MAYBE_SPARSE)
        if len(fuse_all_blocks(some).nodes) == len(some.nodes):
            return some
        apart = self._apart
        try:
            if all(each.static_shape is not None for each in self._inputs):
                apart = sparse_blocks(some, self.target)
            elif apart is None:
                shapes = {each.name: _likely(each.shape) for each in self._inputs}
                bound = self.model.bind(shapes, dtype=self.dtype, late=True)
                likely = fuse_blocks(run_passes(bound, UNFUSED_PASSES), zeros=MAYBE_SPARSE)
                self._apart = apart = sparse_blocks(likely, self.target)
        except LeanConvError:
            return fuse_blocks(graph)
        assert apart is not None
        return fuse_all_blocks(some, apart)

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
        """Return whether float32 is taken where that is faster.

        It is not where the user decides on layers, nor where no batch may change the bits.
        """
        options = self._options
        return not (options.algorithms or options.tune or options.reproducible)

    def _estimated_ns(self, graph: Graph) -> float:
        """Estimated time of a run within the limits."""
        planner = self._planners[graph] = self.planner(graph)
        limit = self._options.memory_limit
        if limit is None and self._options.max_error is None:
            return planner.unmerged.usual_ns
        return sum(planner.within(limit).step_estimates())

    def _followed(self, shapes: tuple[Shape, ...], known: Known) -> Graph | None:
        """The graph that a pinned plan is for, where values may be stored in several ways."""
        pinned = self._pinned
        if pinned is None or not self._halves()[0]:
            return None
        found = self._graphs.all(shapes, known)
        return next((graph for graph in found if graph_digest(graph) == pinned.network), None)


def _likely(shape: tuple[int | str | None, ...] | None) -> Shape:
    extents = enumerate(shape or ())
    return tuple(n if isinstance(n, int) else _LIKELY[axis > 1] for axis, n in extents)


def _listed(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
