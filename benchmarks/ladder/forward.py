"""The forward pass of one step of the ladder: launch by launch, as the report's host code does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from examples.report.formats import Topology
from ladder.kernels import RowCopy
from ladder.launches import Launch, Launches
from ladder.network import Version
from leanconv.codegen import compiler
from leanconv.codegen.host import host
from leanconv.codegen.linking import Library
from leanconv.runtime.memory import Block
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.types import DType


@dataclass
class Spent:
    """Where the time of forward passes went, in nanoseconds, and what they allocated.

    `by_kernel` has the nanoseconds of each launch.
    """

    passes: int = 0
    total_ns: int = 0
    copies_ns: int = 0
    kernels_ns: int = 0
    allocated_bytes: int = 0
    by_kernel: dict[str, list[int]] = field(default_factory=dict)


class Forward(Launches):
    """A version on the CPU; arguments as of `Launches`.

    Args:
        threads: threads that take part.
        lanes: items of a vector; 1 makes each item a loop of scalars; the host's by default.

    Attributes:
        spent: of all calls so far.
    """

    def __init__(
        self,
        topology: Topology,
        params: Mapping[str, np.ndarray],
        version: Version,
        dtype: DType,
        threads: int,
        lanes: int | None = None,
    ) -> None:
        super().__init__(topology, params, version, dtype, lanes or host().lanes(dtype))
        library = compiler.load([launch.kernel for launch in self.launches])
        self._programs = [self._program(launch, library, threads) for launch in self.launches]
        self._fixed = self._allocate_all() if version.up_front else {}
        self.spent = Spent()

    def _program(self, launch: Launch, library: Library, threads: int) -> Program:
        slots = iter(range(len(launch.values)))
        operands = tuple(
            Slot(next(slots)) if isinstance(o, str) else o.ctypes.data for o in launch.operands
        )
        stages = [Stage(launch.kernel, operands)]
        return Program(stages, library, len(launch.values), 0, 0, threads, paced=False)

    # -- buffers ---------------------------------------------------------------------------
    def _allocate(self, value: str) -> Block:
        """Fresh memory is zero, and so are the borders."""
        return Block(self.planes[value].elements * self.dtype.bytes)

    def _allocate_all(self) -> dict[str, Block]:
        written = dict.fromkeys(launch.values[-1] for launch in self.launches)
        return {value: self._allocate(value) for value in written if value != "logits"}

    # -- running ---------------------------------------------------------------------------
    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return the logits of one image.

        Args:
            image: contiguous, of `topology.input_shape`, in the version's dtype.
        """
        assert image.shape == self.topology.input_shape
        assert image.dtype == self.dtype
        assert image.flags.c_contiguous
        start = time.perf_counter_ns()
        logits = np.empty(self.topology.classes, self.dtype)
        addresses = {"image": image.ctypes.data, "logits": logits.ctypes.data}
        blocks = dict(self._fixed)
        addresses.update((value, block.address) for value, block in blocks.items())
        spent = self.spent
        for launch, program, dead in zip(self.launches, self._programs, self.dead, strict=True):
            result = launch.values[-1]
            if result not in addresses:
                blocks[result] = self._allocate(result)
                addresses[result] = blocks[result].address
                spent.allocated_bytes += blocks[result].bytes
            program._pacing._rest_until = 0  # stay on all threads whatever disturbs
            elapsed = program.run([addresses[value] for value in launch.values])
            spent.by_kernel.setdefault(launch.label, []).append(elapsed)
            if isinstance(launch.kernel, RowCopy):
                spent.copies_ns += elapsed
            else:
                spent.kernels_ns += elapsed
            if not self.version.up_front:
                for value in dead:
                    del blocks[value], addresses[value]
        spent.total_ns += time.perf_counter_ns() - start
        spent.passes += 1
        return logits
