"""A network bound and computed so that all its windows have the bits of the whole image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leanconv.api.cpu_backend import CpuBackend, received, sent
from leanconv.api.inputs import NOTHING_KNOWN, Known, Shape
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions
from leanconv.errors import LeanConvError, SpecError
from leanconv.graph.fields.receptive_fields import Field, receptive_fields
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import UNFUSED_PASSES, run_passes
from leanconv.graph.passes.fuse_blocks import fuse_blocks
from leanconv.graph.passes.store_in_halves import store_in_halves
from leanconv.graph.verify import verify
from leanconv.planner.decisions import Decision
from leanconv.planner.image_tiles.groups import fitted, pinned, slower_fused
from leanconv.planner.lowering import usual_decisions
from leanconv.runtime.calibration import alike, planning_target
from leanconv.target import Target
from leanconv.types import FLOAT32

_LIKELY = (1, 512)  # extents of a window: of its batch, and of its other axes


class TileBackend(CpuBackend):
    """A backend of a network whose bits do not depend on where its window lies.

    Pickled with its pins, it gives the same bits in other processes.

    Args:
        model, options, target: as for `CpuBackend`.
        pins, apart: how nodes are computed and which chains are not fused, where that is known.

    Attributes:
        pins: the choices for its nodes, whatever the shape.
    """

    def __init__(
        self,
        model: Model,
        options: NetworkOptions,
        target: Target | None = None,
        pins: tuple[Decision, ...] | None = None,
        apart: frozenset[str] | None = None,
    ) -> None:
        given = replace(
            options, memory_limit=None, reproducible=True, tune=False, stream_weights=False
        )
        super().__init__(model, given, target=target)
        self.pins, self._apart = pins, apart
        if pins is None and not options.algorithms:
            self._apart = self._kept_apart()

    def _bound(self, shapes: Mapping[str, Shape], known: Known = NOTHING_KNOWN) -> Graph:
        bound = self.model.bind(shapes, dtype=self.dtype, late=True, values=known)
        graph, half = run_passes(bound, UNFUSED_PASSES), self._options.precision
        if self._apart is not None:
            graph = verify(fuse_blocks(graph, self._apart))
        if half is None and self.dtype == FLOAT32:
            half = self.model.stored
        return graph if half is None else verify(store_in_halves(graph, half))

    def _kept_apart(self) -> frozenset[str] | None:
        """Find the chains of convolutions that are not to be fused in any window; None for all."""
        shapes = {}
        for each in self.model.inputs:
            extents = each.shape or ()
            likely = (n if isinstance(n, int) else _LIKELY[a > 1] for a, n in enumerate(extents))
            shapes[each.name] = tuple(likely)
        self._apart = frozenset()
        try:
            graph = self._bound(shapes)
        except LeanConvError:
            return None
        accuracy = self.accuracy.of_network(graph, self.target)
        usual = usual_decisions(graph, self.target, accuracy)
        return slower_fused(graph, self.target, accuracy, usual)

    def _decisions(self, graph: Graph) -> tuple[Decision, ...] | None:
        if self.pins is None:
            return self.decide(graph)
        return fitted(graph, self.target, self.accuracy.of_network(graph, self.target), self.pins)

    def decide(self, graph: Graph) -> tuple[Decision, ...]:
        """Decide for each node of a window how it is computed."""
        named = super()._decisions(graph)
        accuracy = self.accuracy.of_network(graph, self.target)
        decisions = usual_decisions(graph, self.target, accuracy) if named is None else named
        return pinned(graph, self.target, accuracy, decisions)

    def pinning(self, pins: tuple[Decision, ...]) -> TileBackend:
        """A backend with other pins, which shares weights and arena."""
        made = object.__new__(type(self))  # a copy would be made as a pickled one is
        made.__dict__.update(self.__dict__)
        made.pins = pins
        return made

    def with_threads(self, threads: int) -> TileBackend:
        """A backend with another number of threads, which shares nothing."""
        options = replace(self._options, threads=threads)
        return TileBackend(self.model, options, self.target, self.pins, self._apart)

    def __reduce__(self) -> tuple[Any, ...]:
        given = sent(self.model), self._options, self.target, self.pins, self._apart
        return _received, given


def _received(
    model: Model,
    options: NetworkOptions,
    sender: Target,
    pins: tuple[Decision, ...] | None,
    apart: frozenset[str] | None,
) -> TileBackend:
    """A backend that was pickled, with the sender's rates on a processor of its kind."""
    target = alike(sender, planning_target())
    return TileBackend(received(model), options, target, pins, apart)


def tile_backend(net: Network) -> TileBackend:
    """Return a backend that runs a network in windows, with its options but the memory limit.

    Raises:
        SpecError: the network runs on a GPU.
    """
    if not isinstance(net.backend, CpuBackend):
        raise SpecError("net runs on a GPU; expected one for the CPU: load it with device='cpu'")
    return TileBackend(net.backend.model, net.backend.options, net.backend.target)


def network_fields(
    net: Network, shapes: Mapping[str, Shape], values: Known = NOTHING_KNOWN
) -> list[Field]:
    """Return the receptive field of each output along the spatial axes of the inputs.

    Args:
        net: for the CPU.
        shapes: of all inputs; large enough that borders do not hide what repeats itself.
        values: of small inputs, which may decide what is computed.

    Raises:
        SpecError: the network runs on a GPU.
    """
    backend = tile_backend(net)
    given = tuple(shapes[each.name] for each in backend.model.inputs)
    return list(receptive_fields(backend.decided_graph(given, values)).of_outputs())
