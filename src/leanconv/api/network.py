"""A network from an ONNX file, ready to run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from leanconv.api.fast_call import Bound
from leanconv.api.inputs import Port, Shape, fitting
from leanconv.api.options import NetworkOptions
from leanconv.api.pickling import received, sent
from leanconv.api.plan_cache import PlanCache
from leanconv.codegen.host import host
from leanconv.errors import BudgetError, InputError, ModelError, SpecError, memory_reported, short
from leanconv.graph.ir import Graph
from leanconv.graph.names import Names
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import PASSES, UNFUSED_PASSES, run_passes
from leanconv.graph.verify import check_flowing
from leanconv.operators.accuracy import LAYER_SHARE, NETWORK_ERROR, Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.decision import Decision
from leanconv.planner.explain import explain_network, summary
from leanconv.planner.network_plan import BoundNetwork, NetworkPlan
from leanconv.planner.overrides import tuned, with_algorithms
from leanconv.planner.plan_file import PlanFile, graph_digest, other_target
from leanconv.progress import Progress, checked_progress, working
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import give_back, mapped_files
from leanconv.runtime.pool import default_threads
from leanconv.runtime.profile import ProfileRow, profile_rows
from leanconv.settings import current_settings
from leanconv.target import Target, preset
from leanconv.units import shape_text

log = logging.getLogger(__name__)

_NOTHING: Any = object()


class Network:
    """A network, its plans for the input shapes seen, and the way to run them.

    Calls from several Python threads at once are allowed; on one network they run in turn. Of
    `copy.deepcopy(net)` the memory is its own, so that it can run at the same time; `copy.copy`
    shares plans and memory. A pickled network is its model, weights included, with `load`'s
    options, and is planned anew where it is unpickled; where weights are many, send the path and
    call `load` there. A process that is forked goes on with the networks that it finds.

    Attributes:
        inputs: what the network takes, as the file declares it: each has a `name`, a `shape` and
            a `dtype`.
        outputs: what it gives, in the same form; shapes are those of the plan where the file fixes
            all input shapes, else what the file says of them, which is not checked.
    """

    def __init__(
        self,
        model: Model,
        options: NetworkOptions,
        pinned: PlanFile | None = None,
        name: str = "network",
    ) -> None:
        self._model, self._options, self._pinned, self._name = model, options, pinned, name
        self._threads = options.threads or default_threads()
        self._algorithms, self._tune = dict(options.algorithms), options.tune
        self._dtype, self._limit = model.runtime_dtype(options.dtype), options.memory_limit
        max_error = options.max_error
        share = NETWORK_ERROR[self._dtype] * LAYER_SHARE if max_error is None else max_error
        self._accuracy, self._max_error = Accuracy(share, options.reproducible), max_error
        settings = current_settings()
        self._target: Target = preset(settings.target) if settings.target else host()
        self.inputs = tuple(Port(i.name, i.shape, self._dtype) for i in model.inputs)
        told = zip(model.outputs, model.output_shapes, strict=True)
        self.outputs = tuple(Port(output, shape, self._dtype) for output, shape in told)
        self._names = Names(tuple(port.name for port in self.inputs), model.outputs)
        self._plans = PlanCache[Bound](settings.plan_cache_bytes, keep_newest=True)
        self._planning = Lock("the planning of the same network")
        self._current: Bound | None = None
        self._tried: tuple[tuple[Shape, ...], Graph] | None = None
        static = [i.static_shape for i in model.inputs]
        if None not in static:
            bound = self._for_shapes(tuple(s for s in static if s is not None))
            kinds = bound.network.plan.outputs.items()
            self.outputs = tuple(Port(output, kind.shape, kind.dtype) for output, kind in kinds)
        else:
            self._try_one_image()

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        return f"<Network {takes} -> {gives}, {self._dtype}>"

    # -- running ---------------------------------------------------------------------------
    def __call__(
        self, x: np.ndarray = _NOTHING, /, *more: np.ndarray, **named: np.ndarray
    ) -> np.ndarray:
        """Run a network of one output: `net(x)`, `net(a, b)`, `net(images=x)`, `net(a=a, b=b)`.

        Args:
            x, more: arrays for the first inputs, of the declared shapes and dtype; contiguous ones
                are read in place, others are copied.
            named: arrays for the other inputs, by name. Where a name is no identifier of Python,
                `net.run({"input.1": x})` takes it.

        Returns:
            The output, a new array.

        Raises:
            InputError: an array does not fit, an input is missing, unknown or given twice, or the
                network has several outputs: `net.run` gives them all.
        """
        if not (more or named):
            y = self._single(x)
            if y is not None:
                return y
        arrays = () if x is _NOTHING else (x, *more)
        return self._run(self._names.called(arrays, named))[0]

    @overload
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...

    @overload
    def run(
        self, output_names: Sequence[str] | None, /, input_feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]: ...

    @overload
    def run(
        self, *, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]: ...

    def run(
        self, inputs: Any = None, input_feed: Any = None, *, output_names: Any = None
    ) -> dict[str, np.ndarray] | list[np.ndarray]:
        """Run the network: `net.run({"x": x})`, or as in onnxruntime `net.run(None, {"x": x})`.

        Args:
            inputs: one array for each input, by name.
            output_names: the outputs wanted, in this order; None or an empty list for all. (The
                whole network runs all the same.)
            input_feed: `inputs`, where output names come first.

        Returns:
            All outputs by name, as a dictionary; where output names are given, be it None, a list
            of these outputs in their order. The arrays are new.

        Raises:
            InputError: an input is missing, unknown, or does not fit; or there is no such output.
        """
        if input_feed is not None or output_names is not None:
            wanted = self._names.selected(inputs if output_names is None else output_names)
            found = self._run(self._names.ordered(input_feed))
            return [found[number] for number in wanted]
        arrays = self._names.ordered(inputs)
        y = self._single(arrays[0]) if len(arrays) == 1 else None
        results = self._run(arrays) if y is None else [y]
        return dict(zip(self._names.outputs, results, strict=True))

    def _single(self, x: object) -> np.ndarray | None:
        """The answer where there is one input and one output and x can be read as it is."""
        bound = self._current
        return bound.call(x) if bound else None

    def _run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        bound, given, results = self._prepared(arrays)
        bound.run([array.ctypes.data for array in (*given, *results)])
        return results

    def _prepared(
        self, arrays: Sequence[np.ndarray]
    ) -> tuple[BoundNetwork, list[np.ndarray], list[np.ndarray]]:
        """The plan for these inputs, the inputs as kernels can read them, and room for outputs."""
        given = [fitting(array, port) for array, port in zip(arrays, self.inputs, strict=True)]
        bound = self._for_shapes(tuple(array.shape for array in given))
        return bound.network, given, bound.results()

    # -- planning --------------------------------------------------------------------------
    def bind(
        self,
        shapes: Mapping[str, Sequence[int]] | Sequence[int],
        progress: Progress | None = None,
    ) -> NetworkPlan:
        """Plan for input shapes without running; later calls with these shapes find the plan.

        Args:
            shapes: the shape of every input by name, or that of the only input.
            progress: is told how far planning is, as by `load`.

        Returns:
            The plan, which is now the one that `plan` shows.

        Raises:
            InputError: the shapes do not fit the file.
            ModelError, UnsupportedError, BudgetError: as `load` raises them.
        """
        wanted = self._names.shapes(shapes)
        with working(self._name, checked_progress(progress)):
            return self._for_shapes(wanted).network.plan

    def _for_shapes(self, shapes: tuple[Shape, ...]) -> Bound:
        bound = self._current
        if bound is None or bound.shapes != shapes:
            bound = self._plans.get(shapes) or self._bind(shapes)
            self._current = bound
        return bound

    @memory_reported("planning a network")
    def _bind(self, shapes: tuple[Shape, ...]) -> Bound:
        with working(self._name), self._planning.held:
            found = self._plans.get(shapes)
            if found is not None:
                return found
            tried, self._tried = self._tried, None
            graph = tried[1] if tried and tried[0] == shapes else self._graph(shapes)
            network = self._network(graph)
            bound = Bound(shapes, network, self._dtype)
            self._plans.put(shapes, bound, network.memory.used_bytes + network.code_bytes)
            return bound

    def _network(self, graph: Graph) -> BoundNetwork:
        accuracy = self._accuracy.of_network(graph, self._target)
        planner = Planner(graph, self._target, self._threads, accuracy, self._max_error)
        pinned = self._pinned
        if pinned is not None and self._wants(pinned, graph):
            try:
                bound = BoundNetwork(graph, planner, self._limit, pinned)
            except (BudgetError, SpecError) as error:
                log.warning("the pinned plan is not followed: %s", error)
            else:
                for reason in bound.misfits:
                    log.warning("the pinned plan is followed, but %s", reason)
                return bound
        return BoundNetwork(graph, planner, self._limit, decisions=self._decisions(graph))

    def _decisions(self, graph: Graph) -> tuple[Decision, ...] | None:
        """How nodes are computed where that is not left to the planner."""
        if not (self._algorithms or self._tune):
            return None
        decided = with_algorithms(graph, self._target, self._algorithms)
        if self._tune:
            accuracy = self._accuracy.of_network(graph, self._target)
            decided = tuned(graph, self._target, self._threads, accuracy, decided)
        return decided

    def _wants(self, pinned: PlanFile, graph: Graph) -> bool:
        """Whether a pinned plan is for this network, these shapes and this machine."""
        reason = other_target(pinned, self._target)
        shapes = {name: graph.types[name].shape for name in graph.inputs}
        if shapes != dict(pinned.inputs):
            if all(port.takes(pinned.inputs.get(port.name)) for port in self.inputs):
                return False  # another shape of a network that takes several: planned by itself
            reason = (
                f"it was made for inputs {_listed(pinned.inputs)}, here they are {_listed(shapes)}"
            )
        elif pinned.network != graph_digest(graph) or pinned.dtype != self._dtype:
            reason = "it was made for another network"
        if reason:
            log.warning("the pinned plan does not fit: %s; planning anew", reason)
        return not reason

    def _graph(self, shapes: tuple[Shape, ...]) -> Graph:
        bound = self._model.bind(
            dict(zip(self._names.inputs, shapes, strict=True)), dtype=self._dtype
        )
        graph = check_flowing(run_passes(bound, UNFUSED_PASSES if self._algorithms else PASSES))
        give_back(mapped_files(self._model.constants.values()))
        return replace(graph, constants=dict(graph.constants))  # which the plan takes its out of

    def _try_one_image(self) -> None:
        """Where only the batch is open, find out at load whether the network is supported."""
        shapes = []
        for port in self.inputs:
            extents = (1, *port.shape[1:]) if port.shape else ()
            shapes.append(tuple(extent for extent in extents if isinstance(extent, int)))
            if port.shape is None or len(shapes[-1]) != len(port.shape):
                return
        # Another batch may fit where one image does not; the first call will tell.
        with contextlib.suppress(ModelError, InputError):
            self._tried = (tuple(shapes), self._graph(tuple(shapes)))

    # -- copies ----------------------------------------------------------------------------
    def __copy__(self) -> Network:
        copied = object.__new__(Network)
        copied.__dict__.update(self.__dict__)
        copied._planning, copied._tried = Lock("the planning of the same network"), None
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        with working(self._name):
            copied = Network(self._model, self._options, self._followed(), self._name)
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (sent(self._model), self._options, self._followed(), self._name)

    def _followed(self) -> PlanFile | None:
        """The plan that a copy follows: what was measured here may be measured otherwise there."""
        if self._tune and self._current is not None:
            return self._current.network.plan.file()
        return self._pinned

    # -- what is known ---------------------------------------------------------------------
    @property
    def metadata(self) -> dict[str, str]:
        """The file's own key-value pairs."""
        return dict(self._model.metadata)

    @property
    def plan(self) -> NetworkPlan:
        """The plan for the input shapes seen last.

        Raises:
            InputError: the shapes are not fixed by the file, and nothing has been run yet.
        """
        return self._bound_now().plan

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for the plan in use, counted as they were."""
        return self._bound_now().memory.used_bytes

    def _bound_now(self) -> BoundNetwork:
        current = self._current
        if current is None:
            ports = ", ".join(f"{port.name} {shape_text(port.shape)}" for port in self.inputs)
            raise InputError(
                f"the file does not fix the input shapes ({ports}); run the network first, or "
                "plan it with net.bind(shape)"
            )
        return current.network

    def profile(
        self, x: np.ndarray | Mapping[str, np.ndarray], repeats: int = 20
    ) -> list[ProfileRow]:
        """Run step by step and time each one.

        Args:
            x: the input, or all inputs by name.
            repeats: timed runs.

        Returns:
            One row for each step of the plan, in order.

        Raises:
            InputError: an input is missing, unknown, or does not fit.
        """
        if not isinstance(repeats, int) or repeats < 1:
            raise SpecError(f"repeats is {short(repeats)}; expected an integer of at least 1")
        bound, given, results = self._prepared(self._names.arrays(x))
        addresses = [array.ctypes.data for array in (*given, *results)]
        bound.run(addresses)
        times = bound.time_steps(addresses, repeats)
        return profile_rows(bound.plan.steps, times)

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""
        return summary(self.plan)

    def report(self, front: bool = True) -> dict[str, Any]:
        """Say of every layer which candidates there were and why all but one lost, as JSON.

        Args:
            front: whether plans for other limits are looked for, too, which takes longer.
        """
        return explain_network(self.plan, front)


def _received(model: Model, options: NetworkOptions, pinned: PlanFile | None, name: str) -> Network:
    """A network that was pickled, planned for this process."""
    with working(name):
        return Network(received(model), options, pinned, name)


def _listed(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
