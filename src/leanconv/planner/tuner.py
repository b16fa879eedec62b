"""Measuring the few choices that the model ranks best, once, and remembering the fastest."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

import numpy as np

from leanconv.algorithms import Candidate, Problem
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.algorithms.select import choice_named, choices, choose
from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache, entries_in
from leanconv.codegen.keys import choice_key
from leanconv.codegen.lowered import Calls
from leanconv.errors import SpecError
from leanconv.forks import imported
from leanconv.planner.packing import Preparation, candidate_program
from leanconv.progress import steps
from leanconv.records import dataclass
from leanconv.runtime.memory import Block, Memory, SharedArena
from leanconv.runtime.portable import told_program
from leanconv.settings import current_settings
from leanconv.spec.format import aligned_offsets
from leanconv.target import Target

log = logging.getLogger(__name__)

_FACTOR = 1.8  # estimates above the least one times this are not measured
_MOST = 10  # choices measured
ROUNDS = 5
_DROP = 1.25  # after a round, choices slower than the best one by this factor are dropped
_RUN_NS = 4_000_000  # for which one choice runs in a round, after warming up
_MARGIN = 0.98  # largest share of the time of the model's choice with which another one wins
_COPIES_BYTES = 64 * 2**20  # at most, of copies of weights to walk through
_STORE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Tuned:
    """The measurements of one problem's choices.

    Attributes:
        choice: the fastest one; `AUTO` where there is none.
        seconds: of one run, for every choice that was measured to the end.
        model: the choice of the model, which is measured to the end.
    """

    choice: Choice
    seconds: Mapping[Choice, float]
    model: Choice


def tune(
    problem: Problem,
    target: Target,
    threads: int,
    other_weight_bytes: int = 0,
    memory_limit: int | None = None,
) -> Tuned:
    """Measure the most promising choices for a problem, or recall what was measured before.

    Args:
        problem: the convolution, with the places of its operands.
        target: this machine.
        threads: threads that take part.
        other_weight_bytes: weights that the network around the problem reads between two of its
            runs: a choice is measured with weights that are evicted from the caches as they are
            there. 0 measures with warm weights.
        memory_limit: bytes that workspace and packed weights may take; None for no limit.

    Returns:
        The fastest choice and the times of the others. It is kept in the settings' cache folder and
        recalled by later processes, for this target, version and number of threads.
    """
    key = _key(problem, target, threads, other_weight_bytes, memory_limit)
    tuned = _recall(key)
    if tuned is None:
        tuned = measure(problem, target, threads, other_weight_bytes, memory_limit)
        if tuned.seconds:
            _store().put(key, _document(tuned))
    return tuned


def tune_for_any_batch(problem: Problem, target: Target, other_weight_bytes: int = 0) -> Tuned:
    """Tune for plans whose bits no batch, number of threads or limit may change.

    One image is measured, on one thread, without a limit of memory.

    Raises:
        SpecError: no cache keeps what is measured, so that a second plan may choose otherwise.
    """
    if not current_settings().cache_bytes:
        raise SpecError(
            "got tune=True and reproducible=True with LEANCONV_CACHE_BYTES=0; expected a cache "
            "that keeps what was measured, as a second measurement may choose otherwise: allow "
            "one, or leave tune or reproducible out"
        )
    return tune(problem.alone(), target, 1, other_weight_bytes)


def measure(
    problem: Problem,
    target: Target,
    threads: int,
    other_weight_bytes: int = 0,
    memory_limit: int | None = None,
) -> Tuned:
    """Tune without the cache: nothing is recalled or kept."""

    def fits(candidate: Candidate) -> bool:
        weights = max(candidate.weight_bytes, problem.conv.weight_bytes)
        needed = candidate.workspace_bytes(threads) + weights
        return memory_limit is None or needed <= memory_limit

    found = _promising(problem, target, fits)
    own = choose(problem, target)
    kernels = [use.kernel for use in own.kernels]
    same = (choice for choice, c in found if [use.kernel for use in c.kernels] == kernels)
    model = next(same, None)
    if model is None and fits(own):
        model, found = own.choice, [(own.choice, own), *found]
    model = model or (found[0][0] if found else AUTO)
    if len(found) < 2:
        return Tuned(model, {}, model)
    log.info("tuning %s: %d choices", problem, len(found))
    rigs = {choice: _Rig(problem, c, target, threads, other_weight_bytes) for choice, c in found}
    times = _race(rigs, model)
    best = min(times, key=lambda choice: times[choice])
    if times[best] > _MARGIN * times[model]:
        best = model
    log.info("tuned %s: %s, %.1f us", problem, best, times[best] * 1e6)
    return Tuned(best, times, model)


def _promising(
    problem: Problem, target: Target, fits: Callable[[Candidate], bool]
) -> list[tuple[Choice, Candidate]]:
    """Choices that fit and are not far above the least estimate, the cheapest first."""
    found: list[tuple[Choice, Candidate]] = []
    least = 0.0
    for choice, candidate in choices(problem, target):
        if not fits(candidate):
            continue
        least = least or choice.cycles
        if choice.cycles > _FACTOR * least and len(found) > 1:
            break
        found.append((choice, candidate))
    return _varied(found)


def _varied(found: list[tuple[Choice, Candidate]]) -> list[tuple[Choice, Candidate]]:
    """The first few, but the best of every algorithm among them."""
    firsts = {choice.algorithm: choice for choice, _ in reversed(found)}
    kept = [pair for pair in found if pair[0] in firsts.values()]
    others = [pair for pair in found if pair[0] not in firsts.values()]
    chosen = {choice for choice, _ in (kept + others)[:_MOST]}
    return [pair for pair in found if pair[0] in chosen]


class _Rig:
    def __init__(
        self,
        problem: Problem,
        candidate: Candidate,
        target: Target,
        threads: int,
        other_weight_bytes: int,
    ) -> None:
        self._memory = Memory()
        imported("numpy.random")
        random = np.random.default_rng(0)
        sizes = candidate.constant_bytes
        roles = ["x", *(["residual"] if problem.conv.epilogue.residual else []), "y"]
        program, library = candidate_program(candidate, target, threads, roles)
        arena = SharedArena().part(program.arena_bytes)
        self._program = told_program(program, library, arena, paced=False)
        each = problem.conv.batch * problem.conv.dtype.bytes
        tensors = {"x": problem.conv.x.image * each, "y": problem.conv.y.image * each}
        tensors["residual"] = tensors["y"]
        data = [self._filled(role, tensors[role], random).address for role in roles]
        places, size = aligned_offsets(sizes)
        weights, count = self._room(max(1, size), other_weight_bytes)
        first = {role: weights.address + place for role, place in places.items()}
        Preparation.of(_packing(problem, candidate, random), first, target, threads).run()
        self._addresses = []
        for copy in range(0, count * max(1, size), max(1, size)):
            weights.write(copy, weights.view(0, size))
            self._addresses.append([*data, weights.address + copy])
        self._next = 0

    def _filled(self, role: str, size: int, random: np.random.Generator) -> Block:
        block = self._memory.allocate(role, size)
        values = random.standard_normal(min(size // 4, 2**16), dtype=np.float32)
        view = block.view(0, size).view(np.float32)
        view[:] = np.resize(values, view.size)
        return block

    def _room(self, size: int, other_weight_bytes: int) -> tuple[Block, int]:
        """Memory for copies of constants, which successive runs take in turn; how many there are.

        Between two uses of a copy `other_weight_bytes` are read, `_COPIES_BYTES` at most.
        """
        count = 1 + min(other_weight_bytes, _COPIES_BYTES) // size
        count = min(count, max(1, _COPIES_BYTES // size))
        return self._memory.allocate("weights", size * count), count

    def run(self) -> int:
        """Nanoseconds of one run."""
        self._next = (self._next + 1) % len(self._addresses)
        return self._program.run(self._addresses[self._next])

    def time(self) -> float:
        """Median nanoseconds of the runs of one round."""
        self.run()
        first = max(1, self.run())
        count = max(3, min(200, _RUN_NS // first))
        from statistics import median

        return median(self.run() for _ in range(count))


def _packing(problem: Problem, candidate: Candidate, random: np.random.Generator) -> Calls:
    channels, sums = problem.conv.out_channels, problem.conv.precision.accumulate
    shape = (channels, problem.conv.inputs, *problem.conv.window.kernel)
    there = {"bias": problem.conv.epilogue.bias, "slope": problem.conv.epilogue.has_slope}
    w = random.standard_normal(shape).astype(sums)
    if problem.zeros:
        sliced = "firsts" in candidate.constant_bytes
        draw = problem.zeros.drawn_for_slices if sliced else problem.zeros.drawn
        w *= draw(shape, random)
    if problem.factors:
        w = problem.factors.drawn(shape, random).astype(sums)
    given = {
        name: random.standard_normal(channels).astype(sums) for name, used in there.items() if used
    }
    return candidate.packing(w, given)


def _race(rigs: Mapping[Choice, _Rig], kept: Choice) -> dict[Choice, float]:
    """Seconds of each choice in its best round; slow ones are dropped, but never `kept`."""
    rounds: dict[Choice, list[float]] = {choice: [] for choice in rigs}
    for _ in steps("measuring choices", range(ROUNDS), ROUNDS):
        for choice, row in rounds.items():
            row.append(rigs[choice].time())
        least = min(min(row) for row in rounds.values())
        rounds = {
            choice: row
            for choice, row in rounds.items()
            if choice == kept or min(row) <= _DROP * least
        }
    # The least: whole rounds may fall into a time in which the threads share one core.
    return {choice: min(row) * 1e-9 for choice, row in rounds.items()}


def _key(
    problem: Problem, target: Target, threads: int, other_weight_bytes: int, limit: int | None
) -> str:
    numbers = f"{threads} {min(other_weight_bytes, _COPIES_BYTES)} {limit}"
    return choice_key("\n".join(("tuning", numbers, canonical_text(problem))), target)


def _store() -> DiskCache:
    return entries_in("tuning", _STORE_BYTES)


def _document(tuned: Tuned) -> bytes:
    seconds = {str(choice): value for choice, value in tuned.seconds.items()}
    found = {"name": str(tuned.choice), "seconds": seconds, "model": str(tuned.model)}
    return json.dumps(found).encode()


def _recall(key: str) -> Tuned | None:
    body = _store().get(key)
    if body is None:
        return None
    try:
        found = json.loads(body)
        seconds = {choice_named(name): float(s) for name, s in found["seconds"].items()}
        return Tuned(choice_named(found["name"]), seconds, choice_named(found["model"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SpecError):
        return None
