"""`Kernel`: a frozen description of machine code that can emit itself for a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from leanconv.codegen.instructions import rounding_by
from leanconv.records import dataclass
from leanconv.target import Target

# Added to a call's first chunk, see `Kernel.reuses_scratch`.
SCRATCH_OF_PREVIOUS, SCRATCH_OF_NEXT = 1 << 62, 1 << 61


@dataclass(frozen=True)
class Kernel(ABC):
    """A piece of machine code as data: equal kernels are compiled once and shared.

    Sub-classes are frozen dataclasses of plain values; everything that the emitted code depends on
    besides the target is in their fields, because the kernel's canonical text is part of the key
    under which the compiled object is cached.

    The emitted function is `void NAME(ptr args, i64 lo, i64 hi, ptr scratch)`: it computes the
    chunks `lo <= i < hi` of a grid of `chunks`, in any order (within a round, where there are
    `rounds`) and on any thread, with `args` a table of the addresses of `operands` and `scratch` a
    thread's own `scratch_bytes`, aligned to 64.
    """

    NAME = "kernel"
    VARIES: ClassVar[bool] = False  # whether `emit` takes symbols for the fields that are extents

    @property
    @abstractmethod
    def operands(self) -> tuple[str, ...]:
        """Roles of the pointers in the argument table, in order: `("x", "w", "y")`."""

    @property
    def result_count(self) -> int:
        """Number of the last operands, which it writes; it reads the others."""
        return 1

    @property
    def measure(self) -> str | None:
        """The operand that says how many slices of its only result it writes, and where these lie.

        They follow each other, and nothing behind them is written. None if it writes all.
        """
        return None

    @property
    def index_ranges(self) -> Sequence[tuple[int, int]]:
        """The least and the largest index of each axis along which data selects elements.

        For each a word follows the operands in the argument table: an index that is outside is
        stored there; the kernel decides what it computes then.
        """
        return ()

    @property
    def constant_bytes(self) -> Mapping[str, int]:
        """Bytes of the operands that are constants of a layout of its own: packed weights, tables.

        A kernel that has any also packs them; here their sizes are known without packing.
        """
        return {}

    @property
    def packing(self) -> Hashable:
        """Key of how it packs its constants: kernels of equal packings pack alike."""
        return self

    def packing_cycles(self, target: Target) -> float:
        """Estimated cycles of one core, of a kernel that packs the weights of convolutions."""
        raise NotImplementedError(f"{type(self).__name__} packs no weights of convolutions")

    @property
    def grid(self) -> tuple[int, ...]:
        """Extents of the grid of chunks, the last one fastest; what has none states its chunks."""
        raise NotImplementedError(f"{type(self).__name__} states neither its grid nor its chunks")

    @property
    def chunks(self) -> int:
        """Number of independent pieces of work; never depends on the number of threads."""
        return prod(self.grid)

    @property
    def rounds(self) -> int:
        """Number of equal parts of the chunks that are computed one after the other.

        A chunk may read what any chunk of an earlier round wrote; those of a round are independent.
        One call of all chunks does the rounds in order.
        """
        return 1

    @property
    def wants_consecutive_chunks(self) -> bool:
        """True if chunks cost less when one call does several that follow each other."""
        return False

    @property
    def reuses_scratch(self) -> bool:
        """True if a call uses what the thread's last one left in its scratch.

        Calls are then of one chunk each where two threads come from both ends. The one after the
        thread's last chunk in the same stage has `SCRATCH_OF_PREVIOUS` added to its first chunk,
        and the one before it `SCRATCH_OF_NEXT`.
        """
        return False

    @property
    def weight_uses(self) -> float | None:
        """Multiply-adds with each packed weight `w`; None if no other kernel can prefetch them."""
        return None

    @property
    def prefetch_steps(self) -> float | None:
        """Vector multiply-adds during which it can prefetch another kernel's weights.

        0.0 if it has no such steps left, None if kernels of this kind never prefetch for another.
        """
        return None

    def with_prefetch(self, size: int) -> Kernel:
        """Return this kernel with one operand more, the last but one: bytes to prefetch."""
        raise NotImplementedError(f"{type(self).__name__} prefetches nothing for others: {size}")

    @abstractmethod
    def emit(self, target: Target) -> str:
        """Return the module's LLVM IR with one public function, `NAME`."""

    def text(self, target: Target) -> str:
        """Return the LLVM IR of `emit`, with the instructions by which a target rounds."""
        with rounding_by(target):
            return self.emit(target)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that each thread needs."""
        return 0

    @property
    def flops(self) -> int:
        """Floating point operations of the whole grid, a multiply-add counted as two."""
        return 0


def of_wrapped(name: str) -> Any:
    """Make a property of a kernel around another `kernel`: that of the inner one."""
    return property(lambda self: getattr(self.kernel, name))
