"""Runs of a plan of one layer on a user's arrays, whatever it convolves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from leanconv.api.conv_arguments import fitting_array
from leanconv.errors import InputError
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.unpicklable import Unpicklable
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import check_residual
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import DType


class ArrayPlan(Unpicklable):
    """A plan of one layer: each run checks the arrays that it is given."""

    def _bind(
        self,
        spec: ConvSpec | TransposedSpec,
        x: DType,
        y: DType,
        new: Callable[[], tuple[np.ndarray, int]],
        run: Callable[[Sequence[int]], object],
    ) -> None:
        """Say what runs.

        Args:
            spec: of the layer.
            x, y: types of input and output.
            new: makes an array for y, and gives its address.
            run: takes the addresses of x, of the residual if the layer adds one, and of y.
        """
        self._new, self._run = new, run
        self._x, self._y = (spec.input_shape, x), (spec.output_shape, y)
        self._adds = isinstance(spec, ConvSpec) and spec.residual
        self._find_x, self._find_added = Lookup(*self._x), Lookup(*self._y)
        self._find_out = Lookup(*self._y, writeable=True)
        self._extents = tuple(prod(shape) * dtype.bytes for shape, dtype in (self._x, self._y))

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        """Convolve.

        Args:
            x: the input, of the planned shape and dtype; contiguous arrays are read in place.
            out: where to write y: contiguous, and no part of x; a new array if None.
            residual: of y's shape, if the plan adds one; it may be `out`, but no part of it.

        Returns:
            y, of int32 where x is of bytes.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        # What kernels read and write in place needs a native look each.
        read = self._find_x(x) if self._adds == (residual is not None) else 0
        added = self._find_added(residual) if read and self._adds else 0
        if out is None and read and (added or not self._adds):
            out, write = self._new()
            self._run((read, added, write) if added else (read, write))
            return out
        if read and not self._adds and (write := self._find_out(out)):
            x_bytes, y_bytes = self._extents
            if write + y_bytes <= read or read + x_bytes <= write:
                self._run((read, write))
                assert out is not None
                return out
        return self._checked(x, out, residual)

    def _checked(
        self, x: np.ndarray, out: np.ndarray | None, residual: np.ndarray | None
    ) -> np.ndarray:
        """Run on any arrays, with copies of those that lie otherwise than kernels read them."""
        arrays = [fitting_array("x", x, *self._x)]
        check_residual(self._adds, residual is not None)
        if residual is not None:
            arrays.append(fitting_array("residual", residual, *self._y))
        if out is None:
            out, _ = self._new()
        else:
            self._check_output(out, arrays)
        self._run([array.ctypes.data for array in (*arrays, out)])
        return out

    def _check_output(self, out: np.ndarray, inputs: Sequence[np.ndarray]) -> None:
        """Check the array of the result; `inputs` are x and the residual, if there is one."""
        checked = fitting_array("out", out, *self._y)
        if checked is not out or not out.flags.writeable:
            raise InputError("out is not contiguous and writeable; expected an array that is")
        if np.may_share_memory(out, inputs[0]):
            raise InputError("out shares memory with x; expected an array of its own")
        for residual in inputs[1:]:
            if np.may_share_memory(out, residual) and out.ctypes.data != residual.ctypes.data:
                raise InputError(
                    "out shares memory with a part of residual; expected the same array or another "
                    "one"
                )
