"""A network from a file on a GPU: what `load(..., device="cuda")` gives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, overload

from leanconv.errors import BudgetError, InputError, SpecError
from leanconv.gpu.backend import device_driver
from leanconv.gpu.compiled_network import CompiledDeviceNetwork, DevicePlan, explain
from leanconv.gpu.device.compiler import Compile, compile_cubin
from leanconv.gpu.device.driver import Driver
from leanconv.graph.names import Names
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing
from leanconv.progress import Progress, checked_progress, working
from leanconv.runtime.locks import Lock
from leanconv.runtime.profile import ProfileRow, profile_rows
from leanconv.runtime.unpicklable import Unpicklable
from leanconv.units import parse_bytes

Shape = tuple[int, ...]
_HALVES = ("float16", "bfloat16")
_MOST_SHAPES = 8


def load_on(
    device: str,
    model: Model,
    dtype: str | None,
    precision: str | None,
    memory_limit: int | str | None,
    max_error: float | None,
) -> DeviceNetwork:
    """Make a network ready on a GPU; see `leanconv.load`."""
    limit = None if memory_limit is None else parse_bytes(memory_limit)
    return DeviceNetwork(model, device_driver(device), dtype, precision, limit, max_error)


class DeviceNetwork(Unpicklable):
    """A network, its plans for the input shapes seen, and the way to run them.

    Calls from several Python threads at once are allowed; they run in turn.

    Attributes:
        inputs: what the network takes, as the file declares it.
        outputs: what it gives, in the same form; shapes are what the file says of them.
    """

    instead = "send the model's path, and call leanconv.load where the network is wanted"

    def __init__(
        self,
        model: Model,
        driver: Driver,
        dtype: str | None = None,
        precision: str | None = None,
        memory_limit: int | None = None,
        max_error: float | None = None,
        compile_code: Compile = compile_cubin,
    ) -> None:
        half = dtype in _HALVES
        if half and model.dtype != "float32":
            raise SpecError(
                f"dtype is {dtype!r} for a model in {model.dtype}; expected a model in float32"
            )
        self._model, self._driver = model, driver
        self._graph_dtype = model.runtime_dtype(None if half else dtype)
        self._dtype = str(dtype) if half else self._graph_dtype
        self._precision, self._limit, self._max_error = precision, memory_limit, max_error
        self._compile = compile_code
        self.inputs = model.inputs
        told = zip(model.outputs, model.output_shapes, strict=True)
        self.outputs = tuple(ModelInput(name, self._dtype, shape) for name, shape in told)
        self._names = Names(tuple(port.name for port in model.inputs), model.outputs)
        self._bound: OrderedDict[tuple[Shape, ...], CompiledDeviceNetwork] = OrderedDict()
        self._lock = Lock("a run of the same network")
        static = [port.static_shape for port in model.inputs]
        if None not in static:
            self._for_shapes(tuple(shape for shape in static if shape is not None))

    def __repr__(self) -> str:
        names = self._names
        return f"<DeviceNetwork {', '.join(names.inputs)} -> {', '.join(names.outputs)}>"

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run a network of one output: `net(x)`, `net(a, b)`, `net(images=x)`.

        Args:
            arrays: for the first inputs: on the device (torch, CuPy: anything with DLPack), read in
                place; or of NumPy.
            named: for the other inputs, by name.

        Returns:
            The output: on the device if the first input was, else of NumPy.

        Raises:
            InputError: an array does not fit, an input is missing, unknown or given twice, or the
                network has several outputs.
        """
        return self._run(self._names.called(arrays, named))[0]

    @overload
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]: ...

    @overload
    def run(
        self, output_names: Sequence[str] | None, /, input_feed: Mapping[str, Any]
    ) -> list[Any]: ...

    @overload
    def run(
        self, *, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[Any]: ...

    def run(
        self, inputs: Any = None, input_feed: Any = None, *, output_names: Any = None
    ) -> dict[str, Any] | list[Any]:
        """Run the network on one array for each input, by name, as `Network.run` does.

        Returns:
            Outputs by name; where output names are given, be it None, a list of these outputs.
        """
        if input_feed is not None or output_names is not None:
            wanted = self._names.selected(inputs if output_names is None else output_names)
            found = self._run(self._names.ordered(input_feed))
            return [found[number] for number in wanted]
        results = self._run(self._names.ordered(inputs))
        return dict(zip(self._names.outputs, results, strict=True))

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        shapes = []
        for name, array in zip(self._names.inputs, arrays, strict=True):
            if not hasattr(array, "shape"):
                raise InputError(f"input {name!r} is {type(array).__name__}; expected an array")
            shapes.append(tuple(int(extent) for extent in array.shape))
        with self._lock.held:
            return self._for_shapes(tuple(shapes)).run(arrays)

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]] | Sequence[int],
        progress: Progress | None = None,
    ) -> DevicePlan:
        """Plan for input shapes without running: of every input by name, or of the only one."""
        wanted = self._names.shapes(shapes)
        with working("network", checked_progress(progress)), self._lock.held:
            return self._for_shapes(wanted).plan

    def _for_shapes(self, shapes: tuple[Shape, ...]) -> CompiledDeviceNetwork:
        bound = self._bound.pop(shapes, None) or self._planned(shapes)
        self._bound[shapes] = bound
        while len(self._bound) > _MOST_SHAPES:
            self._bound.popitem(last=False)
        return bound

    def _planned(self, shapes: tuple[Shape, ...]) -> CompiledDeviceNetwork:
        named = dict(zip(self._names.inputs, shapes, strict=True))
        with working("network"):
            graph = self._model.bind(named, dtype=self._graph_dtype)
            bound = CompiledDeviceNetwork(
                check_flowing(run_passes(graph)),
                self._driver,
                self._dtype,
                self._precision,
                self._limit,
                self._compile,
            )
        self._check_error(bound.plan)
        return bound

    def _check_error(self, plan: DevicePlan) -> None:
        limit = self._max_error
        if limit is not None and not plan.predicted_error <= limit:
            raise BudgetError(
                f"the network is expected to err by {plan.predicted_error:.1e} in {self._dtype}, "
                f"the limit is {limit:.1e}; use precision='ieee' or dtype='float64'",
                plan.memory_bytes,
            )

    @property
    def bound(self) -> CompiledDeviceNetwork:
        """The network for the input shapes seen last.

        Raises:
            InputError: the shapes are not fixed by the file, and nothing has been run yet.
        """
        if not self._bound:
            raise InputError(
                "the file does not fix the input shapes; run the network first, or plan it with "
                "net.bind(shape)"
            )
        return next(reversed(self._bound.values()))

    @property
    def plan(self) -> DevicePlan:
        """The plan for the input shapes seen last."""
        return self.bound.plan

    @property
    def used_bytes(self) -> int:
        """Bytes that were allocated on the device for the plan in use."""
        return self.bound.memory.used_bytes

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own key-value pairs."""
        return dict(self._model.metadata)

    def explain(self) -> str:
        """Say how every step is computed, in which arithmetic, and what makes the memory."""
        return explain(self.plan)

    def profile(self, x: Any | Mapping[str, Any], repeats: int = 20) -> list[ProfileRow]:
        """Run step by step and time each one on the device, launch by launch."""
        if repeats < 1:
            raise SpecError(f"repeats is {repeats}; expected at least 1")
        arrays = self._names.arrays(x)
        self._run(arrays)
        with self._lock.held:
            times = self.bound.time(arrays, repeats)
        return profile_rows(self.plan.steps, times)
