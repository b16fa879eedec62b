"""Kernels without the numbers of their extents, and with symbols for them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leanconv.codegen.kernel import Kernel
from leanconv.symbolic import Mark, Symbol, Trace, Values


def split(kernel: Kernel) -> tuple[Any, Values]:
    """A kernel's skeleton, which is all but its extents, as a key; and the extents' values."""
    if not kernel.VARIES:
        return kernel, ()
    values: list[float] = []

    def extent(value: float) -> type:
        values.append(value)
        return type(value)

    return _mapped(kernel, None, extent, _key, _record_key), tuple(values)


def lifted(kernel: Kernel, trace: Trace) -> Kernel:
    """A kernel with symbols for its extents, in the order of `split`'s values."""
    if not kernel.VARIES:
        return kernel
    count = itertools.count()

    def extent(value: float) -> Symbol:
        return trace.variable(next(count), value)

    made: Kernel = _mapped(kernel, None, extent, lambda value: value, _record)
    return made


def extent_names(kernel: Kernel) -> list[str]:
    """The extents as a person finds them in the kernel: `outputs`, `window.x[1]`."""
    names: list[str] = []

    def named(value: Any, mark: Mark | None, path: str) -> None:
        if mark and _is_lifted(value, mark):
            names.append(path)
        elif type(value) is tuple:
            for place, (item, each) in enumerate(zip(value, _marks(mark, len(value)), strict=True)):
                named(item, each, f"{path}[{place}]")
        else:
            for name, each in _fields(type(value)) or ():
                named(getattr(value, name), each, f"{path}.{name}" if path else name)

    if kernel.VARIES:
        named(kernel, None, "")
    return names


_Record = Callable[[type, Sequence[tuple[str, Any]]], Any]


def _mapped(
    value: Any,
    mark: Mark | None,
    extent: Callable[[float], Any],
    other: Callable[[Any], Any],
    record: _Record,
) -> Any:
    """A value with something else for its extents, other leaves and records, each in order."""
    if mark and _is_lifted(value, mark):
        return extent(value)
    kind = type(value)
    if kind is tuple:
        marks = _marks(mark, len(value))
        return tuple(
            [_mapped(each, m, extent, other, record) for each, m in zip(value, marks, strict=True)]
        )
    fields = _fields(kind)
    if fields is None:
        return other(value)
    return record(
        kind,
        [(name, _mapped(getattr(value, name), m, extent, other, record)) for name, m in fields],
    )


def _key(value: Any) -> Any:
    return repr(value) if type(value) is float else value  # 0.0 and -0.0 are two


def _record_key(kind: type, items: Sequence[tuple[str, Any]]) -> Any:
    return (kind, *[item for _, item in items])


def _record(kind: type, items: Sequence[tuple[str, Any]]) -> Any:
    made: Any = object.__new__(kind)
    made.__dict__.update(items)
    return made


def _is_lifted(value: object, mark: Mark) -> bool:
    """Whether this value of an extent becomes a symbol."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and (mark is Mark.COUNT or value not in (0, 1))


def _marks(mark: Mark | None, count: int) -> list[Mark | None]:
    """Those of the items of a tuple that is marked so."""
    return [mark] * (count - 1) + [None] if mark is Mark.STRIDES else [mark] * count


_fields_of: dict[type, tuple[tuple[str, Mark | None], ...] | None] = {}
_NAME = re.compile(r"\w+")


def _fields(kind: type) -> tuple[tuple[str, Mark | None], ...] | None:
    """A dataclass' fields and their marks; None for other types."""
    if kind not in _fields_of:
        found = None
        if dataclasses.is_dataclass(kind):
            names = ChainMap(*(vars(sys.modules[base.__module__]) for base in kind.__mro__))
            found = tuple((f.name, _mark(f.type, names)) for f in dataclasses.fields(kind))
        _fields_of[kind] = found
    return _fields_of[kind]


def _mark(annotation: Any, names: Mapping[str, Any]) -> Mark | None:
    """The mark of what an annotation names, such as `tuple[Extents, ...]`.

    It is a text. Of that no more is evaluated than its names: a load looks at hundreds of fields.
    """
    assert isinstance(annotation, str), "the module lacks `from __future__ import annotations`"
    named = (names.get(name) for name in _NAME.findall(annotation))
    marks = (mark for each in named for mark in getattr(each, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, Mark)), None)
