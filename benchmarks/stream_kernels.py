"""Kernels that do one thing to memory over and over: what `calibrate.py` times."""

from __future__ import annotations

from typing import Literal

from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT
from leanconv.target import Target

_FLOAT_BYTES = 4
UNROLL = 12  # vectors in flight: more than loads and additions wait for one another
LINE = ALIGNMENT // _FLOAT_BYTES


@dataclass(frozen=True)
class Stream(Kernel):
    """Passes over a buffer from its start to its end.

    Attributes:
        action: whether vectors are read and added up, written, or copied from x to y.
        lanes: of a vector of float32.
        steps: of `UNROLL` vectors each, in one pass.
        passes: over the buffer.
        multiply_adds: for each vector read, instead of the addition.
    """

    action: Literal["read", "write", "copy"]
    lanes: int
    steps: int
    passes: int = 1
    multiply_adds: int = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """What is read, and what is written; sums go to the latter."""
        return ("x", "y")

    @property
    def chunks(self) -> int:
        """One."""
        return 1

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        vectors = self.passes * self.steps * UNROLL
        return vectors * self.lanes * _FLOAT_BYTES * (2 if self.action == "copy" else 1)

    def emit(self, target: Target) -> str:
        """Emit the passes."""
        del target
        e, kind = Function(self.NAME), vector("float", self.lanes)
        x, y = e.pointer(0, "float"), e.pointer(1, "float")
        sums = [e.zero(kind) for _ in range(UNROLL)]
        factor = e.load(x, kind)
        with e.loop("pass", self.passes, [sums]):
            with e.loop("step", self.steps, [sums]) as step:
                for i in range(UNROLL):
                    place = step * (UNROLL * self.lanes) + i * self.lanes
                    if self.action == "write":
                        e.store(factor, y.at(place))
                        continue
                    value = e.load(x.at(place), kind)
                    if self.action == "copy":
                        e.store(value, y.at(place))
                    elif not self.multiply_adds:
                        sums[i] = sums[i] + value
                    for number in range(self.multiply_adds):
                        slot = (i * self.multiply_adds + number) % UNROLL
                        sums[slot] = e.fma(value, factor, sums[slot])
        if self.action == "read":
            for i, total in enumerate(sums):
                e.store(total, y.at(i * self.lanes))
        return e.finish()


@dataclass(frozen=True)
class Nothing(Kernel):
    """A stage of a few chunks that do nothing: what is left is its begin and end."""

    @property
    def operands(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def chunks(self) -> int:
        """So many that two threads share them."""
        return 4

    def emit(self, target: Target) -> str:
        """Emit an empty loop over the chunks."""
        del target
        e = Function(self.NAME)
        with e.chunks(self.chunks):
            pass
        return e.finish()
