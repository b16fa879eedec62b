"""A network from an ONNX file, ready to run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from leanconv.api.bound import Bound
from leanconv.api.options import (
    checked_algorithms,
    checked_dtype,
    checked_error,
    checked_flag,
    checked_threads,
)
from leanconv.api.plan_cache import PlanCache
from leanconv.api.ports import Port, Shape, fitting, shown
from leanconv.codegen.host import host
from leanconv.errors import BudgetError, InputError, ModelError, SpecError, short
from leanconv.graph.ir import Graph
from leanconv.graph.names import Names
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.passes import PASSES, UNFUSED_PASSES, run_passes
from leanconv.graph.verify import check_flowing
from leanconv.planner.asked import tuned, with_algorithms
from leanconv.planner.budget import Planner
from leanconv.planner.decision import Decision
from leanconv.planner.explain import explain_network, summary
from leanconv.planner.network_plan import BoundNetwork, NetworkPlan
from leanconv.planner.operations import Accuracy
from leanconv.planner.plan_file import PlanFile, graph_digest, other_target, read_plan
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import give_back, mapped_files
from leanconv.runtime.pool import default_threads
from leanconv.runtime.profile import ProfileRow, profile_rows
from leanconv.settings import current_settings
from leanconv.target import Target, preset
from leanconv.units import parse_bytes

log = logging.getLogger(__name__)

# The error aimed at if the user does not say, and the share of it that one layer may have.
_DEFAULT_ERROR = {"float32": 1e-5, "float64": 1e-5 * 2.0**-29}
_LAYER_SHARE = 0.12


def load(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    dtype: str | type[np.floating] | np.dtype | None = None,
    tune: bool = False,
    reproducible: bool = False,
    plan: str | os.PathLike[str] | None = None,
    algorithms: Mapping[str, str] | None = None,
    device: str = "cpu",
    precision: str | None = None,
) -> Network:
    """Read an ONNX network, and plan it if its input shapes are fixed.

    Args:
        model: a file's path, its bytes, or an `onnx.ModelProto`. A file that is mapped, and the
            weights beside it, must not shrink while the network is in use.
        memory_limit: bytes, or text such as `"12 MiB"`, that weights and arena may take together.
        max_error: the largest relative error of the outputs that is aimed at, against the exact
            result; by default 1e-5 in float32. Each layer gets its share; layers add up like
            independent errors, so this is an estimate, not a bound.
        threads: threads that take part; by default the cores that this process may use.
        dtype: `"float64"` computes a float32 network in double precision; on a GPU `"float16"` and
            `"bfloat16"` keep its values in half precision.
        tune: measure the choices that are estimated best for each convolution, once, and take the
            fastest; what was measured is kept in the settings' cache folder for later processes.
            Progress is logged. Fused blocks, and plans within limits, are chosen by estimate.
        reproducible: an image gives the same bits alone and within any batch: algorithms are
            chosen as for one image. (One plan always gives the same bits, with any threads.)
        plan: a file that `net.plan.save` has written: it says how the network is computed for its
            input shapes, and what the other options are that are not given here. Where it does not
            fit this CPU or network any more, a warning says why, and planning starts anew.
        algorithms: for convolutions by the names of their nodes in the file, algorithms as
            `plan_conv2d` takes them: `{"conv1": "winograd:m=4"}`. Blocks are not fused then.
        device: `"cpu"`, or `"cuda"` or `"cuda:1"` for a GPU, whose arrays come and go through
            DLPack.
        precision: on a GPU, as for `plan_conv2d`.

    Returns:
        The network; `net(x)` runs it. On a GPU a `DeviceNetwork`, which is called and asked alike.

    Raises:
        InputError: the file cannot be read.
        ModelError: the file is damaged or breaks ONNX's rules.
        UnsupportedError: the network needs something that leanconv does not do.
        BudgetError: no plan fits the limit.
        SpecError: an option makes no sense.
    """
    tune, reproducible = checked_flag("tune", tune), checked_flag("reproducible", reproducible)
    computed = checked_dtype(dtype)
    if device != "cpu":
        from leanconv.gpu import entry, loaded

        entry.check_options(
            threads=threads, tune=tune, reproducible=reproducible, plan=plan, algorithms=algorithms
        )
        source = read_model(_source(model))
        made = loaded.load_on(device, source, computed, precision, memory_limit, max_error)
        return cast(Network, made)
    if precision is not None:
        raise SpecError(f"precision is {precision!r} for device 'cpu'; expected None")
    limits = [
        n
        for n, v in (("memory_limit", memory_limit), ("max_error", max_error), ("plan", plan))
        if v is not None
    ]
    if algorithms and limits:
        raise SpecError(f"got algorithms together with {limits[0]}; expected one of them")
    if tune and limits:
        log.warning("tune=True: with %s algorithms are chosen by estimate", limits[0])
    max_error, threads = checked_error(max_error), checked_threads(threads)
    algorithms = checked_algorithms(algorithms)
    pinned = None if plan is None else read_plan(plan)
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    if pinned is not None:
        limit = pinned.memory_limit if limit is None else limit
        max_error = checked_error(pinned.max_error) if max_error is None else max_error
        threads, computed = threads or pinned.threads, computed or pinned.dtype
        reproducible = reproducible or pinned.reproducible
    return Network(
        read_model(_source(model)),
        threads or default_threads(),
        computed,
        limit,
        max_error,
        reproducible,
        pinned,
        algorithms,
        tune and not limits,
    )


def _source(model: Any) -> Path | bytes:
    """What `read_model` takes, made of what `load` takes."""
    if hasattr(model, "SerializeToString"):
        try:
            return bytes(model.SerializeToString())
        except Exception as error:  # protobuf's own class, which is not imported here
            raise ModelError(
                f"the ModelProto cannot be serialised ({error}); expected one of under 2 GiB; "
                "save larger ones with onnx.save(model, path, save_as_external_data=True) and "
                "load the path"
            ) from error
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if isinstance(model, str | os.PathLike):
        return Path(model)
    raise InputError(
        f"model is {type(model).__name__}; expected a path, the bytes of an ONNX file, or an "
        "onnx.ModelProto"
    )


class Network:
    """A network, its plans for the input shapes seen, and the way to run them.

    Calls from several Python threads at once are allowed; on one network they run in turn.

    Attributes:
        inputs: what the network takes, as the file declares it.
        outputs: names of what it gives.
    """

    def __init__(
        self,
        model: Model,
        threads: int,
        dtype: str | None,
        memory_limit: int | None,
        max_error: float | None,
        reproducible: bool,
        pinned: PlanFile | None = None,
        algorithms: Mapping[str, str] | None = None,
        tune: bool = False,
    ) -> None:
        self._model, self._threads, self._pinned = model, threads, pinned
        self._algorithms, self._tune = dict(algorithms or {}), tune
        self._dtype, self._limit = model.runtime_dtype(dtype), memory_limit
        share = _DEFAULT_ERROR[self._dtype] * _LAYER_SHARE if max_error is None else max_error
        self._accuracy, self._max_error = Accuracy(share, reproducible), max_error
        settings = current_settings()
        self._target: Target = preset(settings.target) if settings.target else host()
        self.inputs = tuple(Port(i.name, i.shape, self._dtype) for i in model.inputs)
        self.outputs = model.outputs
        self._names = Names(tuple(port.name for port in self.inputs), model.outputs)
        self._plans = PlanCache[Bound](settings.plan_cache_bytes, keep_newest=True)
        self._planning = Lock()
        self._current: Bound | None = None
        self._tried: tuple[tuple[Shape, ...], Graph] | None = None
        static = [i.static_shape for i in model.inputs]
        if None not in static:
            self._current = self._for_shapes(tuple(s for s in static if s is not None))
        else:
            self._try_one_image()

    def __repr__(self) -> str:
        takes = ", ".join(f"{port.name}{shown(port.shape)}" for port in self.inputs)
        return f"<Network {takes} -> {', '.join(self.outputs)}, {self._dtype}>"

    # -- running ---------------------------------------------------------------------------
    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Run a network of one input and one output.

        Args:
            x: the input, of the declared shape and dtype; contiguous arrays are read in place.

        Returns:
            The output, a new array.

        Raises:
            InputError: the array does not fit, or the network has more inputs or outputs.
        """
        y = self._single(x)
        if y is not None:
            return y
        self._names.check_single()
        return self._run([x])[0]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the network.

        Args:
            inputs: one array for each input, by name.

        Returns:
            The outputs by name, new arrays.

        Raises:
            InputError: an input is missing, unknown, or does not fit.
        """
        arrays = self._names.ordered(inputs)
        y = self._single(arrays[0]) if len(arrays) == 1 else None
        results = self._run(arrays) if y is None else [y]
        return dict(zip(self.outputs, results, strict=True))

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
    def bind(self, shapes: Mapping[str, Sequence[int]] | Sequence[int]) -> NetworkPlan:
        """Plan for input shapes without running; later calls with these shapes find the plan.

        Args:
            shapes: the shape of every input by name, or that of the only input.

        Returns:
            The plan, which is now the one that `plan` shows.

        Raises:
            InputError: the shapes do not fit the file.
            ModelError, UnsupportedError, BudgetError: as `load` raises them.
        """
        return self._for_shapes(self._names.shapes(shapes)).network.plan

    def _for_shapes(self, shapes: tuple[Shape, ...]) -> Bound:
        bound = self._current
        if bound is None or bound.shapes != shapes:
            bound = self._plans.get(shapes) or self._bind(shapes)
            self._current = bound
        return bound

    def _bind(self, shapes: tuple[Shape, ...]) -> Bound:
        with self._planning.held:
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
            reason = f"it was made for inputs {dict(pinned.inputs)}, here they are {shapes}"
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
            ports = ", ".join(f"{port.name} {shown(port.shape)}" for port in self.inputs)
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
