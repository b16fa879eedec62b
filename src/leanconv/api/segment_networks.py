"""Networks that are compiled in a run, of what lies behind stages that depend on values.

They are kept for later runs, the least recently used ones as long as there is room. Where the
memory is limited, arrays, weights and arenas together stay within what the limit leaves to a run:
each network has one plan then, so that what is kept can be counted and freed one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.api.network import Network
from leanconv.errors import BudgetError, LeanConvError, UnsupportedError
from leanconv.graph.limits import RunBudget
from leanconv.graph.network_inputs import is_small
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model
from leanconv.graph.segments import Segment
from leanconv.types import DType, as_dtype
from leanconv.units import format_bytes

_MOST_KEPT = 32  # networks


class SegmentNetworks:
    """The parts of a network that are compiled in a run, as networks of their own.

    Args:
        model: the file's.
        dtype: in which the network computes.
        make: makes a network, within a memory limit or without one; it calls a function with the
            bytes of each plan before they are set aside.
        cache_bytes: the most that all of them may hold together, where no memory limit says less.
    """

    def __init__(
        self,
        model: Model,
        dtype: DType,
        make: Callable[[Model, int | None, Callable[[int], None]], Network],
        cache_bytes: int,
    ) -> None:
        self._model, self._dtype, self._make = model, dtype, make
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[Hashable, Network] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Weights and arenas of the plans in use."""
        return sum(network.used_bytes for network in self._networks())

    def give_back(self, wanted: int) -> None:
        """Free at least as many bytes, or all: what was used least recently goes first."""
        while wanted > 0 and (oldest := self._dropped()):
            wanted -= oldest.used_bytes

    def run(self, segment: Segment, budget: RunBudget) -> Mapping[str, np.ndarray]:
        """The outputs by name; see `graph.segments.Segments`."""
        room = budget.room
        if room is None:
            network = self._of_any_size(segment)
        else:
            network = self._within(segment, room, budget.used)
        budget.expect(_result_bytes(network))
        return network.run(segment.inputs)

    def _of_any_size(self, segment: Segment) -> Network:
        """A network whose inputs may have any extents, planned for those at hand."""
        key = _key(segment, exact=False)
        network = self._kept.pop(key, None)
        network = network or self._make(self._part(segment), None, lambda _bytes: None)
        network.bind(_given(segment))
        self._keep(key, network)
        held = sum(each.kept_bytes for each in self._networks())
        while held > self._cache_bytes and len(self._kept) > 1 and (oldest := self._dropped()):
            held -= oldest.kept_bytes
        return network

    def _within(self, segment: Segment, room: int, used: dict[Hashable, None]) -> Network:
        """A network for inputs as they are, which fits into the room with its results.

        It is planned beside those that the run has used; where it does not fit, the oldest of them
        go. What earlier runs have left goes before, and decides nothing. The room is rounded where
        that is enough, so that most runs find a plan.

        Args:
            segment: what is computed.
            room: bytes beside arrays.
            used: keys of the networks that the run has used, in order; this one's is added.
        """
        facts = _key(segment, exact=True)
        own = [each.used_bytes for each in map(self._kept.get, used) if each is not None]
        *beside, most = (_rounded(room - sum(own[gone:])) for gone in range(len(own) + 1))
        if (facts, room) in self._kept:
            most = room  # no round number was enough
        for bytes_left in (*beside, most):
            network = self._kept_or_planned(segment, (facts, bytes_left), room)
            if network is not None:
                most = bytes_left
                break
        else:
            most, network = room, self._planned(segment, room, room)
        self._keep((facts, most), network)
        used.pop((facts, most), None)
        used[facts, most] = None
        return network

    def _kept_or_planned(
        self, segment: Segment, key: tuple[Hashable, int], room: int
    ) -> Network | None:
        """The network for so many bytes as a key says; None where these are too few."""
        network = self._kept.pop(key, None)
        needed = network.used_bytes + _result_bytes(network) if network else 0
        self.give_back(self.bytes + needed - room)
        if network is None or needed > room:
            with suppress(BudgetError, UnsupportedError):
                return self._planned(segment, key[1], room)
            return None
        return network

    def _keep(self, key: Hashable, network: Network) -> None:
        """Keep a network, now the one that was used last."""
        self._kept[key] = network
        while len(self._kept) > _MOST_KEPT:
            self._dropped()

    # Other threads keep and drop networks between any two steps; no lock is held, since a signal
    # handler may run the same network.
    def _networks(self) -> tuple[Network, ...]:
        while True:
            try:
                return tuple(self._kept.values())
            except RuntimeError:  # another thread has changed them meanwhile
                continue

    def _dropped(self) -> Network | None:
        """Remove the network that was used least recently, and return it; None if there is none."""
        try:
            return self._kept.popitem(last=False)[1]
        except KeyError:
            return None

    def _planned(self, segment: Segment, most: int, room: int) -> Network:
        """A new network that takes, with its results, at most `most` bytes.

        Others are freed, before it is in memory, until all fit into the room.

        Raises:
            UnsupportedError: the network takes more.
            BudgetError: no plan keeps the error that is accepted.
        """
        part, given, results = self._part(segment), _given(segment), 0

        def make_room(needed: int) -> None:
            self.give_back(self.bytes + needed + results - room)

        while True:
            network = None  # of the results' bytes nothing was known
            try:
                network = self._make(part, most - results, make_room)
                network.bind(given)
            except BudgetError as error:
                raise _refused(segment, error, most, results) from error
            results = _result_bytes(network)
            if network.used_bytes + results <= most:
                make_room(network.used_bytes)
                return network

    def _part(self, segment: Segment) -> Model:
        nothing = (None,) * len(segment.outputs)
        return replace(
            self._model,
            inputs=tuple(
                ModelInput(name, self._declared(array), (None,) * array.ndim)
                for name, array in segment.inputs.items()
            ),
            outputs=segment.outputs,
            output_shapes=nothing,
            output_dtypes=nothing,
            opset=segment.opset,
            nodes=segment.nodes,
            constants=MappingProxyType(dict(segment.constants)),
        )

    def _declared(self, array: np.ndarray) -> DType:
        """The type that a file would give an array: that of float32 which has been promoted."""
        kind = as_dtype(array.dtype)
        return self._model.dtype if kind == self._dtype else kind


def _rounded(room: int) -> int:
    """Return a number of bytes below the room, or it: one for rooms that differ by little."""
    step = 1 << max(0, room.bit_length() - 4)
    return room // step * step


def _refused(segment: Segment, error: BudgetError, room: int, results: int) -> LeanConvError:
    """The error to raise for a segment that does not fit."""
    if error.smallest_error is not None:
        return error
    operations = ", ".join(dict.fromkeys(node.op for node in segment.nodes))
    least = error.smallest_bytes + results
    return UnsupportedError(
        f"what is compiled in this run ({operations}) takes at least {format_bytes(least)} of "
        f"memory; expected at most {format_bytes(max(0, room))}, as the memory limit leaves beside "
        "the network and arrays: inputs that give fewer or smaller results, or a larger limit"
    )


def _result_bytes(network: Network) -> int:
    """Bytes of the results whose extents are known before the run."""
    return sum(kind.bytes for kind in network.plan.outputs.values() if kind is not None)


def _given(segment: Segment) -> Mapping[str, Any]:
    """Return `Network.bind`'s arguments for a segment: shapes, and values of small inputs."""
    return {
        name: array if is_small((None,) * array.ndim, as_dtype(array.dtype)) else array.shape
        for name, array in segment.inputs.items()
    }


def _key(segment: Segment, exact: bool) -> Hashable:
    """Return a network's key: nodes, constants, and ranks or, if exact, shapes and values."""
    facts: list[Hashable] = [array_key(segment.constants[name]) for name in segment.known]
    for name, array in _given(segment).items():
        if exact:
            facts.append(array_key(array) if isinstance(array, np.ndarray) else array)
        else:
            facts.append(segment.inputs[name].ndim)
    return segment.nodes, segment.known, tuple(segment.inputs), tuple(facts)


def array_key(array: np.ndarray) -> Hashable:
    """Return a key that only equal arrays share."""
    return array.dtype.str, array.shape, array.tobytes()
