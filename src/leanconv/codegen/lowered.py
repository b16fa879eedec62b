"""An operation's lowered form: kernels applied to values, their constants and scratch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass, field, replace


@dataclass(frozen=True, eq=False)
class Call:
    """One kernel applied to values.

    Attributes:
        kernel: the code.
        values: a value's name for each of `kernel.operands`: a value of the graph, one of
            `Lowered.constants`, or one of `Lowered.temporaries`.
        in_place: operands (indices) whose memory the first result may take over.
        alive: values whose memory must be nothing else's during the call, besides its own.
    """

    kernel: Kernel
    values: tuple[str, ...]
    in_place: tuple[int, ...] = ()
    alive: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads."""
        return self.values[: -self.kernel.result_count]

    @property
    def results(self) -> tuple[str, ...]:
        """The values that it writes."""
        return self.values[-self.kernel.result_count :]


@dataclass(frozen=True, eq=False)
class PackCall:
    """A piece of a constant, which compiled code packs.

    Attributes:
        kernel: the code; its operands are the source, the tables, and the piece.
        source: gives the array that it reads, any view of it.
        tables: makes the tables of where elements go, when they are needed.
        bytes: of the piece.
        first: the byte that it reads from, counted from where the array begins.
    """

    kernel: Kernel
    source: Callable[[], np.ndarray]
    tables: Callable[[], tuple[np.ndarray, ...]]
    bytes: int
    first: int = 0

    def reading(
        self, given: np.ndarray, source: Callable[[], np.ndarray], ratio: float = 1.0
    ) -> PackCall:
        """Make the same call for another array in the place of the one that it was made for.

        Args:
            given: the array that it was made for, of any content.
            source: gives an array of the same strides, in elements.
            ratio: bytes of its elements for each of the others'.
        """
        first = self.source().ctypes.data + self.first - given.ctypes.data
        return replace(self, source=source, first=round(first * ratio))


Calls = Mapping[str, Sequence[PackCall]]


@dataclass(frozen=True, eq=False)
class Packing:
    """Constants that are made together, when there is a place for them.

    Attributes:
        bytes: of each constant, by name.
        calls: gives the calls that pack them, by name: their pieces, one after the other.
        recipe: key of how they are made: equal recipes make equal constants of the same sources.
            None if that is not known.
        sources: the arrays that they are made of.
    """

    bytes: Mapping[str, int]
    calls: Callable[[], Calls]
    recipe: Hashable = None
    sources: tuple[np.ndarray, ...] = ()

    def renamed(self, names: Mapping[str, str]) -> Packing:
        """Return the same constants by other names, a mapping from their present names."""
        return Packing(
            {names[name]: size for name, size in self.bytes.items()},
            lambda: {names[name]: calls for name, calls in self.calls().items()},
            self.recipe,
            self.sources,
        )


@dataclass(frozen=True)
class View:
    """An output that is bytes of an input, so that nothing has to move.

    Attributes:
        source: the input.
        offset: the byte of the input at which the output begins.
    """

    source: str
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Part:
    """Bytes of an output that are those of an input.

    Attributes:
        source: the input, or the constant.
        offset: the byte of the output at which it begins.
        bytes: length of the part.
        copy: a kernel that copies it, where it is not computed in its place but another part is.
    """

    source: str
    offset: int
    bytes: int
    copy: Kernel


@dataclass(frozen=True, eq=False)
class Repeat:
    """Calls that run several times, one after the other, and again from the first.

    Some of them may do so each time, too: another repeat has these.

    Attributes:
        first, calls: the index of the first call, and the number of calls.
        times: number of runs.
        strides: bytes by which values that they name move each time, by name.
    """

    first: int
    calls: int
    times: int
    strides: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Lowered:
    """The calls of one operation, run one after the other.

    Attributes:
        calls: in order; the last operands of a call are what it writes.
        constants: tables that the calls name.
        temporaries: bytes of each intermediate buffer that the calls name.
        algorithm: the text shown to the user: `"direct"`, `"depthwise"`, `"elementwise"` …
        views: the outputs that are bytes of inputs already; calls compute the others.
        parts: of the one output, if each input could be computed in its place.
        packings: packed weights that the calls name.
        inner: values that the calls name and that are bytes of inputs, outputs or temporaries.
        repeats: calls that run several times; before those inside them.
    """

    calls: tuple[Call, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    temporaries: Mapping[str, int] = field(default_factory=dict)
    algorithm: str = ""
    views: Mapping[str, View] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    packings: tuple[Packing, ...] = ()
    inner: Mapping[str, View] = field(default_factory=dict)
    repeats: tuple[Repeat, ...] = ()
