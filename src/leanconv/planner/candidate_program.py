"""From a candidate to a program without an address in it."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.algorithms import Candidate
from leanconv.codegen import compiler
from leanconv.codegen.linking import Library
from leanconv.runtime.portable import PortableProgram
from leanconv.runtime.program import Constant, Place, Slot, Stage
from leanconv.spec.format import aligned_offsets
from leanconv.target import Target


def candidate_program(
    candidate: Candidate, target: Target, threads: int, ends: Sequence[str]
) -> tuple[PortableProgram, Library]:
    """Compile a candidate's kernels; constants are in one block, in the order of their roles.

    Args:
        candidate: the one to run.
        target: the processor to emit for.
        threads: threads that take part.
        ends: roles of the arrays that each run is given: inputs, then the output.
    """
    constants, constant_bytes = aligned_offsets(candidate.constant_bytes)
    temporaries, shared = aligned_offsets(candidate.temporaries)
    places: dict[str, Slot | Constant | Place] = {role: Slot(n) for n, role in enumerate(ends)}
    places |= {role: Constant(offset) for role, offset in constants.items()}
    places |= {role: Place(offset) for role, offset in temporaries.items()}
    library = compiler.load([use.kernel for use in candidate.kernels], target)
    stages = tuple(
        Stage(library.form(use.kernel), tuple(places[r] for r in use.roles), Place(shared))
        for use in candidate.kernels
    )
    arena = candidate.workspace_bytes(threads)
    return PortableProgram(stages, len(ends) - 1, 1, threads, arena, constant_bytes), library
