"""Networks over Ray's datasets: `leanconv.ray.map_network(net, dataset)`.

Ray starts actors, hands them batches of rows and starts others where some are killed; here is what
it cannot know: how many rows fit a memory limit, whether rows may be computed together, and that
every actor has the bits of one process. It needs the extra `leanconv[ray]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from numbers import Integral
from typing import Any

from leanconv.errors import MissingExtraError

if find_spec("ray") is None or find_spec("pyarrow") is None:
    raise MissingExtraError(
        "leanconv.ray needs the packages ray and pyarrow: pip install 'leanconv[ray]'"
    )

import numpy as np
import ray
import ray.data

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import InputSpec, Shape
from leanconv.api.network import Network
from leanconv.errors import InputError, SpecError, short
from leanconv.ray.batch_plan import BatchPlan, checked_backend, plan_batches
from leanconv.units import type_text

__all__ = ["BatchPlan", "Predictor", "arguments", "map_network", "plan_batches"]

Batch = Mapping[str, np.ndarray]
_PROCESS_BYTES = 160 * 2**20  # of a process of Ray with NumPy, Arrow and leanconv


class Predictor:
    """A network as `Dataset.map_batches` takes it, with arguments of `leanconv.ray.arguments`.

    Each actor has one, and so one copy of the packed weights. A row of the result has the bits of
    `net(row[np.newaxis])` in any process with the same kind of processor, whatever rows it is
    handed with.

    Args:
        net: the network, or a reference to its backend in Ray's store.
        plan: of its batches.
        columns: of the dataset that inputs are read from, by input; those of its name by default.
        same_bits: whether a processor of another kind than the plan's is refused.

    Raises:
        SpecError: this processor is of another kind than the plan's.
    """

    def __init__(
        self,
        net: Network | CpuBackend | ray.ObjectRef,
        plan: BatchPlan,
        columns: Mapping[str, str] | None = None,
        same_bits: bool = True,
    ) -> None:
        given = ray.get(net) if isinstance(net, ray.ObjectRef) else net
        backend = checked_backend(given).copied(None)
        if same_bits and backend.target != plan.target:
            here, there = backend.target, plan.target
            raise SpecError(
                f"this processor ({here.cpu}, {here.isa}) is not of the kind that the batches were "
                f"planned for ({there.cpu}, {there.isa}), and rounds in another order; expected "
                "the same: set LEANCONV_TARGET, such as haswell, for the driver and all workers "
                "(runtime_env), or give same_bits=False"
            )
        if plan.limit is not None:
            own = backend.options.memory_limit
            left = plan.limit - plan.array_bytes
            backend.limit_to(left if own is None else min(own, left))
        self._net, self._plan = Network(backend), plan
        self._columns = [(columns or {}).get(spec.name, spec.name) for spec in self._net.inputs]

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The batch without the columns that the network read, and with its outputs.

        Raises:
            InputError: a column is missing, does not fit, or has the name of an output.
        """
        specs = self._net.inputs
        arrays = [self._column(batch, *pair) for pair in zip(self._columns, specs, strict=True)]
        results = self._results(arrays)
        kept = {name: batch[name] for name in batch if name not in self._columns}
        for name in results:
            if name in kept:
                raise InputError(
                    f"the dataset has a column {name!r}, as an output of the network is called; "
                    "expected another name: rename it with dataset.rename_columns"
                )
        return {**kept, **results}

    def _column(self, batch: Batch, name: str, spec: InputSpec) -> np.ndarray:
        if name not in batch:
            raise InputError(
                f"the dataset has no column {name!r} for input {spec}; it has {', '.join(batch)}; "
                f"give columns={{{spec.name!r}: …}}"
            )
        return batch[name]

    def _results(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, row by row; rows of several shapes as objects."""
        count = len(arrays[0])
        found: dict[str, list[tuple[Sequence[int], np.ndarray | list[np.ndarray]]]] = {}
        for rows in _alike(arrays):
            taken = [_stacked(array, rows) for array in arrays]
            for name, result in self._computed(taken).items():
                found.setdefault(name, []).append((rows, result))
        if not found:
            return {spec.name: self._no_rows(spec) for spec in self._net.outputs}
        return {name: _in_order(parts, count) for name, parts in found.items()}

    def _computed(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray | list[np.ndarray]]:
        """The outputs for rows of one shape each: a batch, or a list where rows differ."""
        specs = self._net.inputs
        given = [_fitting(*pair) for pair in zip(arrays, specs, strict=True)]
        names = [spec.name for spec in specs]
        parts: list[dict[str, np.ndarray]] = []
        first, count = 0, len(given[0])
        while first < count:
            after = first + self._piece(count - first)
            parts.append(
                self._net.run({n: x[first:after] for n, x in zip(names, given, strict=True)})
            )
            first = after
        return {name: self._joined([part[name] for part in parts], name) for name in parts[0]}

    def _piece(self, left: int) -> int:
        """Return how many of the rows left to compute next: a batch or one, as is planned."""
        whole = not self._plan.because and left >= self._plan.batch_size
        return self._plan.batch_size if whole else 1

    def _is_row(self, name: str) -> bool:
        """Return whether each result is a row by itself: it has no batch axis."""
        known = self._plan.outputs[name]
        return bool(self._plan.because) and (known is None or known.shape[:1] != (1,))

    def _no_rows(self, spec: InputSpec) -> np.ndarray:
        """The output for no rows; rows whose shape follows from values have none here."""
        known = self._plan.outputs[spec.name]
        shape = () if known is None else known.shape if self._is_row(spec.name) else known.shape[1:]
        return np.empty((0, *shape), spec.dtype.numpy)

    def _joined(self, parts: list[np.ndarray], name: str) -> np.ndarray | list[np.ndarray]:
        if self._is_row(name):
            return parts
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _alike(arrays: Sequence[np.ndarray]) -> Iterator[Sequence[int]]:
    """Numbers of rows whose arrays have the same shapes."""
    counts = {len(array) for array in arrays}
    if len(counts) != 1:
        raise InputError(f"columns of {sorted(counts)} rows; expected as many in all")
    (count,) = counts
    if all(array.dtype != object for array in arrays):
        if count:
            yield range(count)
        return
    found: dict[tuple[Shape, ...], list[int]] = {}
    for row in range(count):
        shapes = tuple(np.shape(array[row]) for array in arrays)
        found.setdefault(shapes, []).append(row)
    yield from found.values()


def _stacked(array: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    if array.dtype != object:
        return array if len(rows) == len(array) else array[list(rows)]
    return np.stack([np.asarray(array[row]) for row in rows])


def _fitting(array: np.ndarray, spec: InputSpec) -> np.ndarray:
    """Rows as the network takes them; integers that its floats hold exactly are converted.

    Raises:
        InputError: the rows do not fit.
    """
    wanted = np.dtype(spec.dtype.numpy)
    shape = array.shape
    if not spec.takes((1, *shape[1:])) and not spec.takes(shape):
        raise InputError(
            f"rows of {type_text(array.dtype, shape[1:])} for input {spec}; expected what fits "
            f"behind its batch axis; images are often turned: x.transpose(0, 3, 1, 2)"
        )
    if not np.can_cast(array.dtype, wanted, "safe"):
        raise InputError(
            f"rows of {array.dtype} for input {spec}; expected {wanted}, or what it holds exactly: "
            f"give x.astype({wanted.name!r}) in a map_batches before"
        )
    return np.ascontiguousarray(array, wanted)


def _in_order(
    parts: Sequence[tuple[Sequence[int], np.ndarray | list[np.ndarray]]], count: int
) -> np.ndarray:
    """Results of groups of rows, in the order of the rows."""
    (rows, first), *more = parts
    if not more and isinstance(first, np.ndarray):
        return first
    results: list[np.ndarray] = [np.empty(0)] * count
    for rows, part in parts:
        for row, result in zip(rows, part, strict=True):
            results[row] = result
    if len({result.shape for result in results}) == 1:
        return np.stack(results)
    held = np.empty(count, object)
    held[:] = results
    return held


def map_network(
    net: Network,
    dataset: ray.data.Dataset,
    *,
    columns: Mapping[str, str] | str | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
    memory_limit: int | str | None = None,
    batch_size: int | None = None,
    actors: int | tuple[int, int] | None = None,
    same_bits: bool = True,
    **more: Any,
) -> ray.data.Dataset:
    """Run a network over all rows of a dataset, lazily as Ray does.

    Every row gets the bits of `net(row[np.newaxis])` in this process. An actor is a process with
    the network's threads, of so many CPUs, and one copy of its packed weights. One that is killed
    is started again, and its batches are computed again.

    Args:
        net: for the CPU, loaded with `reproducible=True`; `threads=` says how many CPUs an actor
            takes.
        dataset: of rows with one image, or another input of the network, without a batch axis.
        columns: that inputs are read from, by input, or that of the only one; those of the inputs'
            names by default. The other columns are carried on.
        shapes, memory_limit, batch_size: as `plan_batches` takes them.
        actors: how many, or (least, most); by default from one to what the cluster has CPUs for.
        same_bits: whether an actor refuses a processor that is not of this one's kind.
        more: arguments of `map_batches`, such as `resources`.

    Returns:
        The dataset with the network's outputs as columns, in place of those that it read.

    Raises:
        SpecError, InputError, BudgetError: as `plan_batches` raises them.
    """
    plan = plan_batches(net, shapes=shapes, memory_limit=memory_limit, batch_size=batch_size)
    found = arguments(net, plan, columns=columns, actors=actors, same_bits=same_bits)
    return dataset.map_batches(Predictor, **{**found, **more})


def arguments(
    net: Network,
    plan: BatchPlan,
    *,
    columns: Mapping[str, str] | str | None = None,
    actors: int | tuple[int, int] | None = None,
    same_bits: bool = True,
) -> dict[str, Any]:
    """Return arguments for `dataset.map_batches(leanconv.ray.Predictor, **arguments(net, plan))`.

    Ray Data by itself starts actors that end again, and hands them their batches again, for ever.

    Args:
        net: the network; it is put into Ray's store, once for all actors of a machine.
        plan: of `plan_batches`.
        columns, actors, same_bits: as for `map_network`.
    """
    given = {
        "net": ray.put(checked_backend(net)),  # and not planned where it is unpickled
        "plan": plan,
        "columns": _checked_columns(net, columns),
        "same_bits": same_bits,
    }
    return {
        "fn_constructor_kwargs": given,
        "batch_size": plan.batch_size,
        "batch_format": "numpy",
        "zero_copy_batch": True,
        "compute": _pool(actors),
        "num_cpus": plan.threads,
        "memory": _PROCESS_BYTES + plan.memory_bytes,
    }


def _checked_columns(net: Network, columns: Any) -> dict[str, str]:
    names = [spec.name for spec in net.inputs]
    if columns is None:
        return {}
    if isinstance(columns, str):
        if len(names) != 1:
            raise InputError(f"columns is {columns!r}; expected one for each of {', '.join(names)}")
        return {names[0]: columns}
    if not isinstance(columns, Mapping):
        raise SpecError(f"columns is {short(columns)}; expected names of columns by input")
    unknown = sorted(set(map(str, columns)) - set(names))
    if unknown:
        raise InputError(
            f"columns has {unknown[0]!r}; expected names of inputs: {', '.join(names)}"
        )
    return {name: str(column) for name, column in columns.items()}


def _pool(actors: Any) -> ray.data.ActorPoolStrategy:
    """Return Ray's strategy for a number of actors."""
    if actors is None:
        return ray.data.ActorPoolStrategy(min_size=1)
    least, most = actors if isinstance(actors, tuple) and len(actors) == 2 else (actors, actors)
    if not all(isinstance(n, Integral) for n in (least, most)) or not 1 <= least <= most:
        raise SpecError(f"actors is {short(actors)}; expected a number, or (least, most)")
    return ray.data.ActorPoolStrategy(min_size=int(least), max_size=int(most))
