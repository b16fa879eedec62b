"""Kernels and programs for the tests of the runtime."""

from __future__ import annotations

import ctypes

import numpy as np

from leanconv.codegen.compiler import load
from leanconv.codegen.emitter import Function
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.target import Target


@dataclass(frozen=True)
class Mix(Kernel):
    """y[i] = a·x[i] + x[(i + 1) mod n] for float64, each element a chunk; `delay` sums of work."""

    count: int
    factor: float
    delay: int = 1

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return self.count

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, y = e.pointer(0, "double"), e.pointer(1, "double")
        with e.chunks(self.count) as (i,):
            here = e.load(x.at(i))
            there = e.load(x.at((i + 1) % self.count))
            total = [here * self.factor + there]
            with e.loop("d", self.delay, [total]):
                total[0] = total[0] * 0.5 + total[0] * 0.5
            e.store(total[0], y.at(i))
        return e.finish()

    def apply(self, x: np.ndarray) -> np.ndarray:
        """The same with NumPy."""
        return x * self.factor + np.roll(x, -1)


@dataclass(frozen=True)
class Count(Kernel):
    """Add one to counts[i] for each chunk, and the chunks of a call to calls[0] (not atomically).

    A chunk that is claimed twice or never shows.
    """

    count: int

    @property
    def operands(self) -> tuple[str, ...]:
        return ("counts",)

    @property
    def chunks(self) -> int:
        return self.count

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        counts = e.pointer(0, "i64")
        with e.chunks(self.count) as (i,):
            place = counts.at(i)
            e.store(e.load(place) + 1, place)
        return e.finish()


@dataclass(frozen=True)
class InRounds(Kernel):
    """y[r+1, i] = y[r, i] + y[r, (i+1) % count] for each round r: an early start of one shows."""

    count: int
    times: int

    @property
    def operands(self) -> tuple[str, ...]:
        return ("y",)

    @property
    def rounds(self) -> int:
        return self.times

    @property
    def chunks(self) -> int:
        return self.count * self.times

    @property
    def wants_consecutive_chunks(self) -> bool:
        return self.count % 2 == 0

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        y = e.pointer(0, "i64")
        with e.chunks(self.times, self.count) as (number, i):
            here, following = y.at(number * self.count), (i + 1) % self.count
            e.store(e.load(here.at(i)) + e.load(here.at(following)), here.at(i + self.count))
        return e.finish()


@dataclass(frozen=True)
class Square(Kernel):
    """y[i] = x[i]·x[i] for float32: denormal where x is small."""

    count: int

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return self.count

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, y = e.pointer(0, "float"), e.pointer(1, "float")
        with e.chunks(self.count) as (i,):
            here = e.load(x.at(i))
            e.store(here * here, y.at(i))
        return e.finish()


class Chain:
    """A program of `Mix` stages from one array to another, with its own memory between."""

    def __init__(self, threads: int, stages: int = 6, count: int = 500, delay: int = 1) -> None:
        self.kernels = [Mix(count, 0.5 + i / 16, delay) for i in range(stages)]
        self._between = [np.zeros(count) for _ in range(stages - 1)]
        inner = [a.ctypes.data for a in self._between]
        places = [Slot(0), *inner, Slot(1)]
        library = load(self.kernels)
        self.program = Program(
            [Stage(k, (places[i], places[i + 1])) for i, k in enumerate(self.kernels)],
            library,
            slots=2,
            scratch=0,
            scratch_stride=0,
            threads=threads,
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        y = np.full_like(x, np.nan)
        self.program.run([x.ctypes.data, y.ctypes.data])
        return y

    def expected(self, x: np.ndarray) -> np.ndarray:
        """What the chain computes; every operation in it is exact enough to compare bits."""
        for kernel in self.kernels:
            x = kernel.apply(x)
        return x


def counter(threads: int, stages: int, chunks: int) -> tuple[Program, list[np.ndarray]]:
    """A program that counts how often each chunk of each stage is done."""
    kernel = Count(chunks)
    counts = [np.zeros(chunks, np.int64) for _ in range(stages)]
    stages_ = [Stage(kernel, (c.ctypes.data,)) for c in counts]
    return Program(stages_, load([kernel]), 0, 0, 0, threads), counts


def together(program: Program) -> Program:
    """Keep the workers in, whatever the pacing thinks of a busy machine."""
    program._pacing.together = lambda now: True  # type: ignore[method-assign]
    return program


def word(address: int, offset: int) -> int:
    """A 64-bit word of the pool's state."""
    return int(ctypes.c_uint64.from_address(address + offset).value)
