"""Which layers stay in float32, so that the score drops by no more than is allowed.

1. Each layer is quantised by itself: the error of the outputs is its sensitivity.
2. Plans say what each layer gains on codes, and what its edges cost (`costs`). The solver finds
   choices from the fastest to the most accurate (`front`), within the bytes allowed.
3. The fastest choice whose score holds is found by bisection, on the samples that were calibrated
   on: about, as one answer of few samples may already be more than is allowed.
4. It is verified on the others, strictly. Sensitivities of layers alone do not add up in every
   network, and a score is not monotone in what is kept; so where it fails, the next more accurate
   choices are tried, and then layers that may not have been needed in float32 are quantised again,
   one at a time, measured with all others as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from leanconv.errors import BudgetError, LeanConvError
from leanconv.progress import step, steps
from leanconv.quantizer.costs import (
    Arrays,
    Clock,
    LayerCost,
    clock,
    layer_costs,
    least_bytes,
    plain_costs,
    total,
)
from leanconv.quantizer.front import front
from leanconv.quantizer.samples import Samples
from leanconv.quantizer.trial import Trials
from leanconv.quantizer.variants import Variants
from leanconv.records import dataclass
from leanconv.units import counted

log = logging.getLogger(__name__)

_SENSITIVE_ON = 3  # samples on which each layer is quantised by itself
_SEARCHED_ON = 64  # samples on which the bisection scores, at most
_GIVEN_BACK = 8  # layers that are quantised again, at most
_REPAIRS = 12  # choices that are verified, at most, up to the most accurate one


@dataclass(frozen=True)
class Choice:
    """Which layers are quantised.

    Attributes:
        chosen: their names.
        sensitivities: the error of the outputs with a layer alone quantised, where measured.
        gains: nanoseconds that a layer is predicted to take less on codes, where sought.
    """

    chosen: frozenset[str]
    sensitivities: Mapping[str, float]
    gains: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Chooser:
    """What is known while layers are chosen.

    Attributes:
        variants, trials, samples: of the network.
        allowed: by how much the score may drop, from 0 to 1.
        limit: bytes within which the file must be planned for the first sample; None for any.
        threads: of plans.
    """

    variants: Variants
    trials: Trials
    samples: Samples
    allowed: float
    limit: int | None
    threads: int | None

    def choose(self) -> Choice:
        """Choose the layers that are quantised.

        Raises:
            BudgetError: no choice keeps both the score and the limit.
        """
        sensitivities = self._sensitivities()
        known = self._costs()
        costs = known or plain_costs(self._sizes)
        found = self._choices(costs, sensitivities)
        if not found:  # its plan says what is needed
            return Choice(frozenset(self._sizes), sensitivities, {})
        chosen = self._verified_from(found, self._first_that_holds(found))
        chosen = self._given_back(costs, chosen)
        gains = {} if known is None else {cost.name: cost.gain_ns for cost in known}
        return Choice(chosen, sensitivities, gains)

    # -- what is known of layers ---------------------------------------------------------------
    @property
    def _sizes(self) -> dict[str, int]:
        return {name: layer.weights.size for name, layer in self.variants.layers.items()}

    @property
    def _first(self) -> Arrays:
        return self.samples.first()

    def _sensitivities(self) -> dict[str, float]:
        few, names = some(self.samples.numbers(1), _SENSITIVE_ON), list(self._sizes)
        measured = steps("measuring layers", names, len(names))
        return {name: self.trials.errors({name}, few) for name in measured}

    def _costs(self) -> list[LayerCost] | None:
        """What layers cost; None where the network on codes cannot be run, or not be timed."""
        networks = self.trials.network(self._sizes), self.trials.network(())
        if not self.trials.runs_integers:
            return None
        try:
            measured = clock(networks, self._first, self.threads)
        except LeanConvError as error:
            log.info("operations are not timed: %s", error)
            measured = Clock(self.threads, {})
        return layer_costs(self._sizes, self.variants.file, self._first, measured)

    # -- bytes ---------------------------------------------------------------------------------
    def _choices(
        self, costs: Sequence[LayerCost], sensitivities: Mapping[str, float]
    ) -> list[frozenset[str]]:
        """Choices that can be planned within the limit, from the fastest to the most accurate.

        Weights alone decide which are considered, about; each is then planned.
        """
        if self.limit is None:
            return front(costs, sensitivities)
        room = max(0, self.limit - self._needed(self._sizes))
        while True:
            choices = front(costs, sensitivities, room)
            planned = steps("planning choices", choices, len(choices))
            found = [each for each in planned if self._fits(each)]
            if found or not room:
                return found
            room //= 2

    def _needed(self, chosen: Collection[str], enough: int = 0) -> int:
        """Bytes within which a choice can be planned."""
        return least_bytes(self.variants.file(chosen), self._first, self.threads, enough)

    def _fits(self, chosen: Collection[str]) -> bool:
        return self.limit is None or self._needed(chosen, self.limit) <= self.limit

    # -- scores --------------------------------------------------------------------------------
    def _holds(self, chosen: Collection[str]) -> bool:
        """Whether the score holds where layers are searched; one sample may be lost there."""
        search = some(self.samples.numbers(0), _SEARCHED_ON)
        one = 1.5 / len(search)  # and not two
        allowed = max(self.allowed, one) if self.allowed else 0.0
        return self.trials.trial(chosen, search, "calibrated").drop <= allowed

    def _verified(self, chosen: Collection[str]) -> bool:
        held_out = self.samples.numbers(1)
        return self.trials.trial(chosen, held_out, "held out").drop <= self.allowed

    def _first_that_holds(self, choices: Sequence[frozenset[str]]) -> int:
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

    def _verified_from(self, choices: Sequence[frozenset[str]], first: int) -> frozenset[str]:
        """The first choice from there on whose score holds on the samples held out."""
        stride = max(1, (len(choices) - first) // _REPAIRS)
        tried = [*range(first, len(choices) - 1, stride), len(choices) - 1]
        for number in steps("verifying", tried, len(tried)):
            choice: frozenset[str] = choices[number]
            if not choice or self._verified(choice):
                return choice
        if self.limit is None:
            return frozenset()
        drop = 100 * self.trials.done[-1].drop
        least = self._needed(())
        raise BudgetError(
            f"the limit is {counted(self.limit, 'byte')}; the most accurate choice of layers "
            f"within it drops the score by {drop:.2f} percent, {100 * self.allowed:g} are allowed; "
            f"give memory_limit={least} or more, or a larger max_accuracy_drop",
            least,
        )

    def _given_back(self, costs: Sequence[LayerCost], chosen: frozenset[str]) -> frozenset[str]:
        """Quantise layers again that are faster so and turn out not to be needed in float32."""

        def gained(name: str) -> int:
            return total(costs, {*chosen, name}) - total(costs, chosen)

        others = [cost.name for cost in costs if cost.name not in chosen]
        sought = sorted(others, key=lambda name: -gained(name))[:_GIVEN_BACK]
        for name in steps("choosing again", sought, len(sought)):
            more = {*chosen, name}
            if gained(name) > 0 and self._fits(more) and self._holds(more) and self._verified(more):
                chosen = frozenset(more)
        return chosen


def some(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many, from all over."""
    return list(numbers[:: max(1, len(numbers) // most)][:most])
