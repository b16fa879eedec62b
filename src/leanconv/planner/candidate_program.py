"""From a candidate to a program whose operands are given addresses or slots."""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.algorithms import Candidate
from leanconv.codegen import compiler
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.spec.format import aligned_offsets
from leanconv.target import Target


def candidate_program(
    candidate: Candidate,
    target: Target,
    threads: int,
    operands: Mapping[str, int | Slot],
    workspace: int,
    paced: bool = True,
) -> Program:
    """Compile a candidate's kernels and bind their operands.

    Args:
        candidate: what to run.
        target: what to emit for.
        threads: threads that take part.
        operands: where each role lies, the candidate's temporaries apart.
        workspace: address of `candidate.workspace_bytes(threads)` bytes.
        paced: as for `Program`.
    """
    offsets, shared = aligned_offsets(candidate.temporaries)
    places = {**operands, **{role: workspace + offset for role, offset in offsets.items()}}
    library = compiler.load([use.kernel for use in candidate.kernels], target)
    stages = [Stage(p.kernel, tuple(places[role] for role in p.roles)) for p in candidate.kernels]
    slots = sum(isinstance(place, Slot) for place in operands.values())
    stride = candidate.scratch_bytes
    return Program(stages, library, slots, workspace + shared, stride, threads, paced)
