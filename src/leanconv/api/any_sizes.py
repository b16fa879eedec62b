"""Convolutions of one array of weights for images of sizes that change.

The first size has a plan of its own, as `plan_conv2d` makes it. What comes with the second size may
come with many: from it on, kernels are taken whose code serves all sizes, so that a new one
compiles nothing, and weights are packed once for all of them. Algorithm and tiles are chosen for
maps of a few usual sizes below a power of 2, as many outputs as there are: once for all of them.

What the bits of a size are depends on whether it was the first, and on no other.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Hashable
from dataclasses import fields, replace
from math import prod

from leanconv.algorithms import Candidate, Problem, select
from leanconv.algorithms.parameters import AUTO
from leanconv.api.conv_arguments import Constants
from leanconv.api.conv_choice import conv_problem, needed_bytes
from leanconv.api.kept_plans import ConstantsCopy
from leanconv.api.options import PlanOptions
from leanconv.codegen.geometry import Triple
from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.pool import default_threads
from leanconv.spec import ConvSpec

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
_MOST_LAYERS = 1024
_SIZES = frozenset({"batch", "size", "pad_begin", "pad_end"})  # of a `ConvSpec`


@dataclass(frozen=True)
class Found:
    """How a plan is made that shares code and packed constants with those for other sizes.

    Attributes:
        problem: of any size.
        candidate: how it is computed.
        copy: the constants, and what plans have packed of them.
    """

    problem: Problem
    candidate: Candidate
    copy: ConstantsCopy


class LayerSizes:
    """What is known of one convolution, for all sizes of its images."""

    def __init__(self) -> None:
        self._first: ConvSpec | None = None
        self._copy: weakref.ref[ConstantsCopy] | None = None

    def copied(self, constants: Constants) -> ConstantsCopy:
        """A copy of the constants: the one that other plans have, if it is still right."""
        known = None if self._copy is None else self._copy()
        if known is None or not known.holds(constants):
            known = ConstantsCopy(constants)
            self._copy = weakref.ref(known)
        return known

    def found(self, spec: ConvSpec, constants: Constants, options: PlanOptions) -> Found | None:
        """How a size is computed that is not the first; None if it is to have a plan of its own.

        That is so of the first, of what is measured or reproducible, and of what no kernel for any
        size computes within the limits.
        """
        self._first = self._first or spec
        if self._first == spec or options.tune or options.reproducible:
            return None
        requested = select.choice_named(options.algorithm) if options.algorithm else AUTO
        if requested.parameters.given():
            return None
        copy = self.copied(constants)
        problem = _of_any_size(conv_problem(spec, options.max_error), len(spec.size))
        problem = replace(problem, small_weights=copy.small)
        target = planning_target()
        try:
            chosen = requested
            if chosen == AUTO:
                chosen = select.usual_choice(problem, target, outputs=_square(problem))
            candidate = select.choose(problem, target, chosen)
        except SpecError:
            return None
        limit, threads = options.memory_limit, options.threads or default_threads()
        if limit is not None and needed_bytes(candidate, threads) > limit:
            return None
        if options.max_error is not None and candidate.choice.error > options.max_error:
            return None
        return Found(problem, candidate, copy)


def layer_sizes(spec: ConvSpec, options: PlanOptions, place: int) -> LayerSizes:
    """What is known of a convolution with weights at an address."""
    fixed = tuple(getattr(spec, each.name) for each in fields(ConvSpec) if each.name not in _SIZES)
    return _layer((fixed, options, place))


@functools.lru_cache(_MOST_LAYERS)
def _layer(key: Hashable) -> LayerSizes:
    del key
    return LayerSizes()


def _square(problem: Problem) -> Triple:
    """A map of about as many outputs as a problem of any size has, as many along all axes."""
    steps = round(_STEPS_OF_TWO * math.log2(_extent(problem)))
    side = round(2 ** (steps / _STEPS_OF_TWO))
    return side, side, side


def _extent(problem: Problem) -> float:
    """How many outputs a problem of any size has along each axis, if they are as many."""
    return math.pow(problem.batch * prod(problem.window.out), 1 / len(problem.any_size))


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
