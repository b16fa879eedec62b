"""The state of lowering a graph to launches: buffers, their orders of axes, and steps so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.gpu.launch import Launch, copy_box, dense_strides, permute
from leanconv.gpu.lowering.conv_problem import Lowered, stored
from leanconv.gpu.machine import Arithmetic, Machine
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import label
from leanconv.planner.storage import ValuePlacer
from leanconv.records import dataclass
from leanconv.spec import NHWC, PLAIN, Format
from leanconv.types import DType


@dataclass(frozen=True, eq=False)
class DeviceStep:
    """One operation of the network, or a change of layout between two.

    Attributes:
        name, op: of the node in the file.
        algorithm, arithmetic, parameters: the way to compute it.
        calls: launches in order.
        error: expected relative error of its result in the max norm, beside that of its inputs.
    """

    name: str
    op: str
    algorithm: str
    arithmetic: str
    parameters: str
    calls: tuple[Launch, ...]
    error: float = 0.0

    @property
    def flops(self) -> int:
        """Floating point operations of all launches."""
        return sum(call.flops for call in self.calls)


Handler = Callable[["LoweringContext", Node], None]


class Handlers(dict[str, Handler]):
    """The functions of a module that lower nodes, by their operations."""

    def of(self, *ops: str) -> Callable[[Handler], Handler]:
        """Decorate the function that lowers nodes of some operations."""

        def register(handler: Handler) -> Handler:
            self.update(dict.fromkeys(ops, handler))
            return handler

        return register


class LoweringContext(ValuePlacer):
    """The state of lowering that handlers of nodes share; formats are `PLAIN` and `NHWC`.

    Attributes:
        graph: after the passes.
        machine: the GPU to choose for.
        dtype: that all values are kept in.
        arithmetics: allowed for convolutions.
        lean: whether to take what needs least memory.
        steps, bytes, views, constants: the result so far.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        dtype: DType,
        arithmetics: tuple[Arithmetic, ...],
        lean: bool,
    ) -> None:
        super().__init__(graph)
        self.machine, self.dtype = machine, dtype
        self.arithmetics, self.lean = arithmetics, lean
        self.steps: list[DeviceStep] = []

    # -- values ----------------------------------------------------------------------------
    def shape(self, name: str) -> tuple[int, ...]:
        """The logical shape of a value of the graph."""
        return self.graph.types[name].shape

    def physical(self, name: str, form: Format) -> tuple[int, ...]:
        """The shape in memory order."""
        return form.physical_shape(self.shape(name))

    def is_image(self, name: str) -> bool:
        """Return whether a value can be stored channels-last."""
        return len(self.shape(name)) >= 3

    def form(self, name: str) -> Format:
        """The form that a computed value was made in; constants may have any."""
        return self._formats.get(name, PLAIN)

    def is_constant(self, name: str) -> bool:
        """Return whether a value is known at load."""
        return name in self.graph.constants

    def buffer(self, name: str, size: int) -> str:
        """A new buffer of `size` bytes."""
        name = self.fresh(name)
        self.bytes[name] = size
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        """A new constant, kept in the network's dtype."""
        name = self.fresh(name)
        self.constants[name] = stored(array, self.dtype)
        return name

    def size(self, name: str, form: Format) -> int:
        """Bytes of a value, which are the same in both formats."""
        return prod(self.shape(name)) * self.dtype.bytes

    def define(self, name: str, form: Format) -> str:
        """Let a value be in a buffer of the same name, in a form."""
        super().define(name, form)
        self._same_memory(name)
        return name

    def _same_memory(self, name: str) -> None:
        """Both forms are the same bytes where channels or all other axes have extent 1."""
        shape = self.shape(name)
        if len(shape) < 3 or shape[1] == 1 or prod(shape[2:]) == 1:
            held = next(iter(self._places[name].values()))
            self._places[name] = {PLAIN: held, NHWC: held}

    def read(self, name: str, form: Format) -> str:
        """The buffer that holds a value in a form; transposed if there is none yet."""
        if not name:
            return ""
        if name not in self.graph.constants:
            return super().read(name, form)
        places = self._places.setdefault(name, {})
        if form not in places:
            array = self.graph.constants[name]
            places[form] = self.constant(f"{name}/{form}", array.transpose(form.axes(array.ndim)))
        return places[form]

    def plain_constant(self, name: str) -> str:
        """The buffer that holds a constant, row-major."""
        return self.read(name, PLAIN)

    def reorder(
        self, name: str, source: str, result: str, source_form: Format, form: Format
    ) -> None:
        """Add a transpose, or a copy in the same form."""
        if source_form == form:
            count = (max(1, prod(self.shape(name))),)
            launch = copy_box(source, result, self.dtype, count, (1,), (1,))
            self.steps.append(DeviceStep(result, "Copy", "copy", "", "", (launch,)))
            return
        order = NHWC.axes(len(self.shape(name)))
        if form == PLAIN:
            order = tuple(order.index(axis) for axis in range(len(order)))
        launch = permute(source, result, self.dtype, self.physical(name, source_form), order)
        algorithm = f"{source_form} to {form}"
        self.steps.append(DeviceStep(result, "Reorder", algorithm, "", "", (launch,)))

    def view(self, name: str, of: str, form: Format) -> None:
        """Let a value be the bytes of a buffer."""
        self.define(name, form)
        if of in self.constants:
            self._places[name] = dict.fromkeys(self._places[name], of)
        else:
            self.views.add(name, of)

    # -- steps -----------------------------------------------------------------------------
    def add(self, node: Node, lowered: Lowered) -> None:
        """Add the launches of a node."""
        self.constants.update(lowered.constants)
        self.bytes.update(lowered.temporaries)
        name = node.name or node.key
        self.steps.append(
            DeviceStep(
                name,
                node.op,
                lowered.algorithm,
                lowered.arithmetic,
                lowered.parameters,
                lowered.launches,
                lowered.error,
            )
        )

    def launch(self, node: Node, algorithm: str, *launches: Launch) -> None:
        """Take over launches that need nothing but values."""
        arithmetic = self.dtype.accumulator
        self.add(node, Lowered(launches, algorithm=algorithm, arithmetic=arithmetic))

    def given(self, node: Node, index: int) -> np.ndarray | None:
        """An input that must be constant, or None if it is absent.

        Raises:
            UnsupportedError: the value is computed.
        """
        name = node.input(index)
        if not name:
            return None
        if name not in self.graph.constants:
            raise UnsupportedError(
                f"{label(node)}: input {index} is computed; expected a constant on a GPU; use "
                "device='cpu'"
            )
        return self.graph.constants[name]


def strides_in(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Strides with which a dense array of `shape` is read as if broadcast to `target`."""
    full = (1,) * (len(target) - len(shape)) + tuple(shape)
    strides = dense_strides(full)
    return tuple(0 if e == 1 else s for e, s in zip(full, strides, strict=True))
