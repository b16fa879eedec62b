"""A network over a dataset of Ray: the arguments of `map_batches`, and the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import ray
import ray.data

from leanconv.api.network import Network
from leanconv.errors import InputError, SpecError, short
from leanconv.ray.batch_plan import BatchPlan, checked_backend, plan_batches
from leanconv.ray.predictor import Predictor

_PROCESS_BYTES = 160 * 2**20  # of a process of Ray with NumPy, Arrow and leanconv


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
        dataset: whose rows hold one image, or what else the network takes, without a batch axis.
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
    """What `dataset.map_batches(leanconv.ray.Predictor, **arguments(net, plan))` is called with.

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
    """How many actors, as Ray is told."""
    if actors is None:
        return ray.data.ActorPoolStrategy(min_size=1)
    least, most = actors if isinstance(actors, tuple) and len(actors) == 2 else (actors, actors)
    if not all(isinstance(n, Integral) for n in (least, most)) or not 1 <= least <= most:
        raise SpecError(f"actors is {short(actors)}; expected a number, or (least, most)")
    return ray.data.ActorPoolStrategy(min_size=int(least), max_size=int(most))
