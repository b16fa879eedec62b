"""The memory that a network and the process around it take."""

from __future__ import annotations

import sys

from leanconv.records import dataclass
from leanconv.runtime.memory import Held, Resident, resident
from leanconv.units import format_bytes


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory, by what they are for.

    Attributes:
        weights: packed, of all plans that the network keeps; what plans share counts once.
        workspace: in which its runs work, as large as the largest plan needs.
        code: of its kernels; of kernels that several plans use, for each of them.
        outputs: of large results that nobody refers to any more, which wait for the next ones.
        process: the whole process's bytes in memory; None where the system does not say.
        llvm_loaded: whether LLVM has been loaded: something had to be compiled.
        private: how much of these four is memory of this process alone.
    """

    weights: int
    workspace: int
    code: int
    outputs: int
    process: Resident | None
    llvm_loaded: bool
    private: int

    @classmethod
    def of(cls, held: Held, outputs: int, private: int) -> Footprint:
        """Make the footprint of a network's plans and of this process now.

        Args:
            held: the memory that its plans keep.
            outputs: bytes of large results that are free.
            private: how much of what its plans hold is memory of this process alone.
        """
        loaded = "llvmlite.binding.ffi" in sys.modules
        weights = sum(held.blocks.values())
        sizes = weights, held.working_bytes, held.own_bytes, outputs
        return cls(*sizes, resident(), loaded, private + outputs)

    @property
    def rest(self) -> int | None:
        """Memory of no file and not of the network: Python's objects, arrays, LLVM's own.

        None where the system does not say. Memory that was allocated and never touched is not in
        the process's count: until the first run this is too small by the workspace.
        """
        if self.process is None:
            return None
        return max(0, self.process.other - self.private)

    def __str__(self) -> str:
        parts = [
            f"weights {format_bytes(self.weights)}",
            f"workspace {format_bytes(self.workspace)}",
            f"code {format_bytes(self.code)}",
        ]
        if self.outputs:
            parts.append(f"free outputs {format_bytes(self.outputs)}")
        if self.process is None or self.rest is None:
            return ", ".join(parts)
        llvm = format_bytes(self.process.llvm) if self.llvm_loaded else "not loaded"
        parts += [
            f"LLVM {llvm}",
            f"libraries {format_bytes(self.process.libraries)}",
            f"mapped files {format_bytes(self.process.files)}",
            f"Python's objects and all else {format_bytes(self.rest)}",
        ]
        return f"{format_bytes(self.process.total)} in memory: {', '.join(parts)}"

    def to_json(self) -> dict[str, int | bool | None]:
        """Return the bytes as a JSON object."""
        process = self.process
        return {
            "weight_bytes": self.weights,
            "workspace_bytes": self.workspace,
            "code_bytes": self.code,
            "output_bytes": self.outputs,
            "resident_bytes": process.total if process else None,
            "llvm_bytes": process.llvm if process else None,
            "library_bytes": process.libraries if process else None,
            "file_bytes": process.files if process else None,
            "other_bytes": self.rest,
            "llvm_loaded": self.llvm_loaded,
        }
