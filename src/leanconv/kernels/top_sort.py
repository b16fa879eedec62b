"""The first numbers of an order in lines, however many, by radix sort of what may be among them.

The first block of a line is sorted and its first `k` are kept. Of each block after it the numbers
that come before the last of these are appended; when there is no room for another block, and at the
end, they are sorted together. So a line costs one sort of `k` numbers and a comparison of each
other one if these are in random order, and a few times the sort of all of them at worst.
"""

from __future__ import annotations

from leanconv.codegen.emitter import Carry, Pointer, Value
from leanconv.codegen.tails import where_any
from leanconv.kernels import radix_sort
from leanconv.kernels.radix_sort import RadixSort
from leanconv.kernels.sort_keys import least_key
from leanconv.kernels.top_scan import LineNest, TopOfLines
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import least, most
from leanconv.target import Target
from leanconv.types import INT32

_LEAST_BLOCK = 1024  # numbers after which a sort costs little more than its counts


@dataclass(frozen=True)
class TopSort(TopOfLines):
    """By sorting."""

    @property
    def block(self) -> int:
        """Numbers of a line that are compared before another sort may be due."""
        found: int = most(self.k, _LEAST_BLOCK)
        return found

    @property
    def room(self) -> int:
        """Numbers of the first block, and in a buffer."""
        found: int = least(self.count, self.k + 2 * self.block)
        return found

    @property
    def count_bytes(self) -> int:
        """Scratch for the counts of the digits."""
        return radix_sort.count_bytes(self.dtype.bytes)

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Scratch for a buffer of keys, and for one of places."""
        return aligned(self.room * self.dtype.bytes), aligned(self.room * INT32.bytes)

    @property
    def line_at(self) -> int:
        """Where in the scratch the copy of a line begins."""
        return self.count_bytes + 2 * sum(self.buffer_bytes)

    @property
    def scratch_bytes(self) -> int:
        return self.line_at + self.line_bytes

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest(LineNest):
    """The loops of a kernel that sorts."""

    def __init__(self, kernel: TopSort, target: Target) -> None:
        super().__init__(kernel, target, kernel.line_at)
        self.sort = kernel
        e, (keys, places) = self.e, kernel.buffer_bytes
        begins = [kernel.count_bytes + number * (keys + places) for number in range(2)]
        self.keys = [e.scratch.at(at).of(self.element) for at in begins]
        self.places = [e.scratch.at(at + keys).of(INT32.llvm) for at in begins]
        self.radix = RadixSort(e, self.keys, self.places, e.scratch.of(INT32.llvm))
        self.least = least_key(kernel.dtype)

    def emit(self) -> str:
        e, k = self.e, self.sort
        behind = k.count - k.room
        with self.each_line() as (source, write):
            state: Carry = [e.i64(k.room), e.zero(self.element)]
            with e.loop("first", k.room) as r:
                self._append(r, r, self.key(source, r))
            self._first_of(state)
            for _ in where_any(e, behind, [state]):
                blocks = ceil_div(behind, k.block)
                with e.loop("block", blocks, [state]) as block:
                    start = block * k.block + k.room
                    self._scan(source, start, e.smin(start + k.block, k.count), state)
                    due = state[0].compare("ugt", k.k + k.block) | block.compare("eq", blocks - 1)
                    with e.when(due, [state]):
                        self._first_of(state)
            write(self.places[0])
        return e.finish()

    def _append(self, to: Value, r: Value, key: Value) -> None:
        """Put a number behind the first `to` in the buffers."""
        self.e.store(key ^ self.least, self.keys[0].at(to))
        self.e.store(self.e.convert("trunc", r, INT32.llvm), self.places[0].at(to))

    def _scan(self, source: Pointer, start: Value, stop: Value, state: Carry) -> None:
        """Append the numbers of a block that come before the last of the first `k`."""

        def append(r: Value, key: Value) -> None:
            self._append(state[0], r, key)
            state[0] = state[0] + 1

        self.scan(source, start, stop, [state[1]], [state], append)

    def _first_of(self, state: Carry) -> None:
        """Sort what is in the buffers; the first `k` of it are left, and the last one's key."""
        e, k, number = self.e, self.sort.k, self.sort.dtype.bytes
        self.radix.sort(state[0])
        if number % 2:
            with e.loop("j", k) as j:
                for buffers in (self.keys, self.places):
                    e.store(e.load(buffers[1].at(j)), buffers[0].at(j))
        last = e.load(self.keys[0].at(e.i64(k - 1)))
        state[:] = [e.i64(k), last ^ self.least]
