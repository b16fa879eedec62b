"""The convolutions that a node consists of, each with the candidate that computes it.

That is one, or of a transposed convolution one for each phase of its output, or one for all phases.
Where the weights are data, what packs them counts in what each takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import numpy as np

from leanconv.algorithms import col2im, select
from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.direct.shape import PackedConv
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.algorithms.problem import Problem, typical
from leanconv.errors import SpecError
from leanconv.kernels.packing import rearranged
from leanconv.operators import transposed
from leanconv.operators.calls import Made
from leanconv.operators.conv_node import ConvNode, is_transposed
from leanconv.records import replace
from leanconv.target import Target
from leanconv.types import as_dtype

PHASES = Choice("phases")  # several, each computed as is best for it
PRODUCT = Choice(col2im.NAME)  # whose results overlap
OF_TRANSPOSED = frozenset({PHASES.algorithm, PRODUCT.algorithm})  # and of no others
_DIRECT = select.choice_named("direct")

Chosen = list[tuple[Problem, Candidate]]
_Order = transposed.Stacked | transposed.Tapped
_One = tuple[Problem, _Order]


class Piece(NamedTuple):
    """One of a node's convolutions.

    Attributes:
        problem: the convolution.
        weights: (K, C / groups, taps…).
        before: what each run makes of data before it packs these weights.
    """

    problem: Problem
    weights: np.ndarray
    before: tuple[Made, ...] = ()


# -- which there are -----------------------------------------------------------------------------
def pieces(made: ConvNode, choice: Choice) -> list[Piece]:
    """Return the convolutions of a node as a choice computes them.

    Raises:
        SpecError: it is a choice of transposed convolutions, and the node is none.
    """
    node = made.node
    if not is_transposed(node):
        if choice.algorithm in OF_TRANSPOSED:
            raise SpecError(
                f"node {node.name or node.key!r} ({node.op}) cannot be computed by {choice}; "
                "expected a transposed convolution, or an algorithm of convolutions"
            )
        return [Piece(made.problem, made.weights)]
    apart = _apart(made)
    paying = [one for one in _as_one(made, apart) if _pays(one[0], apart, made, choice)]
    if len(paying) > 1:
        paying.sort(key=lambda one: _least_cycles(one[0], made.context.target))
    return [_together(made, *paying[0])] if paying else apart


def _as_one(made: ConvNode, apart: Sequence[Piece]) -> list[_One]:
    """The ways to compute a transposed convolution as one, each with the order of the weights."""
    problems, lanes = [p.problem for p in apart], made.problem.conv.lanes(made.context.target)
    found = (
        transposed.together(problems, made.problem, lanes),
        transposed.by_taps(made.problem, lanes),
    )
    return [one for one in found if one]


def _least_cycles(problem: Problem, target: Target) -> float:
    problem = typical(problem) if problem.any_size else problem
    return select.estimated_cycles(select.choose(problem, target).choice, problem, target)


def ways(made: ConvNode) -> list[list[Piece]]:
    """Return the convolutions of a node, and the one of all phases where there is that, too."""
    if not is_transposed(made.node):
        return [pieces(made, AUTO)]
    apart, target = _apart(made), made.context.target
    ones = [one for one in _as_one(made, apart) if select.is_possible(one[0], target)]
    return [apart, *([_together(made, *one)] for one in ones)]


def _apart(made: ConvNode) -> list[Piece]:
    """The phases of a transposed convolution, each by itself."""
    grouped = transposed.grouped(made.weights, made.problem)
    weights, before = transposed.by_output(grouped), tuple[Made, ...]()
    if made.weights_are_data and not np.may_share_memory(grouped, weights):
        before = (
            Made(
                weights,
                [rearranged(grouped, _same, prod(weights.shape[1:]), as_dtype(grouped.dtype))],
            ),
        )
    found = transposed.phases(made.node, made.problem, weights)
    empty = [transposed.is_untouched(problem.conv.window) for problem, _ in found]
    return [
        _without_taps(problem, taps, before)
        if untouched and not all(empty)
        else Piece(problem, taps, before)
        for untouched, (problem, taps) in zip(empty, found, strict=True)
    ]


def _without_taps(problem: Problem, taps: np.ndarray, before: tuple[Made, ...]) -> Piece:
    """A phase whose one tap never touches the input: as if that had one channel and one pixel.

    Of groups each has a block of channels, so that it begins with one.
    """
    conv = problem.conv
    inputs = 1 if conv.groups == 1 else min(conv.inputs, conv.x.block)
    weights = np.zeros((len(taps), inputs, *taps.shape[2:]), taps.dtype)
    nothing = replace(conv.window, size=(1, 1, 1), pad=(-2, -2, -2))
    return Piece(with_conv(problem, inputs=inputs, window=nothing), weights, before)


def _same(numbers: np.ndarray) -> np.ndarray:
    return numbers


def _together(made: ConvNode, problem: Problem, order: _Order) -> Piece:
    """All phases of a transposed convolution as one convolution, with their weights stacked."""
    grouped = transposed.grouped(made.weights, made.problem)
    blocks = transposed.blocks_of_outputs(grouped, order.block)
    conv, before = problem.conv, tuple[Made, ...]()
    shape = conv.out_channels, conv.inputs, *conv.window.kernel
    if made.weights_are_data:
        weights = np.empty(shape, made.weights.dtype)
        each = order.elements(conv.inputs)
        before = (Made(weights, [rearranged(b, order, each, as_dtype(b.dtype)) for b in blocks]),)
    else:
        parts = [order(part[i]) for part in blocks for i in np.ndindex(*part.shape[:2])]
        weights = np.concatenate(parts).reshape(shape)
    return Piece(problem, weights, before)


def _pays(one: Problem, apart: Sequence[Piece], made: ConvNode, choice: Choice) -> bool:
    """Return whether one convolution computes all phases; of open sizes by taps alone."""
    target, problems = made.context.target, tuple(piece.problem for piece in apart)
    if choice == PHASES:
        return False
    if choice != AUTO and select.refusal(choice, one, target):
        return False
    if not select.is_possible(one, target):
        return False
    if made.of_data and choice != AUTO:
        return True
    if one.any_size:
        taps = prod(one.conv.window.kernel) * len(apart)
        return taps == sum(prod(problem.conv.window.kernel) for problem in problems)
    return _cheaper(one.alone(), tuple(problem.alone() for problem in problems), target)


@lru_cache(maxsize=256)
def _cheaper(one: Problem, apart: tuple[Problem, ...], target: Target) -> bool:
    chosen = _phases_chosen(apart, target, False, AUTO)
    each = (select.estimated_cycles(c.choice, p, target) for p, c in chosen)
    choice = select.choose(one, target).choice
    return select.estimated_cycles(choice, one, target) <= sum(each)


# -- how each is computed ------------------------------------------------------------------------
def chosen(made: ConvNode, choice: Choice) -> Chosen:
    """Return each convolution of a node with the candidate that computes it."""
    if choice == PRODUCT:
        return [product_of(made)]
    return pieces_chosen(pieces(made, choice), made, choice)


def pieces_chosen(found: Sequence[Piece], made: ConvNode, choice: Choice) -> Chosen:
    """Return some convolutions of a node, each with the candidate that computes it."""
    problems, choice = [piece.problem for piece in found], AUTO if choice == PHASES else choice
    target, exact = made.context.target, made.of_data and made.node.attributes["exact"]
    packing = _Packing(exact) if made.of_data else None
    return _phases_chosen(problems, target, made.reproducible, choice, packing)


class _Packing(NamedTuple):
    """That each run packs weights, and whether nothing may be transformed."""

    exact: bool


def _phases_chosen(
    found: Sequence[Problem],
    target: Target,
    reproducible: bool,
    choice: Choice,
    packing: _Packing | None = None,
) -> Chosen:
    """Return each phase with the candidate that computes it.

    Phases with one window are computed directly, with one kernel, unless they are of any size.

    Args:
        found: the phases, or the one convolution.
        target, reproducible, choice: as of `select.choose`.
        packing: of weights in each run, None if they are constants.
    """
    windows = [problem.conv.window for problem in found] if len(found) > 1 else []
    each: Chosen = []
    for problem in found:
        if (known := _of_one_kernel(problem, each)) is not None:
            each.append((problem, known))
            continue
        one, window = choice, problem.conv.window
        alike = not problem.any_size and windows.count(window) > 1  # no table: symbols may be in
        if choice == AUTO and (alike or transposed.is_untouched(window)):
            one = _DIRECT
        if one == AUTO and problem.any_size and problem.conv.precision.accumulate.is_float:
            one = select.usual_choice(problem, target, reproducible)
        if one == AUTO and packing:
            candidate = packed_each_run(problem, target, reproducible, packing.exact)[0][1]
        else:
            candidate = select.choose(problem, target, one, reproducible)
        each.append((problem, candidate))
    return each


def _of_one_kernel(problem: Problem, found: Chosen) -> Candidate | None:
    """Return the candidate of a phase that differs only in where it writes; None without one."""
    if problem.any_size:  # `transposed.one_kernel` keeps them apart
        return None
    here = with_conv(problem, y_offset=0)
    for other, candidate in found:
        kernel = candidate.kernels[0].kernel
        if isinstance(kernel, PackedConv) and with_conv(other, y_offset=0) == here:
            return candidate
    return None


def packed_each_run(
    problem: Problem, target: Target, reproducible: bool, exact: bool, vary: bool = True
) -> Sequence[tuple[Choice, Candidate]]:
    """Return how a convolution may be computed whose weights each run packs, the cheapest first.

    Args:
        problem, target, reproducible: as of `select.choose`.
        exact: whether nothing may be transformed.
        vary: whether to look at all parameters of each algorithm.

    Returns:
        Choices with the cycles of packing, too, each with its candidate; reproducible ones with
        those of one image, as the batch is to change no bits.
    """
    find = _packed_each_run if problem.any_size else _known_packed
    return find(problem, target, reproducible, exact, vary)


def _packed_each_run(
    problem: Problem, target: Target, reproducible: bool, exact: bool, vary: bool
) -> tuple[tuple[Choice, Candidate], ...]:
    judged = problem.alone() if reproducible else problem
    if vary and not (reproducible or problem.any_size):  # which have parameters of their own
        found = select.choices(problem, target)
    else:
        ranked = select.ranked(problem, target, reproducible=reproducible)
        cycles = partial(select.estimated_cycles, problem=judged, target=target)
        found = [(replace(each.choice, cycles=cycles(each.choice)), each) for each in ranked]
    if exact:
        found = [each for each in found if not select.transforms(each[0], problem)]
    if not found:
        candidate = select.choose(problem, target, _DIRECT if exact else AUTO, reproducible)
        alone = select.estimated_cycles(candidate.choice, judged, target)
        found = [(replace(candidate.choice, cycles=alone), candidate)]
    packed = [
        (replace(c, cycles=c.cycles + e.packing_cycles(problem, target)), e) for c, e in found
    ]
    return tuple(sorted(packed, key=lambda each: each[0].cycles))


_known_packed = lru_cache(maxsize=64)(_packed_each_run)  # a node is costed, then lowered


# -- as a product whose results overlap ----------------------------------------------------------
def product_refusal(made: ConvNode) -> str | None:
    """Why a node cannot be computed as a product whose results overlap; None if it can."""
    if not is_transposed(made.node):
        return "only transposed convolutions are"
    return col2im.refusal(made.problem, made.context.target)


def product_of(made: ConvNode) -> tuple[Problem, Candidate]:
    """A transposed convolution as a product whose results overlap (col2im).

    Raises:
        SpecError: it cannot be computed like that.
    """
    if reason := product_refusal(made):
        node = made.node
        raise SpecError(
            f"node {node.name or node.key!r} ({node.op}) cannot be computed by col2im: {reason}"
        )
    return made.problem, col2im.candidate(made.problem, made.context.target)


def too_many_phases(made: ConvNode) -> bool:
    """Return whether a transposed convolution has more phases than are computed one by one."""
    return transposed.phase_count(made.problem.conv.window) > transposed.MOST_PHASES


# -- what each takes -----------------------------------------------------------------------------
def cycles_of(each: Chosen, made: ConvNode) -> float:
    """Estimated cycles of some convolutions; where the weights are data, of packing, too.

    Of reproducible ones by data those of one image are estimated.
    """
    total = 0.0
    for whole, candidate in each:
        problem = whole.alone() if made.of_data and made.reproducible else whole
        total += _cycles(candidate.choice, problem, made)
        if made.of_data:
            as_given = candidate.choice.algorithm == PRODUCT.algorithm
            shape = made.weights.shape if as_given else None
            total += candidate.packing_cycles(problem, made.context.target, shape)
    return total


def _cycles(choice: Choice, problem: Problem, made: ConvNode) -> float:
    if choice.algorithm == PRODUCT.algorithm:
        return col2im.cost(problem, made.context.target)
    return select.estimated_cycles(choice, problem, made.context.target)
