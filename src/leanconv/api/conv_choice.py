"""The choice of the candidate that computes a convolution within limits of bytes and of error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import prod

from leanconv.algorithms import Candidate, Problem, select
from leanconv.algorithms.magnitudes import WeightTraits
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.api.options import PlanOptions
from leanconv.codegen.geometry import Access, Triple
from leanconv.errors import BudgetError, SpecError
from leanconv.records import dataclass, replace
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.pool import default_threads
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned
from leanconv.target import Target
from leanconv.types import FLOAT32
from leanconv.units import counted, error_text

_STEPS_OF_TWO = 4  # sides of maps between a power of 2 and the next that algorithms are chosen for
# Sides of maps at which a range ends whose kernels are chosen together.
# Twice as many ranges made code twice as often, and no layer faster.
_ENDS = 4, 8, 16, 32, 64, 128, 256, *(4**power for power in range(5, 25))
# Outputs of maps for which tiles are chosen: of these few each size takes those best for it.
# Sides that are no multiples of the same number, so that no tile of outputs fits all of them.
_USUAL = (
    *((side, side, side) for side in (100, 50, 26, 18, 12, 9, 6)),
    *((high, high, wide) for high, wide in ((16, 50), (50, 16), (9, 30), (30, 9))),
)
_FAR_SMALLER = 6  # times fewer outputs: what is best for so small a map is slower than estimated
_ANY_ERROR = 2.0**100  # that every candidate keeps


def conv_problem(spec: ConvSpec, max_error: float | None) -> Problem:
    """The places of a spec's tensors in the user's arrays."""
    x = (spec.batch, spec.in_channels, *spec.size)
    y = (spec.batch, spec.out_channels, *spec.output_size)
    of, to = (Access.of_format(shape, spec.format) for shape in (x, y))
    return Problem.of(spec, of, to, max_error)


def needed_bytes(candidate: Candidate, threads: int) -> int:
    """The bytes that a plan with a candidate takes, known without packing."""
    packed = candidate.constant_bytes.values()
    return candidate.workspace_bytes(threads) + sum(map(aligned, packed))


def choice_of_any_size(
    spec: ConvSpec, options: PlanOptions, traits: WeightTraits, like: ConvSpec | None = None
) -> tuple[Problem, Candidate] | None:
    """Choose a candidate with kernels of any size; None if none keeps the limits.

    A second size may be followed by many: kernels are taken whose code serves all sizes, so that
    a new one compiles nothing and weights are packed once. Algorithm and tiles are chosen once,
    for maps of a few usual sizes below a power of 2, as many outputs as there are; or as many as
    those of `like`, the same layer of another size, whose code this one then has.
    """
    requested = select.choice_named(options.algorithm) if options.algorithm else AUTO
    if requested.parameters.given():
        return None
    usual, problem = (
        replace(
            traits.given_to(_of_any_size(conv_problem(each, options.max_error), len(each.size))),
            weights_change=options.packs,
        )
        for each in (like or spec, spec)
    )
    problem, target = replace(problem, usual_sizes=usual.usual_sizes), planning_target()
    try:
        chosen = requested
        if chosen == AUTO:
            chosen = select.usual_choice(usual, target, outputs=_square(usual))
        candidate = select.choose(usual, target, chosen)
        if like not in (None, spec):
            chosen = select.choice_named(str(candidate.choice))
            candidate = select.choose(problem, target, chosen)
    except SpecError:
        return None
    limit, threads = options.memory_limit, options.threads or default_threads()
    if limit is not None and needed_bytes(candidate, threads) > limit:
        return None
    if options.max_error is not None and candidate.choice.error > options.max_error:
        return None
    return problem, candidate


def _square(problem: Problem) -> Triple:
    """A map of about as many outputs as a problem of any size has, as many along all axes."""
    steps = round(_STEPS_OF_TWO * math.log2(_extent(problem)))
    side = round(2 ** (steps / _STEPS_OF_TWO))
    return side, side, side


def _extent(problem: Problem) -> float:
    """Return the outputs along each axis, if a problem of any size has a square map."""
    return math.pow(problem.conv.batch * prod(problem.conv.window.out), 1 / len(problem.any_size))


def _of_any_size(problem: Problem, rank: int) -> Problem:
    """A problem whose code is to serve all sizes like its own, along all of its axes."""
    axes = tuple(range(3 - rank, 3))
    extent, before, end = _extent(replace(problem, any_size=axes)), *_ENDS[:2]
    for following in _ENDS[2:]:
        if extent <= end:
            break
        before, end = end, following
    middle = round(math.sqrt(before * end))
    near = [size for size in _USUAL if size[1] * size[2] * _FAR_SMALLER >= extent**2]
    sizes = (middle, middle, middle), *(near or _USUAL[:1])
    return replace(problem, any_size=axes, usual_sizes=sizes)


@dataclass(frozen=True)
class ConvChoice:
    """The choice of a candidate for one convolution: its problem and its limits.

    Attributes:
        problem: the convolution; its `max_error` is the default one where none is given.
        target, threads: of the plan.
        requested: an algorithm with its parameters, or `AUTO`.
        reproducible: whether neither the batch nor a limit of bytes may change the bits.
        memory_limit, max_error: None where there is none.
    """

    problem: Problem
    target: Target
    threads: int
    requested: Choice
    reproducible: bool
    memory_limit: int | None
    max_error: float | None

    @property
    def packs(self) -> bool:
        """True if each run packs the weights, which counts as time of the choice then."""
        return self.problem.weights_change

    def best(self) -> Candidate:
        """The fastest candidate that keeps both limits.

        Raises:
            BudgetError: there is none. Its `smallest_error`, or its `smallest_bytes`, is the least
                limit that works.
        """
        first = None if self.packs else self._first()
        if first and self._keeps(first):
            return first
        accurate = list(filter(self._is_accurate, self._candidates()))
        if not accurate:
            raise self._inaccurate()
        if self.reproducible:
            accurate = accurate[:1]
        for candidate in accurate:
            if self._fits(candidate):
                return candidate
        least = min(map(self._bytes, accurate))
        raise BudgetError(
            f"{self.problem} needs {counted(least, 'byte')} at least, the limit is "
            f"{counted(self.memory_limit or 0, 'byte')}; "
            f"give memory_limit={least} or more",
            least,
        )

    def is_kept(self) -> bool:
        """Return whether the first choice keeps both limits."""
        first = self._first()
        return first is not None and self._keeps(first)

    def _keeps(self, candidate: Candidate) -> bool:
        return self._fits(candidate) and self._is_accurate(candidate)

    def _first(self) -> Candidate | None:
        """The first choice; None if the requested algorithm cannot keep the error."""
        try:
            return select.choose(self.problem, self.target, self.requested, self.reproducible)
        except SpecError:
            larger = replace(self.problem, max_error=_ANY_ERROR)
            given = self.max_error is not None and self.requested != AUTO
            if not given or select.refusal(self.requested, larger, self.target):
                raise
            return None

    def _candidates(self) -> Iterator[Candidate]:
        """The first choice, then the others that may be taken to keep a limit, fastest first.

        These are all algorithms with all parameters, also those that are never chosen for their
        time. If an algorithm is requested, only its open parameters vary, and none do if the
        request names any. What a reproducible plan takes is chosen for one image.
        """
        first, requested = self._first(), self.requested
        fixed = requested.parameters.given()
        if first and (fixed or not self.packs):
            yield first
        if fixed:
            return
        judged = self.problem.alone() if self.reproducible else self.problem
        found = select.choices(judged, self.target, lean=True)
        if self.packs:
            costed = (self._with_packing(*pair) for pair in found)
            found = sorted(costed, key=lambda pair: pair[0].cycles)
        for choice, candidate in found:
            if requested == AUTO or choice.algorithm == requested.algorithm:
                if not self.reproducible or self.problem.conv.batch == 1:
                    yield candidate
                elif self._is_accurate(candidate):
                    yield next(select.ranked(self.problem, self.target, candidate.choice))

    def _with_packing(self, choice: Choice, candidate: Candidate) -> tuple[Choice, Candidate]:
        """A choice with the cycles that packing takes in each run."""
        packing = candidate.packing_cycles(self.problem, self.target)
        choice = replace(choice, cycles=choice.cycles + packing)
        return choice, replace(candidate, choice=choice)

    def _bytes(self, candidate: Candidate) -> int:
        return needed_bytes(candidate, self.threads)

    def _fits(self, candidate: Candidate) -> bool:
        return self.memory_limit is None or self._bytes(candidate) <= self.memory_limit

    def _is_accurate(self, candidate: Candidate) -> bool:
        return self.max_error is None or candidate.choice.error <= self.max_error

    def _inaccurate(self) -> BudgetError:
        assert self.max_error is not None
        least = self._least_error()
        if least is None:  # within the limit of bytes
            least = replace(self, memory_limit=None)._least_error()
        assert least is not None, "no candidate keeps any error"
        double = ", or float64 arrays" if self.problem.conv.dtype == FLOAT32 else ""
        return BudgetError(
            f"{self.problem}: max_error is {self.max_error:.3g}; the most accurate candidate is "
            f"expected to err by {least:.3g}; give max_error={error_text(least)} or more{double}",
            0,
            least,
        )

    def _least_error(self) -> float | None:
        """The least `max_error` that works within the limit of bytes; None if none does.

        Which candidates there are depends on the error that is accepted: it is lowered to what the
        most accurate one states until nothing is below. Where a candidate is offered only for
        more than it states, the least error is sought between the two.
        """
        works, stated = _ANY_ERROR, self._least_stated(_ANY_ERROR)
        if stated is None:
            return None
        while (better := self._least_stated(stated)) is not None:
            works, stated = stated, math.nextafter(better, 0.0)
        if math.nextafter(works, 0.0) == stated:
            return works
        while self._least_stated(2 * stated) is None:
            stated *= 2
        high = min(works, 2 * stated)
        any_bits = replace(self, reproducible=False)._stated(high)
        guesses = [*select.offered_from(self.problem), *any_bits]
        return least_float(stated, high, self._works, guesses)

    def _works(self, max_error: float) -> bool:
        return bool(self._stated(max_error))

    def _least_stated(self, max_error: float) -> float | None:
        """Return the least error that any candidate states, of those that `max_error` accepts."""
        return min(self._stated(max_error), default=None)

    def _stated(self, max_error: float) -> list[float]:
        """The errors of all candidates that another `max_error` accepts."""
        problem = replace(self.problem, max_error=max_error)
        asking = replace(self, problem=problem, max_error=max_error)
        accurate = filter(asking._is_accurate, asking._candidates())
        found = islice(accurate, 1 if self.reproducible else None)
        return [each.choice.error for each in found if self._fits(each)]


def least_float(
    low: float, high: float, works: Callable[[float], bool], guesses: Iterable[float] = ()
) -> float:
    """The least number that works: `low` does not, `high` does, and so does all above what does.

    Args:
        low, high: between which it is sought.
        works: takes tens of milliseconds.
        guesses: numbers of which it may be one: these are tried first.
    """
    likely = sorted({guess for guess in guesses if low < guess < high})
    while likely:
        middle = len(likely) // 2
        if works(likely[middle]):
            high, likely = likely[middle], likely[:middle]
        else:
            low, likely = likely[middle], likely[middle + 1 :]
    below = math.nextafter(high, low)
    if below > low and not works(below):
        low = below
    while math.nextafter(low, high) < high:
        middle_value = low + (high - low) / 2
        if works(middle_value):
            high = middle_value
        else:
            low = middle_value
    return high
