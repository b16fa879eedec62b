"""The parameter of direct convolution that a user may set: where products of float16 are summed."""

from __future__ import annotations

from leanconv.algorithms.parameters import Kind, Parameters, one_of, parameter
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.rounding import products, walk_error, walk_steps
from leanconv.codegen.half_stored import PIECES
from leanconv.codegen.partial_sums import effective_length
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import FLOAT16, FLOAT32

NONE = "none"
_HALVES: Kind[int | str] = one_of(NONE, *PIECES)


@dataclass(frozen=True)
class DirectParameters(Parameters):
    """Of operands in float16 alone.

    Attributes:
        halves: products that are summed in float16, at most, before float32 takes over; `"none"`:
            all sums are float32.
    """

    halves: int | str | None = parameter(_HALVES)


def takes_pieces(problem: Problem, target: Target) -> bool:
    """Whether operands are float16, and the target sums products of such in float16."""
    types = problem.precision
    halves = types.x == types.w == FLOAT16 and types.accumulate == FLOAT32
    return halves and "fp16" in target.extensions and target.costs.f16_products is not None


def piece_error(problem: Problem, piece: int) -> float:
    """Expected error of sums of pieces of so many products; 0: of sums in float32.

    The errors of pieces are independent, as the pieces are: relative to their sum they are as those
    of one piece relative to that.
    """
    length = products(problem)
    if not piece:
        return walk_error(problem, effective_length(problem.reduction))
    within = FLOAT16.roundoff * walk_steps(min(piece, length))
    return within + walk_error(problem, effective_length(length / piece))


def chosen_piece(problem: Problem, target: Target, given: DirectParameters) -> int:
    """The longest piece whose error is accepted, or the one that is given; 0 for none."""
    if given.halves is not None:
        return 0 if given.halves == NONE else int(given.halves)
    if takes_pieces(problem, target):
        for piece in PIECES:
            if piece_error(problem, piece) <= problem.max_error:
                return piece
    return 0
