"""A network from an ONNX file, ready to run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.codegen.host import host
from leanconv.errors import InputError, SpecError
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.passes import run_passes
from leanconv.planner.network_plan import BoundNetwork, NetworkPlan
from leanconv.runtime.pool import default_threads
from leanconv.settings import current_settings
from leanconv.target import Target, preset
from leanconv.units import format_bytes, parse_bytes

_CACHE_BYTES = 2 * 2**30  # of all plans for the shapes seen, the newest always kept


@dataclass(frozen=True)
class Port:
    """An input or output as the file declares it: symbols stand for extents that may vary."""

    name: str
    shape: tuple[int | str | None, ...]
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
    model: str | Path | bytes | Any,
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
        model: a file's path, its bytes, or an `onnx.ModelProto`.
        memory_limit: bytes, or text such as `"12 MiB"`, that weights and arena may take together.
        max_error: the largest relative error that is accepted; every algorithm that exists today
            is a plain sum, whose error stays below 1e-5 in float32.
        threads: threads that take part; by default the cores that this process may use.
        dtype: `"float64"` computes a float32 network in double precision.
        tune: measure instead of estimating; there is nothing to choose between yet.
        reproducible: an image gives the same bits alone and within any batch. Direct sums always
            do: they run in the same order whatever the batch.

    Returns:
        The network; `net(x)` runs it.

    Raises:
        ModelError: the file is damaged or breaks ONNX's rules.
        UnsupportedError: the network needs something that leanconv does not do.
        BudgetError: no plan fits the limit.
        SpecError: an option makes no sense.
    """
    del tune, reproducible
    if max_error is not None and not max_error > 0:
        raise SpecError(f"max_error is {max_error}; expected a positive number, such as 1e-5")
    if threads is not None and threads < 1:
        raise SpecError(f"threads is {threads}; expected at least 1")
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    return Network(read_model(model), threads or default_threads(), dtype, limit)


class Network:
    """A network, its plans for the input shapes seen, and the way to run them.

    Calls from several Python threads at once are allowed; on one network they run in turn.
    """

    def __init__(
        self, model: Model, threads: int, dtype: str | None, memory_limit: int | None
    ) -> None:
        self._model, self._threads, self._dtype = model, threads, dtype
        self._limit = memory_limit
        name = current_settings().target
        self._target: Target = preset(name) if name else host()
        self.inputs = tuple(
            Port(i.name, tuple(i.shape), dtype or i.dtype) for i in model.inputs
        )
        self._names = tuple(port.name for port in self.inputs)
        self._bound: OrderedDict[tuple[tuple[int, ...], ...], BoundNetwork] = OrderedDict()
        self._planning = threading.Lock()
        self._current: BoundNetwork | None = None
        if all(isinstance(extent, int) for port in self.inputs for extent in port.shape):
            shapes = tuple(tuple(int(e or 0) for e in port.shape) for port in self.inputs)
            self._current = self._bind(shapes)

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
        if len(self._names) != 1:
            raise InputError(
                f"the network has inputs {', '.join(self._names)}; call net.run({{name: array}})"
            )
        results = self._run([x])
        if len(results) != 1:
            raise InputError("the network has several outputs; call net.run({name: array})")
        return results[0]

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the network.

        Args:
            inputs: one array for each input, by name.

        Returns:
            The outputs by name, new arrays.

        Raises:
            InputError: an input is missing, unknown, or does not fit.
        """
        if set(inputs) != set(self._names):
            raise InputError(
                f"got inputs {sorted(inputs)}; expected {sorted(self._names)}"
            )
        results = self._run([inputs[name] for name in self._names])
        assert self._current is not None
        return dict(zip(self._current.plan.outputs, results, strict=True))

    def _run(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        given = [
            self._fitting(array, port) for array, port in zip(arrays, self.inputs, strict=True)
        ]
        bound = self._for_shapes(tuple(array.shape for array in given))
        results = [np.empty(kind.shape, kind.dtype) for kind in bound.plan.outputs.values()]
        bound.run([array.ctypes.data for array in (*given, *results)])
        return results

    @staticmethod
    def _fitting(array: np.ndarray, port: Port) -> np.ndarray:
        """The array as the kernels can read it: its dtype, contiguous."""
        if not isinstance(array, np.ndarray):
            raise InputError(f"input {port.name!r} is {type(array).__name__}; expected a NumPy array")
        if array.dtype != port.dtype:
            if not (array.dtype == np.float32 and port.dtype == "float64"):
                raise InputError(
                    f"input {port.name!r} is {array.dtype}; expected {port.dtype}: "
                    f"convert it with x.astype({port.dtype!r})"
                )
            array = array.astype(np.float64)
        wanted = port.shape
        fits = len(wanted) == array.ndim and all(
            not isinstance(w, int) or w == have for w, have in zip(wanted, array.shape, strict=True)
        )
        if not fits:
            shown = tuple("?" if w is None else w for w in wanted)
            raise InputError(
                f"input {port.name!r} has shape {array.shape}; expected ({', '.join(map(str, shown))})"
            )
        if min(array.shape, default=1) < 1:
            raise InputError(f"input {port.name!r} has shape {array.shape}; expected no empty axis")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    # -- planning --------------------------------------------------------------------------
    def _for_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> BoundNetwork:
        bound = self._bound.get(shapes)
        if bound is None:
            bound = self._bind(shapes)
        self._current = bound
        return bound

    def _bind(self, shapes: tuple[tuple[int, ...], ...]) -> BoundNetwork:
        with self._planning:
            found = self._bound.get(shapes)
            if found is not None:
                return found
            graph = run_passes(
                self._model.bind(dict(zip(self._names, shapes, strict=True)), dtype=self._dtype)
            )
            bound = BoundNetwork(graph, self._target, self._threads, self._limit)
            self._bound[shapes] = bound
            held = sum(b.memory.used_bytes for b in self._bound.values())
            while held > _CACHE_BYTES and len(self._bound) > 1:
                _, oldest = self._bound.popitem(last=False)
                held -= oldest.memory.used_bytes
            return bound

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
        if self._current is None:
            shown = ", ".join(f"{p.name}{list(p.shape)}" for p in self.inputs)
            raise InputError(f"the input shapes are not fixed ({shown}); run the network once first")
        return self._current

    def profile(
        self, x: np.ndarray | Mapping[str, np.ndarray], repeats: int = 20
    ) -> list[ProfileRow]:
        """Run step by step and time each one.

        Args:
            x: the input, or all inputs by name.
            repeats: timed runs.

        Returns:
            One row for each step of the plan, in order.
        """
        arrays = list(x.values()) if isinstance(x, Mapping) else [x]
        if isinstance(x, Mapping):
            arrays = [x[name] for name in self._names]
        self._run(arrays)
        bound = self._bound_now()
        given = [self._fitting(a, p) for a, p in zip(arrays, self.inputs, strict=True)]
        results = [np.empty(kind.shape, kind.dtype) for kind in bound.plan.outputs.values()]
        addresses = [array.ctypes.data for array in (*given, *results)]
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
