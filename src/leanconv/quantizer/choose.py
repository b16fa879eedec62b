"""Which layers stay in float32, so that the score drops by no more than is allowed.

1. All layers are quantised. If the score holds on all samples, that is it.
2. Each layer is quantised by itself: the error of the outputs is its sensitivity.
3. The fewest of the most sensitive ones that must stay in float32 are found by bisection, on the
   samples that were calibrated on.
4. The answer is verified on the others. Sensitivities of layers alone do not add up in every
   network, and a score is not monotone in what is kept; so where it fails, more layers are kept,
   and then those that may not have been needed are quantised again, one at a time, measured with
   all others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leanconv.progress import step, steps
from leanconv.quantizer.samples import Samples
from leanconv.quantizer.trial import Trials
from leanconv.records import dataclass

_SENSITIVE_ON = 3  # samples on which each layer is quantised by itself
_SEARCHED_ON = 64  # samples on which the bisection scores, at most
_GIVEN_BACK = 8  # layers that are quantised again, at most
_STEPS = 12  # in which all layers would be kept, where the verification fails


@dataclass(frozen=True)
class Choice:
    """Which layers are quantised.

    Attributes:
        chosen: their names.
        sensitivities: the error of the outputs with a layer alone quantised, where measured.
    """

    chosen: frozenset[str]
    sensitivities: Mapping[str, float]


def chosen_layers(
    names: Sequence[str], trials: Trials, samples: Samples, allowed: float | None
) -> Choice:
    """Choose the layers that are quantised.

    Args:
        names: of all that can be, in the network's order.
        trials: that run and score.
        samples: all of them.
        allowed: by how much the score may drop, from 0 to 1; None: all layers are quantised.
    """
    held_out = samples.numbers(1)
    if allowed is None:
        return Choice(frozenset(names), {})
    search = _some(samples.numbers(0), _SEARCHED_ON)

    def holds(kept: Sequence[str]) -> bool:
        chosen = set(names) - set(kept)
        return trials.trial(chosen, search, "calibrated").drop <= allowed

    def verified(kept: Sequence[str]) -> bool:
        return trials.trial(set(names) - set(kept), held_out, "held out").drop <= allowed

    if holds([]) and verified([]):
        return Choice(frozenset(names), {})
    few = _some(held_out, _SENSITIVE_ON)
    sensitivities = {
        name: trials.errors({name}, few) for name in steps("measuring layers", names, len(names))
    }
    order = sorted(names, key=lambda name: -sensitivities[name])
    low, high = 0, len(order)  # kept in float32: too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        step("choosing layers", len(order) - (high - low), len(order))
        if holds(order[:middle]):
            high = middle
        else:
            low = middle
    more = max(1, len(order) // _STEPS)
    while high < len(order) and not verified(order[:high]):
        high = min(len(order), high + more)
    kept = order[:high]
    for name in steps("choosing again", order[:high][-_GIVEN_BACK:][::-1], _GIVEN_BACK):
        fewer = [each for each in kept if each != name]
        if holds(fewer) and verified(fewer):
            kept = fewer
    return Choice(frozenset(names) - set(kept), sensitivities)


def _some(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many, from all over."""
    return list(numbers[:: max(1, len(numbers) // most)][:most])
