"""Forms: what of a kernel is compiled, found for a kernel without emitting it again.

A form is the code of all kernels that differ only in extents (`extents` says how that is known).
The forms of one process are found in three steps: the kernel is split into its skeleton, which is
everything but its extents, and their values; the skeleton has a short list of forms; the form is
the one whose guards the values answer as they did when it was emitted. Emission is deterministic,
so at most one does. Later processes read the forms of kernels that were loaded before from the disk
(`form_entries`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from leanconv.codegen.kernel import Kernel
from leanconv.records import cached_property, dataclass
from leanconv.symbolic import Expression, Step, Trace, Values, guarded, steps_of
from leanconv.target import Target

_ANNOTATED = re.compile(r"\b(Count|Extents?|Sizes|Strides|Scalars)\b")
_MOST_SKELETONS = 4096  # of one process; a server of many models does not grow without end
_MOST_FORMS = 64  # of one skeleton
_FORMATS = {"i64": "<q", "double": "<d", "float": "<fxxxx"}
WORD_KINDS = frozenset(_FORMATS)


@dataclass(frozen=True, eq=False)
class Form:
    """The code of all kernels that differ only in extents.

    Attributes:
        digest: of the text.
        words: the expressions and LLVM types of the words before the argument table, the first
            one nearest to it.
        guards: expressions and what they must be.
    """

    digest: str
    words: tuple[tuple[Expression, str], ...]
    guards: Mapping[Expression, float]

    @cached_property
    def _values(self) -> Callable[[Values], Values | None]:
        return guarded(self.guards, (expression for expression, _ in self.words))

    @cached_property
    def record(self) -> FormRecord:
        """The form as data: equal for equal forms, whichever process has made them."""
        words = [expression for expression, _ in self.words]
        steps, numbers = steps_of((*self.guards, *words))
        guards = tuple(zip(numbers, self.guards.values(), strict=False))
        kinds = (kind for _, kind in self.words)
        pairs = tuple(zip(numbers[len(guards) :], kinds, strict=True))
        return FormRecord(self.digest, steps, pairs, guards)

    def words_for(self, values: Values) -> tuple[int, ...] | None:
        """The words for extents of these values, as integers.

        None if a guard does not hold, or if a word is no number of its type.
        """
        found = self._values(values)
        if found is None:
            return None
        try:
            kinds = (kind for _, kind in self.words)
            return tuple([_bits(value, kind) for value, kind in zip(found, kinds, strict=True)])
        except (OverflowError, struct.error):
            return None

    def serves(self, values: Values) -> bool:
        """Whether kernels of these extents are instances of the form."""
        return self.words_for(values) is not None


class FormRecord(NamedTuple):
    """A form as data.

    Attributes:
        digest: of the text.
        steps: of all expressions, see `expressions`.
        words: which steps they are, and their types.
        guards: which steps they are, and their numbers.
    """

    digest: str
    steps: tuple[Step, ...]
    words: tuple[tuple[int, str], ...]
    guards: tuple[tuple[int, float], ...]


def _bits(value: float, kind: str) -> int:
    """A word as the 64-bit integer of the same bits.

    Raises:
        OverflowError, struct.error: it does not have that type.
    """
    number = int(value) if kind == "i64" else value
    (bits,) = struct.unpack("<q", struct.pack(_FORMATS[kind], number))
    return int(bits)


class Instance(NamedTuple):
    """A kernel as an instance of its form.

    Attributes:
        digest: of the form's text, in hexadecimal.
        words: those before the kernel's argument table, as integers.
    """

    digest: str
    words: tuple[int, ...]


_forms: dict[tuple[Any, Target], list[Form]] = {}


def known_instance(kernel: Kernel, target: Target) -> Instance | None:
    """The instance that a kernel is, if this process knows a form that serves it."""
    kept, values = _split(kernel)
    for form in _forms.get((kept, target), ()):
        words = form.words_for(values)
        if words is not None:
            return Instance(form.digest, words)
    return None


def emitted_instance(kernel: Kernel, target: Target) -> tuple[Instance, str]:
    """Emit a kernel: the instance that it is, and the LLVM IR of its form, which nobody keeps.

    The form takes the place of one that seemed to serve the kernel: emission is deterministic, so
    that one is equal, or was never emitted by these sources.
    """
    kept, values = _split(kernel)
    text, trace = emitted(kernel, target)
    form = Form(hashlib.sha256(text.encode()).hexdigest(), tuple(trace.words), trace.guards)
    words = form.words_for(values)
    assert words is not None, f"{kernel.NAME}: the guards do not hold for what they come from"
    _hold(kept, target, [each for each in _held(kept, target) if not each.serves(values)] + [form])
    return Instance(form.digest, words), text


def instance_of(kernel: Kernel, target: Target) -> Instance:
    """The instance that a kernel is, of a form that is known or emitted now."""
    return known_instance(kernel, target) or emitted_instance(kernel, target)[0]


def forms_of_skeleton(kernel: Kernel, target: Target) -> tuple[Form, ...]:
    """The forms that this process knows of a kernel's skeleton."""
    return tuple(_held(skeleton(kernel), target))


def adopt(kernel: Kernel, target: Target, forms: Iterable[Form]) -> None:
    """Take forms that another process has emitted for a kernel's skeleton."""
    kept = skeleton(kernel)
    # One text may come of several answers to guards.
    known = {form.record: form for form in (*forms, *_held(kept, target))}
    _hold(kept, target, list(known.values()))


def _held(kept: Any, target: Target) -> Sequence[Form]:
    """The forms that are known of a skeleton."""
    return _forms.get((kept, target), ())


def _hold(kept: Any, target: Target, forms: list[Form]) -> None:
    """Know these forms of a skeleton, the last ones if they are many."""
    if len(_forms) > _MOST_SKELETONS:
        _forms.clear()
    _forms[kept, target] = forms[-_MOST_FORMS:]


def emitted(kernel: Kernel, target: Target) -> tuple[str, Trace]:
    """Emit a kernel with symbols for its extents: the code of its form, and what it asked."""
    trace = Trace()
    return _lifted(kernel, trace).text(target), trace


def skeleton(kernel: Kernel) -> Any:
    """All of a kernel but the values of its extents, as a key."""
    return _split(kernel)[0]


def extent_count(kernel: Kernel) -> int:
    """How many extents a kernel has, whose values are the variables of its forms."""
    return len(_split(kernel)[1])


def _split(kernel: Kernel) -> tuple[Any, Values]:
    """A kernel's skeleton, a key, and its extents' values."""
    values: list[float] = []

    def found(value: Any, kind: str = "") -> Any:
        if kind and _lifts(value, kind):
            values.append(value)
            return type(value)
        if type(value) is tuple:
            kinds = _kinds(kind, len(value))
            return tuple([found(item, each) for item, each in zip(value, kinds, strict=True)])
        fields = _fields(type(value))
        if fields is None:
            return repr(value) if type(value) is float else value  # 0.0 and -0.0 are two
        return (type(value), *[found(getattr(value, name), kind) for name, kind in fields])

    return (found(kernel) if kernel.VARIES else kernel), tuple(values)


def _lifted(kernel: Kernel, trace: Trace) -> Kernel:
    """A kernel with symbols for its extents, in the order of `_split`'s values."""
    if not kernel.VARIES:
        return kernel
    count = 0

    def lift(value: Any, kind: str = "") -> Any:
        nonlocal count
        if kind and _lifts(value, kind):
            count += 1
            return trace.variable(count - 1, value)
        if type(value) is tuple:
            kinds = _kinds(kind, len(value))
            return tuple([lift(item, each) for item, each in zip(value, kinds, strict=True)])
        fields = _fields(type(value))
        if fields is None:
            return value
        made = object.__new__(type(value))
        for name, each in fields:
            object.__setattr__(made, name, lift(getattr(value, name), each))
        return made

    lifted: Kernel = lift(kernel)
    return lifted


def _lifts(value: object, kind: str) -> bool:
    """Whether this value of an extent becomes a symbol."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and (kind == "Count" or value not in (0, 1))


def _kinds(kind: str, count: int) -> list[str]:
    """What the items of a tuple are that is annotated so."""
    return [kind] * (count - 1) + [""] if kind == "Strides" else [kind] * count


_fields_of: dict[type, tuple[tuple[str, str], ...] | None] = {}


def _fields(kind: type) -> tuple[tuple[str, str], ...] | None:
    """A dataclass' fields, and as which extents they are annotated; None for other types."""
    if kind not in _fields_of:
        found = None
        if dataclasses.is_dataclass(kind):
            fields = dataclasses.fields(kind)
            marks = [_ANNOTATED.search(str(each.type)) for each in fields]
            found = tuple((f.name, m[1] if m else "") for f, m in zip(fields, marks, strict=True))
        _fields_of[kind] = found
    return _fields_of[kind]
