"""The precision of each layer, so that the score drops by no more than is allowed.

1. Plans say what each layer gains in each precision, and what its edges cost (`costs`).
2. Each layer is put into each precision that gains anything, by itself: the error of the outputs
   is its sensitivity. The solver finds choices from the fastest to the most accurate (`front`),
   within the bytes allowed.
3. The fastest choice whose score holds is found by bisection, on the samples that were calibrated
   on: about, as one answer of few samples may already be more than is allowed.
4. It is verified on the others, strictly. Sensitivities of layers alone do not add up in every
   network, and a score is not monotone in what is kept; so where it fails, the next more accurate
   choices are tried, and then layers that may not have been needed in float32 are quantised again,
   one at a time, measured with all others as they are.
5. What layers gain by themselves does not add up either. So the whole network in int8, in float16
   and in float32 is scored beside that choice, and of those that hold the one is taken whose own
   plan takes the least time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from leanconv.errors import BudgetError, LeanConvError
from leanconv.planner.solver import Level, fastest
from leanconv.progress import step, steps
from leanconv.quantizer.costs import (
    Clock,
    LayerCost,
    by_bytes,
    clock,
    edge_ns,
    layer_costs,
    least_bytes,
    plain_costs,
    total,
)
from leanconv.quantizer.result import FINER, FLOAT16, FLOAT32, INT8, Rungs, Trial, all_in, key
from leanconv.quantizer.samples import Arrays, Samples
from leanconv.quantizer.trial import Trials
from leanconv.quantizer.variants import Variants
from leanconv.records import dataclass, field
from leanconv.units import counted

log = logging.getLogger(__name__)

_SENSITIVE_ON = 3  # samples on which each layer is quantised by itself
_SEARCHED_ON = 64  # samples on which the bisection scores, at most
_GIVEN_BACK = 8  # layers that are quantised again, at most
_REPAIRS = 12  # choices that are verified, at most, up to the most accurate one
_BUDGETS = 48
_UNITS = 1 << 40  # of the sum of all squares
_ORDERS = 12  # powers of two of budgets


@dataclass(frozen=True)
class Choice:
    """The precisions of layers.

    Attributes:
        rungs: the precision of each layer that is not in float32, by name.
        sensitivities: the error of the outputs with a layer alone in int8, where measured.
        gains: nanoseconds that a layer is predicted to take less in int8, where sought.
    """

    rungs: Rungs
    sensitivities: Mapping[str, float]
    gains: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Chooser:
    """Choice of the precisions of layers, with the scores and plans known so far.

    Attributes:
        variants, trials, samples: of the network.
        allowed: largest drop of the score, from 0 to 1.
        limit: bytes within which the file must be planned for the first sample; None for any.
        threads: of plans.
    """

    variants: Variants
    trials: Trials
    samples: Samples
    allowed: float
    limit: int | None
    threads: int | None
    _drops: dict[object, float] = field(default_factory=dict)

    def choose(self) -> Choice:
        """Choose the precisions.

        Raises:
            BudgetError: no choice keeps both the score and the limit.
        """
        clock = self._clock()
        known = None if clock is None else self._costs(clock)
        costs = plain_costs(self._sizes) if known is None else known

        def gains_most(rungs: Rungs) -> int:
            return -total(costs, rungs)

        least: Callable[[Rungs], int] = gains_most  # in the choice that is taken
        if clock is not None and known is not None:
            planned_ns = self._planned(clock)
            self.trials.predicted_ns = planned_ns
            if planned_ns(all_in(self._sizes)) < planned_ns({}):
                least = planned_ns
            else:
                log.info("codes are not predicted to be faster; the fewest bytes are sought")
                costs = by_bytes(known)
        sensitivities = self._sensitivities(costs)
        coded = {name: errors[INT8] for name, errors in sensitivities.items()}
        found = self._choices(costs, sensitivities)
        if not found:  # its plan says what is needed
            return Choice(all_in(self._sizes), coded, {})
        chosen = self._verified_from(found, self._first_that_holds(found))
        holding = self._whole()
        if chosen is not None:
            holding.append(self._given_back(costs, chosen))
        if not holding:
            raise self._refused(found[-1])
        gains = {} if known is None else {cost.name: cost.of(INT8).gain_ns for cost in known}
        return Choice(min(holding, key=least), coded, gains)

    # -- what is known of layers ---------------------------------------------------------------
    @property
    def _sizes(self) -> dict[str, int]:
        return {name: layer.weights.size for name, layer in self.variants.layers.items()}

    @property
    def _first(self) -> Arrays:
        return self.samples.first()

    def _sensitivities(self, costs: Sequence[LayerCost]) -> dict[str, dict[str, float]]:
        few = some(self.samples.numbers(1), _SENSITIVE_ON)
        sought = [(cost.name, rung) for cost in costs for rung in cost.rungs]
        found: dict[str, dict[str, float]] = {cost.name: {} for cost in costs}
        for name, rung in steps("measuring layers", sought, len(sought)):
            found[name][rung] = self.trials.errors({name: rung}, few)
        return found

    def _clock(self) -> Clock | None:
        """Measure operations; None where the network on codes cannot be run."""
        networks = self.trials.network(all_in(self._sizes)), self.trials.network({})
        if not self.trials.runs_integers:
            return None
        try:
            return clock(networks, self._first, self.threads)
        except LeanConvError as error:
            log.info("operations are not timed: %s", error)
            return Clock(self.threads, {})

    def _costs(self, measured: Clock) -> list[LayerCost] | None:
        """Return the costs of layers; None where files cannot be planned."""

        def finer(name: str) -> list[str]:
            return [rung for rung in FINER if self.variants.offers(name, rung)]

        limited = self.limit is not None
        return layer_costs(self._sizes, self.variants.file, self._first, measured, finer, limited)

    def _planned(self, measured: Clock) -> Callable[[Rungs], int]:
        """Return the predicted time of choices, each of which is planned once."""
        known: dict[object, int] = {}

        def time_ns(rungs: Rungs) -> int:
            if key(rungs) not in known:
                known[key(rungs)] = measured.planned(self.variants.file(rungs), self._first).time_ns
            return known[key(rungs)]

        return time_ns

    # -- bytes ---------------------------------------------------------------------------------
    def _choices(
        self, costs: Sequence[LayerCost], sensitivities: Mapping[str, Mapping[str, float]]
    ) -> list[dict[str, str]]:
        """Choices that can be planned within the limit, from the fastest to the most accurate.

        Weights alone decide which are considered, about; each is then planned. While the most
        accurate one does not fit, less room for weights is left to others.
        """
        if self.limit is None:
            return front(costs, sensitivities)
        room = max(0, self.limit - self._needed(all_in(self._sizes)))
        fitting: dict[object, dict[str, str] | None] = {}
        while True:
            choices = front(costs, sensitivities, room)
            for choice in steps("planning choices", choices, len(choices)):
                if key(choice) not in fitting:
                    fitting[key(choice)] = choice if self._fits(choice) else None
            if not room or (choices and fitting[key(choices[-1])] is not None):
                break
            room //= 2

        def squares(choice: Rungs) -> float:
            return sum(sensitivities[name][rung] ** 2 for name, rung in choice.items())

        found = [choice for choice in fitting.values() if choice is not None]
        return sorted(found, key=squares, reverse=True)

    def _needed(self, rungs: Rungs, enough: int = 0) -> int:
        return least_bytes(self.variants.file(rungs), self._first, self.threads, enough)

    def _fits(self, rungs: Rungs) -> bool:
        return self.limit is None or self._needed(rungs, self.limit) <= self.limit

    # -- scores --------------------------------------------------------------------------------
    def _holds(self, rungs: Rungs) -> bool:
        """True if the score holds where layers are searched; one sample may be lost there."""
        search = some(self.samples.numbers(0), _SEARCHED_ON)
        one = 1.5 / len(search)  # and not two
        allowed = max(self.allowed, one) if self.allowed else 0.0
        return not rungs or self._drop(rungs, self.trials.search, search) <= allowed

    def _verified(self, rungs: Rungs) -> bool:
        """True if the score holds on the samples held out; that of float32 does."""
        drop = self._drop(rungs, self.trials.trial, self.samples.numbers(1))
        return not rungs or drop <= self.allowed

    def _drop(self, rungs: Rungs, score: Callable[..., Trial], numbers: Sequence[int]) -> float:
        wanted = score.__name__, key(rungs)
        if wanted not in self._drops:
            self._drops[wanted] = score(rungs, numbers).drop
        return self._drops[wanted]

    def _whole(self) -> list[Rungs]:
        """The choices in which all layers have one precision, as far as they can, and that hold."""
        choices: list[Rungs] = [all_in(self._sizes), {}]
        halves = all_in((n for n in self._sizes if self.variants.offers(n, FLOAT16)), FLOAT16)
        if halves:
            choices.insert(1, halves)
        found = []
        for rungs in steps("trying one precision for all layers", choices, len(choices)):
            if self._fits(rungs) and self._holds(rungs) and self._verified(rungs):
                found.append(rungs)
        return found

    def _first_that_holds(self, choices: Sequence[Rungs]) -> int:
        """The fastest choice whose score holds, by bisection; the last one may not."""
        low, high = -1, len(choices) - 1
        while high - low > 1:
            middle = 0 if low < 0 and high == len(choices) - 1 else (low + high) // 2
            step("choosing layers", len(choices) - (high - low), len(choices))
            if self._holds(choices[middle]):
                high = middle
            else:
                low = middle
        return high

    def _verified_from(self, choices: Sequence[Rungs], first: int) -> Rungs | None:
        """The first choice from there on whose score holds on the samples held out, if one does."""
        stride = max(1, (len(choices) - first) // _REPAIRS)
        tried = [*range(first, len(choices) - 1, stride), len(choices) - 1]
        for number in steps("verifying", tried, len(tried)):
            choice: Rungs = choices[number]
            if self._verified(choice):
                return choice
        return None

    def _refused(self, best: Rungs) -> BudgetError:
        drop = 100 * self._drop(best, self.trials.trial, self.samples.numbers(1))
        least = self._needed({})
        return BudgetError(
            f"the limit is {counted(self.limit or 0, 'byte')}; the most accurate choice of layers "
            f"within it drops the score by {drop:.2f} percent, {100 * self.allowed:g} are allowed; "
            f"give memory_limit={least} or more, or a larger max_accuracy_drop",
            least,
        )

    def _given_back(self, costs: Sequence[LayerCost], chosen: Rungs) -> Rungs:
        """Put layers into int8 that are faster so and turn out not to need more."""

        def gained(name: str) -> int:
            return total(costs, {**chosen, name: INT8}) - total(costs, chosen)

        others = [cost.name for cost in costs if chosen.get(cost.name) != INT8]
        sought = sorted(others, key=lambda name: -gained(name))[:_GIVEN_BACK]
        for name in steps("choosing again", sought, len(sought)):
            more = {**chosen, name: INT8}
            if gained(name) > 0 and self._fits(more) and self._holds(more) and self._verified(more):
                chosen = more
        return chosen


def some(numbers: Sequence[int], most: int) -> list[int]:
    """Return at most so many numbers, spread evenly."""
    return list(numbers[:: max(1, len(numbers) // most)][:most])


# Each layer is a level of the solver's graph, its state the precision of the layer before. Sought
# is the least time for which the squared sensitivities of the layers sum to no more than a budget,
# and weights to no more than the bytes allowed, for many budgets:
#
#     sum over layers (time + edge from the layer before)           least
#     sum over layers of sensitivity^2 in their precision           <= budget
#     sum over layers of the bytes more than in the smallest one    <= room
#
# That squares add up is a guess (they do where roundings are independent); whoever takes a choice
# measures it.
def front(
    costs: Sequence[LayerCost],
    sensitivities: Mapping[str, Mapping[str, float]],
    room: int | None = None,
) -> list[dict[str, str]]:
    """The precisions of each choice, from the fastest to the most accurate.

    Args:
        costs: of the layers, in the network's order.
        sensitivities: by layer and precision, the error of the outputs with that layer alone in it.
        room: bytes that layers may take more than in their smallest precision; None: any.

    Returns:
        Distinct choices. The last one has all layers in float32, if there is room.
    """
    states = [[FLOAT32, *cost.rungs] for cost in costs]
    units = _units(costs, sensitivities)
    levels = _levels(costs, states, units)
    most = sum(max(each.values()) for each in units)
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for share in [*np.exp2(-np.linspace(0.0, _ORDERS, _BUDGETS)), 0.0]:
        path = fastest(levels, room, int(float(most) * share))
        if path is None:
            break  # none is more accurate
        chosen = {}
        for number, transition in enumerate(path.transitions):
            rung = states[number][int(levels[number].target[transition])]
            if rung != FLOAT32:
                chosen[costs[number].name] = rung
        found.setdefault(key(chosen), chosen)
    return list(found.values())


def _units(
    costs: Sequence[LayerCost], sensitivities: Mapping[str, Mapping[str, float]]
) -> list[dict[str, int]]:
    squares = [
        {rung: min(sensitivities[cost.name][rung], 1e9) ** 2 for rung in cost.rungs}
        for cost in costs
    ]
    whole = sum(max(each.values(), default=0.0) for each in squares)
    factor = _UNITS / max(whole, 1e-200)  # where no output changes, all are 0
    return [
        {FLOAT32: 0, **{rung: math.ceil(value * factor) for rung, value in each.items()}}
        for each in squares
    ]


def _levels(
    costs: Sequence[LayerCost], states: Sequence[Sequence[str]], units: Sequence[Mapping[str, int]]
) -> list[Level]:
    found = []
    for number, cost in enumerate(costs):
        kinds = [cost.of(rung) for rung in states[number]]
        most_ns = max(kind.gain_ns for kind in kinds)
        most_bytes = max(kind.saved_bytes for kind in kinds)
        rows = []
        for source, before in enumerate(states[number - 1] if number else [FLOAT32]):
            for target, (rung, kind) in enumerate(zip(states[number], kinds, strict=True)):
                edge = edge_ns(costs[number - 1], cost, before, rung) if number else 0
                more = most_bytes - kind.saved_bytes
                time = most_ns - kind.gain_ns + edge
                rows.append((source, target, time, more, units[number][rung], 0))
        columns = np.array(rows, np.int64).T
        found.append(Level(len(states[number]), *columns))
    return found
