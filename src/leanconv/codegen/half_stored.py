"""A kernel of float32 whose operands lie in memory as halves.

    HalfStored(kernel, ("", "bfloat16", ""))     its second operand is bfloat16, the others as usual

The kernel computes in float32 and knows nothing of it: while it emits its code, the addresses that
it asks for are of halves, and `codegen.memory` converts what is loaded from them and stored there.
So every kernel whose operands are float32 numbers, loaded and stored as such, takes halves; what
moves bytes, or looks at the bits of numbers, does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from leanconv.codegen.emitter import halves_of_operands
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.records import dataclass
from leanconv.target import Target


@dataclass(frozen=True)
class HalfStored(Kernel):
    """The code of a kernel with halves as operands.

    Attributes:
        kernel: what is computed, in float32.
        halves: for each operand, the half precision that it lies in; `""`: as the kernel has it.
    """

    kernel: Kernel
    halves: tuple[str, ...]

    @property
    def VARIES(self) -> bool:  # type: ignore[override]  # noqa: N802
        """As the kernel does."""
        return self.kernel.VARIES

    def emit(self, target: Target) -> str:
        """Emit the kernel with addresses of halves."""
        with halves_of_operands(self.halves):
            return self.kernel.emit(target)

    @property
    def operands(self) -> tuple[str, ...]:
        """The kernel's."""
        return self.kernel.operands

    @property
    def result_count(self) -> int:
        """The kernel's."""
        return self.kernel.result_count

    @property
    def constant_bytes(self) -> Mapping[str, int]:
        """Those of the kernel, half as many where they are halves."""
        halves = dict(zip(self.operands, self.halves, strict=True))
        return {
            name: size // 2 if halves[name] else size
            for name, size in self.kernel.constant_bytes.items()
        }

    @property
    def packing(self) -> Hashable:
        """The kernel's, and in which precision."""
        return self.kernel.packing, self.halves

    @property
    def chunks(self) -> int:
        """The kernel's."""
        return self.kernel.chunks

    @property
    def rounds(self) -> int:
        """The kernel's."""
        return self.kernel.rounds

    @property
    def wants_consecutive_chunks(self) -> bool:
        """As the kernel does."""
        return self.kernel.wants_consecutive_chunks

    @property
    def reuses_scratch(self) -> bool:
        """As the kernel does."""
        return self.kernel.reuses_scratch

    @property
    def weight_uses(self) -> float | None:
        """The kernel's."""
        return self.kernel.weight_uses

    @property
    def scratch_bytes(self) -> int:
        """The kernel's: it computes in float32."""
        return self.kernel.scratch_bytes

    @property
    def flops(self) -> int:
        """The kernel's."""
        return self.kernel.flops


def half_stored(kernel: Kernel, halves: tuple[str, ...]) -> Kernel:
    """A kernel with halves as operands; itself where none is."""
    if isinstance(kernel, HalfStored):
        pairs = zip(kernel.halves, halves, strict=True)
        return HalfStored(kernel.kernel, tuple(own or other for own, other in pairs))
    return HalfStored(kernel, halves) if any(halves) else kernel


def halved_calls(calls: Sequence[PackCall], half: str) -> list[PackCall]:
    """Calls that pack float32 weights as halves."""
    return [
        replace(
            call,
            kernel=half_stored(call.kernel, (*[""] * (len(call.kernel.operands) - 1), half)),
            bytes=call.bytes // 2,
        )
        for call in calls
    ]


def calls_on_halves(
    calls: Sequence[PackCall], given: np.ndarray, w: np.ndarray, half: str
) -> list[PackCall]:
    """Calls made for an array of float32, which read one of halves in its place.

    Args:
        calls: that read views of `given` alone.
        given: an array of float32, of any content.
        w: of the same shape, row-major both.
        half: its type.
    """
    return [
        replace(
            call.reading(given, lambda: w, 0.5),
            kernel=half_stored(call.kernel, (half, *[""] * (len(call.kernel.operands) - 1))),
        )
        for call in calls
    ]
