"""Forms: the compiled part of kernels, found for a kernel without emitting it again.

A form is the code of all kernels that differ only in extents: numbers that the code reads from the
argument table instead of naming them. A kernel's fields annotated `Extent`, `Extents`, `Count`,
`Counts`, `Sizes`, `Strides` (sizes of images, batches, strides between rows, planes and images) or
`Scalars` (factors) are replaced by symbols before it emits its code (`symbolic`):

    panels = ceil_div(self.outputs, 32)      another expression
    e.loop("panel", panels)                  a word: the code loads its bound at entry
    if self.outputs % 32:                    a guard: the code holds for the same answer only

The text of the code, the expressions of its words and the guards are the form. Extents 0 and 1 stay
numbers, for what they leave out of the code is worth a form of its own, unless the annotation is
`Count` or `Counts`. The variables of expressions are the kernel's extents, in order.

The forms of one process are found in three steps: the kernel is split into its skeleton, which is
everything but its extents, and their values (`split`); the skeleton has a short list of forms; the
form is the one whose guards the values answer as they did when it was emitted. Emission is
deterministic, so at most one does. Later processes read the forms of kernels that were loaded
before from the disk (`known_forms`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
import struct
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from leanconv.codegen.kernel import Kernel
from leanconv.symbolic import Guarded, Mark, Memo, Record, Symbol, Trace, Values
from leanconv.target import Target


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
    """Return a value with its extents, other leaves and records replaced, each in order."""
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
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and (mark is Mark.COUNT or value not in (0, 1))


def _marks(mark: Mark | None, count: int) -> list[Mark | None]:
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
    """Return the mark of the type that an annotation names, such as `tuple[Extents, ...]`.

    It is a text. Of that no more is evaluated than its names: a load looks at hundreds of fields.
    """
    assert isinstance(annotation, str), "the module lacks `from __future__ import annotations`"
    named = (names.get(name) for name in _NAME.findall(annotation))
    marks = (mark for each in named for mark in getattr(each, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, Mark)), None)


_MOST_SKELETONS = 4096  # of one process; a server of many models does not grow without end
_MOST_FORMS = 64  # of one skeleton
_FORMATS = {"i64": "<q", "double": "<d", "float": "<fxxxx"}
WORD_KINDS = frozenset(_FORMATS)


class Instance(NamedTuple):
    """A kernel as an instance of its form.

    Attributes:
        digest: of the form's text, in hexadecimal.
        words: before the kernel's argument table, as integers.
    """

    digest: str
    words: tuple[int, ...]


class FormRecord(NamedTuple):
    """A form as data: equal for equal forms, whichever process has made them.

    Attributes:
        digest: of the text.
        kinds: LLVM types of the words before the argument table, the first one nearest to it.
        numbers: the guards, and the words' expressions.
    """

    digest: str
    kinds: tuple[str, ...]
    numbers: Record


class Form:
    """The code of all kernels that differ only in extents.

    Args:
        record: its digest, words and guards.
    """

    def __init__(self, record: FormRecord) -> None:
        self.record, self.digest = record, record.digest
        self.numbers = Guarded(record.numbers)

    def at(self, values: Values) -> Instance | None:
        """Return the instance of this form for a kernel with extents of these values.

        None if a guard does not hold, or if a word is no number of its type.
        """
        found = self.numbers(values)
        if found is None:
            return None
        try:
            pairs = zip(found, self.record.kinds, strict=True)
            return Instance(self.digest, tuple([_bits(value, kind) for value, kind in pairs]))
        except (ValueError, OverflowError, struct.error):
            return None


def _bits(value: float, kind: str) -> int:
    """A word as the 64-bit integer of the same bits.

    Raises:
        ValueError, OverflowError, struct.error: it does not have that type.
    """
    number = int(value) if kind == "i64" else value
    (bits,) = struct.unpack("<q", struct.pack(_FORMATS[kind], number))
    return int(bits)


_forms: dict[tuple[Any, Target], Memo[Instance]] = {}


def known_instance(kernel: Kernel, target: Target) -> Instance | None:
    """The instance that a kernel is, if this process knows a form that serves it."""
    kept, values = split(kernel)
    memo = _forms.get((kept, target))
    return None if memo is None else memo.at(values)


def emitted_instance(kernel: Kernel, target: Target) -> tuple[Instance, str]:
    """Emit a kernel: its instance, and the LLVM IR of its form, which nobody keeps.

    The form takes the place of one that seemed to serve the kernel: emission is deterministic, so
    that one is equal, or was never emitted by these sources.
    """
    kept, values = split(kernel)
    text, trace = emitted(kernel, target)
    digest = hashlib.sha256(text.encode()).hexdigest()
    words, kinds = [word for word, _ in trace.words], tuple(kind for _, kind in trace.words)
    form = Form(FormRecord(digest, kinds, Record.of(trace.guards, words)))
    instance = form.at(values)
    assert instance is not None, f"{kernel.NAME}: the guards do not hold for what they come from"
    memo = _held(kept, target)
    memo.entries = [entry for entry in memo.entries if entry.at(values) is None]
    memo.keep(form)
    return instance, text


def instance_of(kernel: Kernel, target: Target) -> Instance:
    """The instance that a kernel is, of a form that is known or emitted now."""
    return known_instance(kernel, target) or emitted_instance(kernel, target)[0]


def forms_of_skeleton(kernel: Kernel, target: Target) -> tuple[Form, ...]:
    """The forms that this process knows of a kernel's skeleton."""
    memo = _forms.get((split(kernel)[0], target), _NONE)
    return tuple(form for form in memo.entries if isinstance(form, Form))


_NONE: Memo[Instance] = Memo(_MOST_FORMS)


def adopt(kernel: Kernel, target: Target, forms: Iterable[Form]) -> None:
    """Take forms that another process has emitted for a kernel's skeleton.

    Where this process knows the kernel's own, others that seem to serve it are none of it.
    """
    # One text may come of several answers to guards.
    known = {form.record for form in forms_of_skeleton(kernel, target)}
    skeleton, values = split(kernel)
    memo = _held(skeleton, target)
    served = memo.at(values) is not None
    for form in forms:
        if form.record not in known and not (served and form.at(values)):
            memo.keep(form)


def _held(kept: Any, target: Target) -> Memo[Instance]:
    if len(_forms) > _MOST_SKELETONS:
        _forms.clear()
    return _forms.setdefault((kept, target), Memo(_MOST_FORMS))


def emitted(kernel: Kernel, target: Target) -> tuple[str, Trace]:
    """Emit a kernel with symbols for its extents: the code of its form, and the guards of it."""
    trace = Trace()
    return lifted(kernel, trace).text(target), trace
