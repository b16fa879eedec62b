"""A network from an ONNX file, ready to run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.plan_cache import PlanCache
from leanconv.codegen.host import host
from leanconv.errors import BudgetError, InputError, ModelError, SpecError
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing
from leanconv.planner.lowering import Accuracy
from leanconv.planner.network_plan import BoundNetwork, NetworkPlan
from leanconv.runtime.locks import Lock
from leanconv.runtime.pool import default_threads
from leanconv.settings import current_settings
from leanconv.target import Target, preset
from leanconv.units import format_bytes, parse_bytes

log = logging.getLogger(__name__)

Shape = tuple[int, ...]


# The error aimed at if the user does not say, and the share of it that one layer may have.
_DEFAULT_ERROR = {"float32": 1e-5, "float64": 1e-5 * 2.0**-29}
_LAYER_SHARE = 0.12


@dataclass(frozen=True)
class Port:
    """An input as the file declares it.

    Attributes:
        name: the input's name.
        shape: numbers; names of symbolic extents and None stand for extents that may vary. None
            if the file does not even fix the rank.
        dtype: what arrays it takes.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str


@dataclass(frozen=True)
class ProfileRow:
    """How long one step took over the repeats of a profile, in nanoseconds."""

    name: str
    op: str
    algorithm: str
    calls: int
    average_ns: float
    least_ns: int
    most_ns: int
    share: float
    flops: int


def load(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    dtype: str | None = None,
    tune: bool = False,
    reproducible: bool = False,
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
        dtype: `"float64"` computes a float32 network in double precision.
        tune: measure instead of estimating; not built yet: a warning is logged, estimates are used.
        reproducible: an image gives the same bits alone and within any batch: algorithms are
            chosen as for one image. (One plan always gives the same bits, with any threads.)

    Returns:
        The network; `net(x)` runs it.

    Raises:
        InputError: the file cannot be read.
        ModelError: the file is damaged or breaks ONNX's rules.
        UnsupportedError: the network needs something that leanconv does not do.
        BudgetError: no plan fits the limit.
        SpecError: an option makes no sense.
    """
    if tune:
        log.warning("tune=True: measuring is not built yet; algorithms are chosen by estimate")
    if max_error is not None and not max_error > 0:
        raise SpecError(f"max_error is {max_error}; expected a positive number, such as 1e-5")
    if threads is not None and threads < 1:
        raise SpecError(f"threads is {threads}; expected at least 1")
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    return Network(
        read_model(_source(model)),
        threads or default_threads(),
        dtype,
        limit,
        max_error,
        reproducible,
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


@dataclass(frozen=True, eq=False)
class _Bound:
    """A plan with the input shapes that it was made for."""

    shapes: tuple[Shape, ...]
    network: BoundNetwork


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
    ) -> None:
        self._model, self._threads = model, threads
        self._dtype, self._limit = model.runtime_dtype(dtype), memory_limit
        limit = _DEFAULT_ERROR[self._dtype] if max_error is None else max_error
        self._accuracy = Accuracy(limit * _LAYER_SHARE, reproducible)
        settings = current_settings()
        self._target: Target = preset(settings.target) if settings.target else host()
        self.inputs = tuple(Port(i.name, i.shape, self._dtype) for i in model.inputs)
        self.outputs = model.outputs
        self._names = tuple(port.name for port in self.inputs)
        self._plans = PlanCache[_Bound](settings.plan_cache_bytes, keep_newest=True)
        self._planning = Lock()
        self._current: _Bound | None = None
        self._tried: tuple[tuple[Shape, ...], Graph] | None = None
        static = [i.static_shape for i in model.inputs]
        if None not in static:
            self._current = self._for_shapes(tuple(s for s in static if s is not None))
        else:
            self._try_one_image()

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
        if len(self._names) != 1 or len(self.outputs) != 1:
            raise InputError(
                f"the network has inputs {', '.join(self._names)} and outputs "
                f"{', '.join(self.outputs)}; expected one of each; call net.run({{name: array}})"
            )
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
        results = self._run([inputs[name] for name in self._checked_names(inputs)])
        return dict(zip(self.outputs, results, strict=True))

    def _checked_names(self, inputs: Mapping[str, Any]) -> tuple[str, ...]:
        if set(inputs) != set(self._names):
            raise InputError(f"got inputs {sorted(inputs)}; expected {sorted(self._names)}")
        return self._names

    def _run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        bound, given, results = self._prepared(arrays)
        bound.run([array.ctypes.data for array in (*given, *results)])
        return results

    def _prepared(
        self, arrays: Sequence[np.ndarray]
    ) -> tuple[BoundNetwork, list[np.ndarray], list[np.ndarray]]:
        """The plan for these inputs, the inputs as kernels can read them, and room for outputs."""
        given = [_fitting(array, port) for array, port in zip(arrays, self.inputs, strict=True)]
        bound = self._for_shapes(tuple(array.shape for array in given)).network
        results = [np.empty(kind.shape, kind.dtype) for kind in bound.plan.outputs.values()]
        return bound, given, results

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
        if not isinstance(shapes, Mapping):
            shapes = dict.fromkeys(self._names[:1], shapes)
        wanted = tuple(tuple(int(e) for e in shapes[n]) for n in self._checked_names(shapes))
        return self._for_shapes(wanted).network.plan

    def _for_shapes(self, shapes: tuple[Shape, ...]) -> _Bound:
        bound = self._current
        if bound is None or bound.shapes != shapes:
            bound = self._plans.get(shapes) or self._bind(shapes)
            self._current = bound
        return bound

    def _bind(self, shapes: tuple[Shape, ...]) -> _Bound:
        with self._planning:
            found = self._plans.get(shapes)
            if found is not None:
                return found
            tried, self._tried = self._tried, None
            graph = tried[1] if tried and tried[0] == shapes else self._graph(shapes)
            network = self._network(graph)
            bound = _Bound(shapes, network)
            self._plans.put(shapes, bound, network.memory.used_bytes + network.code_bytes)
            return bound

    def _network(self, graph: Graph) -> BoundNetwork:
        """Plan; over the memory limit, once more with plain sums, whose weights are smallest."""
        settings = (self._target, self._threads)
        try:
            return BoundNetwork(graph, *settings, self._accuracy, self._limit)
        except BudgetError:
            leanest = Accuracy(0.0, self._accuracy.reproducible)
            return BoundNetwork(graph, *settings, leanest, self._limit)

    def _graph(self, shapes: tuple[Shape, ...]) -> Graph:
        bound = self._model.bind(dict(zip(self._names, shapes, strict=True)), dtype=self._dtype)
        return check_flowing(run_passes(bound))

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
            shown = ", ".join(f"{p.name} {_shown(p.shape)}" for p in self.inputs)
            raise InputError(
                f"the file does not fix the input shapes ({shown}); run the network first, or "
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
        if repeats < 1:
            raise SpecError(f"repeats is {repeats}; expected at least 1")
        arrays = [x[name] for name in self._checked_names(x)] if isinstance(x, Mapping) else [x]
        if len(arrays) != len(self._names):
            raise InputError(f"got one array; expected {', '.join(self._names)}, by name")
        bound, given, results = self._prepared(arrays)
        addresses = [array.ctypes.data for array in (*given, *results)]
        bound.run(addresses)
        times = bound.time_steps(addresses, repeats)
        total = sum(sum(row) for row in times) or 1
        return [
            ProfileRow(
                step.name,
                step.op,
                step.algorithm,
                len(row),
                sum(row) / max(1, len(row)),
                min(row, default=0),
                max(row, default=0),
                sum(row) / total,
                step.flops,
            )
            for step, row in zip(bound.plan.steps, times, strict=True)
        ]

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""
        plan = self.plan
        lines = [
            f"{step.name}: {step.op} by {step.algorithm}, {step.flops / 1e6:.2f} MFLOP, "
            f"weights {format_bytes(step.weight_bytes)}, output {format_bytes(step.output_bytes)}"
            for step in plan.steps
        ]
        lines.append(
            f"memory {plan.memory_bytes} bytes: weights {plan.weight_bytes}, arena "
            f"{plan.arena_bytes} (largest live set {plan.live_bytes}, scratch {plan.scratch_bytes})"
        )
        return "\n".join(lines)


def _fitting(array: np.ndarray, port: Port) -> np.ndarray:
    """The array as the kernels can read it: its dtype, contiguous, aligned."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {port.name!r} is {type(array).__name__}; expected a NumPy array")
    if array.dtype != port.dtype:
        if not (array.dtype == np.float32 and port.dtype == "float64"):
            raise InputError(
                f"input {port.name!r} is {array.dtype}; expected {port.dtype}: "
                f"convert it with x.astype({port.dtype!r})"
            )
        array = array.astype(np.float64)
    shape, wanted = array.shape, port.shape
    if wanted is not None and wanted != shape and not _matches(shape, wanted):
        raise InputError(f"input {port.name!r} has shape {shape}; expected {_shown(wanted)}")
    if 0 in shape:
        raise InputError(
            f"input {port.name!r} has shape {shape}, without elements; expected at least one"
        )
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, None, ["C", "A"])


def _matches(shape: Shape, wanted: tuple[int | str | None, ...]) -> bool:
    return len(wanted) == len(shape) and all(
        not isinstance(w, int) or w == have for w, have in zip(wanted, shape, strict=True)
    )


def _shown(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "of any rank"
    return "(" + ", ".join("?" if extent is None else str(extent) for extent in shape) + ")"
