"""How networks are called: `net(x)`, `net.run({name: x})`, and as onnxruntime's sessions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from leanconv.graph.network_inputs import Names

if TYPE_CHECKING:
    from leanconv.api.backend import DeviceTensor

_NOTHING: Any = object()


class CalledByName:
    """A network whose inputs and outputs have names.

    Args:
        names: of its inputs and outputs.
    """

    def __init__(self, names: Names) -> None:
        self._names = names

    # -- running ---------------------------------------------------------------------------
    @overload
    def __call__(
        self, x: np.ndarray = ..., /, *more: np.ndarray, **named: np.ndarray
    ) -> np.ndarray: ...

    @overload
    def __call__(self, x: DeviceTensor, /, *more: DeviceTensor, **named: DeviceTensor) -> Any: ...

    def __call__(self, x: Any = _NOTHING, /, *more: Any, **named: Any) -> Any:
        """Run a network of one output: `net(x)`, `net(a, b)`, `net(images=x)`, `net(a=a, b=b)`.

        Args:
            x, more: arrays for the first inputs, of the declared shapes and dtype; contiguous ones
                are read in place, others are copied.
            named: arrays for the other inputs, by name. Where a name is no identifier of Python,
                `net.run({"input.1": x})` takes it.

        Returns:
            The output, a new array.

        Raises:
            InputError: an array does not fit, an input is missing, unknown or given twice, or the
                network has several outputs: `net.run` gives them all.
        """
        if not (more or named):
            y = self._single(x)
            if y is not None:
                return y
        arrays = () if x is _NOTHING else (x, *more)
        return self._run(self._names.called(arrays, named))[0]

    @overload
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...

    @overload
    def run(
        self, output_names: Sequence[str] | None, /, input_feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]: ...

    @overload
    def run(
        self, *, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]: ...

    def run(
        self, inputs: Any = None, input_feed: Any = None, *, output_names: Any = None
    ) -> dict[str, np.ndarray] | list[np.ndarray]:
        """Run the network: `net.run({"x": x})`, or as in onnxruntime `net.run(None, {"x": x})`.

        Args:
            inputs: one array for each input, by name.
            output_names: the outputs wanted, in this order; None or an empty list for all. (The
                whole network runs all the same.)
            input_feed: `inputs`, where output names come first.

        Returns:
            All outputs by name, as a dictionary; where output names are given, be it None, a list
            of these outputs in their order. The arrays are new.

        Raises:
            InputError: an input is missing, unknown, or does not fit; or there is no such output.
        """
        if input_feed is not None or output_names is not None:
            names = inputs if output_names is None else output_names
            wanted = None if names is None else self._names.selected(names)
            found = self._run(self._names.ordered(input_feed))
            return found if wanted is None else [found[number] for number in wanted]
        arrays = self._names.ordered(inputs)
        y = self._single(arrays[0]) if len(arrays) == 1 else None
        results = self._run(arrays) if y is None else [y]
        return dict(zip(self._names.outputs, results, strict=True))

    def _single(self, x: object) -> Any | None:
        """The only output for the only input; None where the general path must be taken."""
        return None

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        """All outputs for all inputs, which nobody has looked at."""
        raise NotImplementedError
