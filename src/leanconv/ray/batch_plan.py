"""The number of a dataset's rows that are computed together, and the bytes that this takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import InputSpec, Shape
from leanconv.api.network import Network
from leanconv.api.options import checked_limit
from leanconv.errors import BudgetError, InputError, ModelError, SpecError, short
from leanconv.graph.fields.axis_map import IDENTITY
from leanconv.graph.fields.receptive_fields import Local, receptive_fields
from leanconv.graph.ir import Graph, TensorType
from leanconv.planner.graph_planner import PlacedPlan
from leanconv.records import dataclass, replace
from leanconv.target import Target
from leanconv.units import counted, format_bytes, format_ns, shape_text

# A batch that takes as long hides what Ray takes to hand it over, some milliseconds.
_ENOUGH_NS = 250_000_000
_MOST_ROWS = 256


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The plan of one actor: the rows that it computes at once, and its memory.

    Attributes:
        batch_size: rows that it is handed.
        because: why these are computed one by one; empty where they are computed together.
        shapes: of one row, by input.
        outputs: of one row, by name, with the batch axis; None where they follow from values.
        network_bytes: packed weights, the arena for a batch and that for one row.
        row_bytes: of one row's inputs and outputs, in the network's types; of outputs that follow
            from values the most that the file lets them take, if it says that.
        row_ns: predicted for one row.
        limit: of `memory_bytes`; None for none.
        threads: that take part.
        target: the processor that the bits are those of.
    """

    batch_size: int
    because: str
    shapes: Mapping[str, Shape]
    outputs: Mapping[str, TensorType | None]
    network_bytes: int
    row_bytes: int
    row_ns: int
    limit: int | None
    threads: int
    target: Target

    @property
    def array_bytes(self) -> int:
        """Bytes of a batch in Ray's and in the network's types, and likewise of its results."""
        return 2 * self.batch_size * self.row_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes that an actor takes besides Python and Ray themselves."""
        return self.network_bytes + self.array_bytes

    @property
    def predicted_ns(self) -> int:
        """The estimated time of a batch."""
        return self.batch_size * self.row_ns

    def explain(self) -> str:
        """Say how many rows there are in a batch, how they are computed, and what they cost."""
        how = f"one by one: {self.because}" if self.because else "together"
        rows = ", ".join(f"{name} {shape_text(shape)}" for name, shape in self.shapes.items())
        return "\n".join(
            (
                f"rows of {rows} in batches of {self.batch_size}, computed {how}",
                f"predicted {format_ns(self.predicted_ns)} a batch with "
                f"{counted(self.threads, 'thread')}",
                f"memory {format_bytes(self.memory_bytes)}: weights and arena "
                f"{format_bytes(self.network_bytes)}, arrays {format_bytes(self.array_bytes)}",
            )
        )


def plan_batches(
    net: Network,
    *,
    shapes: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
    memory_limit: int | str | None = None,
    batch_size: int | None = None,
) -> BatchPlan:
    """Choose how many rows an actor is handed at once.

    A row has no batch axis: for a network of N x 3 x 224 x 224 it is an image of 3 x 224 x 224.

    Args:
        net: for the CPU, loaded with `reproducible=True`, so that a row has the same bits in every
            batch.
        shapes: of a row, by input, or of the only input; the largest where rows differ. Needed
            where the file leaves more than the batch open.
        memory_limit: bytes, or text such as `"256 MiB"`, that an actor may hold besides Python and
            Ray themselves.
        batch_size: rows of a batch. By default as many as fit the limit, until a batch takes a
            quarter of a second; a power of two, at most 256.

    Raises:
        SpecError: an option makes no sense, or the network's bits would depend on the batch.
        InputError: the shapes do not fit the file, or its batch is fixed to more than 1.
        BudgetError: the limit is too small for one row, or for the batch that is asked for.
    """
    limit = checked_limit(memory_limit)
    if batch_size is not None and not (isinstance(batch_size, Integral) and batch_size > 0):
        raise SpecError(f"batch_size is {short(batch_size)}; expected a positive number")
    planning = _Planning(checked_backend(net), _row_shapes(net.inputs, shapes), limit)
    if batch_size is not None:
        return planning.fitting(int(batch_size))
    best = planning.fitting(1)
    while best.batch_size < _MOST_ROWS and best.predicted_ns < _ENOUGH_NS:
        try:
            best = planning.of(2 * best.batch_size)
        except (BudgetError, ModelError):
            break
    return best


def checked_backend(net: Network | CpuBackend) -> CpuBackend:
    """Return the backend of a network with the same bits in any batch and process.

    Raises:
        SpecError: bits may differ, or the network is not for the CPU.
    """
    if not isinstance(net, Network | CpuBackend):
        raise SpecError(f"net is {short(net)}; expected a network from leanconv.load")
    backend = net.backend if isinstance(net, Network) else net
    if not isinstance(backend, CpuBackend):
        raise SpecError("net runs on a GPU; expected one for the CPU: load it with device='cpu'")
    if not backend.options.reproducible or backend.options.tune or backend.follows_plan:
        raise SpecError(
            "net may compute a row with other bits in another batch; expected one that is loaded "
            "with reproducible=True, and without tune=True and plan="
        )
    return backend


def _row_shapes(inputs: Sequence[InputSpec], shapes: Any) -> dict[str, Shape]:
    """The shape of a row of each input, without the batch axis.

    Raises:
        InputError: a shape is not known, or does not fit the file.
    """
    given = {} if shapes is None else shapes
    if not isinstance(given, Mapping):
        if len(inputs) != 1:
            names = ", ".join(spec.name for spec in inputs)
            raise InputError(f"shapes is {short(shapes)}; expected a shape for each of {names}")
        given = {inputs[0].name: given}
    unknown = sorted(set(map(str, given)) - {spec.name for spec in inputs})
    if unknown:
        raise InputError(f"shapes has {unknown[0]!r}, which is no input of the network")
    return {spec.name: _row_shape(spec, given.get(spec.name)) for spec in inputs}


def _row_shape(spec: InputSpec, given: Any) -> Shape:
    declared = spec.shape
    first = None if declared is None else declared[0] if declared else 0
    if isinstance(first, int) and first != 1:
        raise InputError(
            f"input {spec} has no batch axis of its own; expected a first axis that is open, or "
            "1: export the network with a dynamic batch"
        )
    if given is None and declared is not None:
        given = declared[1:]
    extents = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if extents is None or not all(isinstance(n, Integral) and int(n) > 0 for n in extents):
        raise InputError(
            f"a row of input {spec} is {short(given)}; expected its extents without the batch: "
            f"shapes={{{spec.name!r}: (3, 224, 224)}}"
        )
    shape = tuple(int(n) for n in extents)
    if not spec.takes((1, *shape)):
        raise InputError(
            f"a row of input {spec} is {shape_text(shape)}; expected what fits the file behind the "
            "batch axis"
        )
    return shape


class _Planning:
    """Plans of a network for batches of several sizes; nothing is compiled.

    Args:
        backend: of the network.
        rows: shapes of a row, by input.
        limit: bytes that an actor may hold; None for any.
    """

    def __init__(self, backend: CpuBackend, rows: Mapping[str, Shape], limit: int | None) -> None:
        self._backend, self._limit = backend, limit
        graph = self._graph(rows, 1)
        because = _one_by_one(backend, graph) or self._mixed(rows)
        placed = backend.planner(graph).within(None)
        self._row_arena_bytes = placed.storage.arena_bytes
        given = backend.late_bytes(graph, [(1, *shape) for shape in rows.values()])
        if given is None and limit is not None:
            raise SpecError(
                "memory_limit bounds nothing here: results follow from values, and nothing in the "
                "file says how large they may be; give none"
            )
        outputs = {name: graph.types.get(name) for name in backend.model.outputs}
        known = [kind for kind in outputs.values() if kind is not None]
        kinds = [*known, *(graph.types[name] for name in graph.inputs)]
        self._one = BatchPlan(
            batch_size=1,
            because=because,
            shapes=rows,
            outputs=outputs,
            network_bytes=placed.memory_bytes,
            row_bytes=sum(kind.bytes for kind in kinds) + (given or 0),
            row_ns=_predicted_ns(placed),
            limit=limit,
            threads=backend.threads,
            target=backend.target,
        )

    def of(self, size: int) -> BatchPlan:
        """The plan for batches of a size as the network is planned without this limit.

        Raises:
            BudgetError: the plan is beyond the limit.
        """
        found = self._planned(size, self._backend.options.memory_limit)
        if self._limit is not None and found.memory_bytes > self._limit:
            raise self._beyond(size, found.memory_bytes)
        return found

    def fitting(self, size: int) -> BatchPlan:
        """The fastest plan for batches of a size that keeps the limit.

        Raises:
            BudgetError: none does.
        """
        try:
            return self.of(size)
        except BudgetError:
            if self._limit is None:
                raise
            arrays = replace(self._one, batch_size=size).array_bytes
            try:
                return self._planned(size, self._limit - arrays)
            except BudgetError as error:
                if error.smallest_error is not None:
                    raise
                needed = error.smallest_bytes + self._beside(size) + arrays
                raise self._beyond(size, needed) from error

    def _planned(self, size: int, left: int | None) -> BatchPlan:
        """The plan for batches of a size whose weights and arena take at most `left`."""
        graph = self._graph(self._one.shapes, 1 if self._one.because else size)
        beside = self._beside(size)
        placed = self._backend.planner(graph).within(None if left is None else left - beside)
        return replace(self._one, batch_size=size, network_bytes=placed.memory_bytes + beside)

    def _beside(self, size: int) -> int:
        """Bytes in which rows are computed that fill no batch of a size: one by one."""
        return 0 if self._one.because or size == 1 else self._row_arena_bytes

    def _graph(self, rows: Mapping[str, Shape], count: int) -> Graph:
        return self._backend.graph(tuple((count, *shape) for shape in rows.values()))

    def _mixed(self, rows: Mapping[str, Shape]) -> str:
        """Why a row's bits in a batch would differ from those alone; empty if they do not."""
        try:
            graph = self._graph(rows, 2)
        except (ModelError, InputError) as error:
            return f"the file takes no batch of 2 ({error})"
        fields = receptive_fields(graph, [(name, 0) for name in graph.inputs])
        for field in fields.of_outputs():
            if field.state != Local(0, IDENTITY):
                because = getattr(field.state, "because", "another axis")
                return f"output {field.output!r} mixes the rows of a batch ({because})"
        for name in graph.outputs:
            if graph.types[name].shape[:1] != (2,):
                return f"output {name!r} has no batch axis"
        return ""

    def _beyond(self, size: int, needed: int) -> BudgetError:
        return BudgetError(
            f"batches of {counted(size, 'row')} need {counted(needed, 'byte')} "
            f"({format_bytes(needed)}), the limit is {format_bytes(self._limit or 0)}; give "
            f"memory_limit={needed} or more",
            needed,
        )


def _one_by_one(backend: CpuBackend, graph: Graph) -> str:
    """Why the file, or what it computes, has no batches; empty if it may have."""
    if graph.late:
        return "how large its values are depends on the data"
    fixed = [each for each in backend.model.inputs if each.shape and each.shape[0] == 1]
    return f"the file fixes the batch of {fixed[0].name!r} to 1" if fixed else ""


def _predicted_ns(placed: PlacedPlan) -> int:
    return sum(placed.step_estimates())
