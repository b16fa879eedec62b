"""The address of an array's elements, read from NumPy's C structure in one native call.

A network pushes Python's and NumPy's own code and objects out of the caches. Right after a
run of MobileNetV2, `array.ctypes.data` takes 67 us, `__array_interface__` 55, `flags` 25; a look at
the structure takes 6, as any call does. The structure is part of NumPy's binary interface: every
compiled extension reads it by these offsets.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

import numpy as np

from leanconv.codegen.compiler import load_text
from leanconv.codegen.linking import Library
from leanconv.half_arrays import numpy_dtype
from leanconv.types import DType

_HEAD = object.__basicsize__  # of every object; its type is the last field
_NUMPY = ("1", "2")  # major versions with this structure
_READABLE, _WRITEABLE = 0x101, 0x400  # NPY_ARRAY_C_CONTIGUOUS, _ALIGNED; NPY_ARRAY_WRITEABLE

_TEXT = """
; The data of an array of that type, dtype and shape, contiguous and aligned; 0 of any other object.
; %want: type, dtype, flags, dimensions, extents.
define i64 @look(ptr %object, ptr %want) nounwind {{
entry:
  %type.at = getelementptr i8, ptr %object, i64 {type}
  %type = load i64, ptr %type.at
  %type.want = load i64, ptr %want
  %is.array = icmp eq i64 %type, %type.want
  br i1 %is.array, label %array, label %other
array:
  %dtype.at = getelementptr i8, ptr %object, i64 {dtype}
  %dtype = load i64, ptr %dtype.at
  %dtype.want.at = getelementptr i64, ptr %want, i64 1
  %dtype.want = load i64, ptr %dtype.want.at
  %is.dtype = icmp eq i64 %dtype, %dtype.want
  %count.at = getelementptr i8, ptr %object, i64 {count}
  %count.short = load i32, ptr %count.at
  %count = sext i32 %count.short to i64
  %count.want.at = getelementptr i64, ptr %want, i64 3
  %count.want = load i64, ptr %count.want.at
  %is.count = icmp eq i64 %count, %count.want
  %flags.at = getelementptr i8, ptr %object, i64 {flags}
  %flags = load i32, ptr %flags.at
  %flags.want.at = getelementptr i64, ptr %want, i64 2
  %flags.want = load i32, ptr %flags.want.at
  %flags.both = and i32 %flags, %flags.want
  %is.fit = icmp eq i32 %flags.both, %flags.want
  %a = and i1 %is.dtype, %is.count
  %b = and i1 %a, %is.fit
  br i1 %b, label %extents, label %other
extents:
  %data.at = getelementptr i8, ptr %object, i64 {data}
  %data = load i64, ptr %data.at
  %shape.at = getelementptr i8, ptr %object, i64 {shape}
  %shape = load ptr, ptr %shape.at
  %wanted = getelementptr i64, ptr %want, i64 4
  br label %next
next:
  %i = phi i64 [0, %extents], [%following, %same]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %compare, label %found
compare:
  %extent.at = getelementptr i64, ptr %shape, i64 %i
  %extent = load i64, ptr %extent.at
  %extent.want.at = getelementptr i64, ptr %wanted, i64 %i
  %extent.want = load i64, ptr %extent.want.at
  %is.extent = icmp eq i64 %extent, %extent.want
  %is.any = icmp eq i64 %extent.want, -1
  %is.fitting = or i1 %is.extent, %is.any
  br i1 %is.fitting, label %same, label %other
same:
  %following = add i64 %i, 1
  br label %next
found:
  ret i64 %data
other:
  ret i64 0
}}
"""

_Look = Callable[[int, int], int]


class Lookup:
    """Finds the data of arrays of one dtype and shape.

    Args:
        shape, dtype: of the arrays; an extent of -1 stands for any.
        writeable: whether they are to be written.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DType, writeable: bool = False) -> None:
        self._dtype = numpy_dtype(dtype)
        flags = _READABLE | (_WRITEABLE if writeable else 0)
        words = (id(np.ndarray), id(self._dtype), flags, len(shape), *shape)
        self._want = (ctypes.c_int64 * len(words))(*words)
        self._address = ctypes.addressof(self._want)
        self._look, self._library = _native()

    def __call__(self, array: object) -> int:
        """The address of an array's first element.

        Returns:
            0 if the object is no array of this dtype and shape that is contiguous and aligned (and
            writeable), or if this cannot decide it.
        """
        return self._look(id(array), self._address)


@functools.cache
def _native() -> tuple[_Look, Library | None]:
    """The native function and its code; one that finds nothing where the structure may differ."""
    if sys.implementation.name != "cpython" or np.__version__.split(".")[0] not in _NUMPY:
        return _nothing, None
    fields = {"data": 0, "count": 8, "shape": 16, "dtype": 40, "flags": 48, "type": -8}
    offsets = {name: _HEAD + offset for name, offset in fields.items()}
    library = load_text(_TEXT.format(**offsets), ["look"], "arrays")
    # Python's lock is kept: nobody changes the array meanwhile.
    function = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    return function(library.address("look")), library


def _nothing(array: int, want: int) -> int:
    del array, want
    return 0
