"""A compiled network and what NumPy computes after it, since that depends on values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from leanconv.api.fast_call import FastCall, Given
from leanconv.api.network import Network
from leanconv.graph.late import Tail
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.graph.segments import Segment
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.types import DType, as_dtype


class CompiledSegments:
    """The parts of a tail that are compiled in a run, as networks of their own.

    Args:
        model: the file's.
        dtype: in which the network computes.
        make: makes a network.
    """

    def __init__(self, model: Model, dtype: DType, make: Callable[[Model], Network]) -> None:
        self._model, self._dtype, self._make = model, dtype, make
        self._made: OrderedDict[Hashable, Network] = OrderedDict()

    def run(self, segment: Segment) -> Mapping[str, np.ndarray]:
        """The outputs by name."""
        known = tuple((n, array_key(segment.constants[n])) for n in segment.known)
        ranks = tuple((name, array.ndim) for name, array in segment.inputs.items())
        key = segment.nodes, known, ranks
        network = self._made.get(key)
        if network is None:
            network = self._made[key] = self._make(self._part(segment))
            while len(self._made) > _MOST_SEGMENTS:
                self._made.pop(next(iter(self._made)))
        return network.run(segment.inputs)

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


_MOST_SEGMENTS = 32


def array_key(array: np.ndarray) -> Hashable:
    """What equal arrays have in common."""
    return array.dtype.str, array.shape, array.tobytes()


class TailCall(FastCall):
    """A compiled network whose last outputs a tail computes.

    Args:
        given: what it is compiled for.
        network: gives what the tail reads.
        tail: what runs after it.
        outputs: names of what both give, in order.
        segments: compiles parts of the tail.
        most: bytes that arrays may take in a run; None where the plan bounds them already.
    """

    def __init__(
        self,
        given: Given,
        network: CompiledNetwork,
        tail: Tail,
        outputs: Sequence[str],
        segments: CompiledSegments,
        most: int | None,
    ) -> None:
        super().__init__(given, network)
        self._tail, self._outputs, self._segments = tail, outputs, segments
        self._most = most

    @property
    def used_bytes(self) -> int:
        """Bytes of weights and arena, and the most that the arrays behind them take in a run."""
        return super().used_bytes + self.plan.late_bytes

    def call(self, x: object) -> None:
        """Nothing: only the general path has a tail."""

    def call_all(self, arrays: Sequence[object]) -> None:
        """Nothing, either."""

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        values = dict(zip(self.given.names, arrays, strict=True))
        values.update(zip(self.plan.outputs, super().run(arrays), strict=True))
        made = self._tail.run(values, self._segments, self._most)
        return [made[name] if name in made else values[name] for name in self._outputs]
