"""Arrays bound to a session's inputs and outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.onnxruntime.exceptions import BindingError
from leanconv.onnxruntime.values import OrtValue, bound_dtype, check_device


class IOBinding:
    """Which arrays a run reads, and where its outputs go.

    Args:
        session: whose names are bound; the run checks them.

    Attributes:
        feed: the arrays that are bound to inputs, by name.
    """

    def __init__(self, session: object) -> None:
        self.feed: dict[str, np.ndarray] = {}
        self._bound: dict[str, OrtValue | None] = {}  # None: a new array each time
        self._results: list[OrtValue] = []

    # -- inputs ----------------------------------------------------------------------------
    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array to an input."""
        self.feed[name] = np.asarray(arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an OrtValue's array to an input."""
        self.feed[name] = ortvalue.numpy()

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory to an input; it must stay there until the last run.

        Raises:
            Fail: the device is not the CPU.
            BindingError: leanconv has no such elements.
        """
        self.feed[name] = _at(device_type, element_type, shape, buffer_ptr)

    def synchronize_inputs(self) -> None:
        """Nothing: runs end when they return."""

    def clear_binding_inputs(self) -> None:
        """Bind nothing to the inputs."""
        self.feed.clear()

    # -- outputs ---------------------------------------------------------------------------
    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind memory to an output, or no memory: then each run makes a new array.

        Raises:
            Fail: the device is not the CPU.
            BindingError: memory is given without its shape and type.
        """
        check_device(device_type)
        if buffer_ptr is None:
            self._bound[name] = None
            return
        if shape is None or element_type is None:
            raise BindingError.of(
                f"output {name!r} got an address without a shape or a type; expected both"
            )
        self._bound[name] = OrtValue.ortvalue_from_numpy(
            _at(device_type, element_type, shape, buffer_ptr)
        )

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Have each run write an output into an OrtValue's array."""
        self._bound[name] = ortvalue

    def synchronize_outputs(self) -> None:
        """Nothing: runs end when they return."""

    def clear_binding_outputs(self) -> None:
        """Bind nothing to the outputs."""
        self._bound.clear()
        self._results.clear()

    # -- runs ------------------------------------------------------------------------------
    @property
    def wanted(self) -> list[str]:
        """The outputs that are bound, in the order in which they were."""
        return list(self._bound)

    def receive(self, results: Sequence[np.ndarray]) -> None:
        """Take the outputs of a run: those that are bound, else all.

        Raises:
            BindingError: an output is of another shape or type than what is bound to it.
        """
        bound = list(self._bound.values()) or [None] * len(results)
        for place, result in zip(bound, results, strict=True):
            if place is not None:
                place.update_inplace(result)
        self._results = [
            OrtValue.ortvalue_from_numpy(result) if place is None else place
            for place, result in zip(bound, results, strict=True)
        ]

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """The outputs of the last run, as arrays of their own."""
        return [value.numpy().copy() for value in self._results]


def _at(device_type: str, element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    """An array over memory that somebody else owns."""
    check_device(device_type)
    dtype = np.dtype(bound_dtype(element_type).numpy)
    extents = tuple(int(n) for n in shape)
    count = int(np.prod(extents, dtype=np.int64)) * dtype.itemsize
    if not count:
        return np.empty(extents, dtype)
    memory = (ctypes.c_char * count).from_address(int(address))
    array: np.ndarray = np.frombuffer(memoryview(memory), dtype).reshape(extents)
    return array
