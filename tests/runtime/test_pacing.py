"""The pacing, in simulated time: alone when disturbed, together again, never for nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from leanconv.runtime.pool import Pacing

MS = 1_000_000
Clock = Callable[[float], tuple[float, float]]  # ms now -> ms of a run (together, alone)


def simulate(pacing: Pacing, machine: Clock, until_ms: float, start_ms: float = 0) -> list[bool]:
    """Run one program over and over; return for each run whether it was together."""
    now, history = start_ms, []
    while now < until_ms:
        with_all, alone = machine(now)
        together = pacing.together(int(now * MS))
        spent = with_all if together else alone
        now += spent
        pacing.record(int(spent * MS), together, int(now * MS))
        history.append(together)
    return history


def noisy(base: float, seed: int, part: float) -> Callable[[], float]:
    """Times around a base; one in two hundred is three times as long, as an interrupt makes it."""
    source = random.Random(seed)
    return lambda: base * (1 + part * source.random()) * (3 if source.random() < 1 / 200 else 1)


@pytest.mark.parametrize("threads", [2, 4, 8])
@pytest.mark.parametrize("base_ms", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_never_leaves_a_quiet_machine(threads: int, base_ms: float, seed: int) -> None:
    time = noisy(base_ms, seed, 0.15)
    pacing = Pacing(threads)
    history = simulate(pacing, lambda now: (time(), threads * base_ms), 3000 * base_ms)
    assert all(history)


def test_goes_alone_when_disturbed_and_comes_back() -> None:
    def machine(now: float) -> tuple[float, float]:
        disturbed = 1000 <= now < 5000
        return (3.0, 2.0) if disturbed else (1.0, 2.0)

    pacing = Pacing(2)
    assert all(simulate(pacing, machine, 1000))
    during = simulate(pacing, machine, 5000, 1000)
    assert not all(during[:20])  # it noticed within twenty runs
    assert sum(during) < 0.1 * len(during)  # and hardly ever tried
    after = simulate(pacing, machine, 9000, 5000)
    assert sum(after) > 0.5 * len(after)
    assert all(simulate(pacing, machine, 15000, 9000))


def test_one_long_run_in_a_window_is_an_accident() -> None:
    pacing, now = Pacing(2), 0
    for spent in (1, 1, 1, 30, 1, 1, 1, 1):  # ms; as long as a page fault may take
        assert pacing.together(now)
        now += spent * MS
        pacing.record(spent * MS, True, now)
    assert pacing.together(now)


def test_what_a_disturbance_costs_is_bounded() -> None:
    """Within three times the quiet latency on average, where staying together costs five times."""
    pacing, total = Pacing(2), []

    def machine(now: float) -> tuple[float, float]:
        return (1.0, 2.0) if now < 200 else (5.0, 2.1)

    now = 0.0
    while now < 4000:
        together = pacing.together(int(now * MS))
        spent = machine(now)[0 if together else 1]
        now += spent
        pacing.record(int(spent * MS), together, int(now * MS))
        if now > 400:
            total.append(spent)
    assert sum(total) / len(total) < 2.5


def test_stays_together_where_that_is_still_faster() -> None:
    """A disturbance that leaves 4 threads better than one is no reason to go alone."""
    pacing = Pacing(4)
    history = simulate(pacing, lambda now: (1.0 if now < 500 else 1.8, 4.0), 3000)
    assert all(history)


def test_disturbed_from_the_first_run() -> None:
    """The quiet time is not known then; the run alone is found all the same once it is calm."""
    pacing = Pacing(2)
    source = random.Random(1)

    def machine(now: float) -> tuple[float, float]:
        return (source.choice([1.0, 6.0, 7.0]) if now < 2000 else 1.0, 2.0)

    during = simulate(pacing, machine, 2000)
    assert not all(during)
    simulate(pacing, machine, 6000, 2000)
    assert all(simulate(pacing, machine, 9000, 6000))


def test_a_slower_clock_is_followed() -> None:
    """The whole machine becomes slower by half for good: no reason to be alone for ever."""
    pacing = Pacing(2)
    simulate(pacing, lambda now: (1.0, 2.0), 500)
    history = simulate(pacing, lambda now: (1.6, 3.2), 8000, 500)
    assert all(history[-1000:])


def test_runs_beside_another_program_teach_no_quiet_time() -> None:
    """A run that found the workers taken was alone, though `together` said otherwise."""
    pacing = Pacing(2)
    for _ in range(100):
        assert pacing.together(0)
        pacing.record(2 * MS, together=False, now=0)
    assert all(simulate(pacing, lambda now: (1.0, 2.0), 1000))


def test_probing_becomes_rare() -> None:
    """Under a lasting disturbance the probes take less and less of the time."""
    pacing = Pacing(2)
    simulate(pacing, lambda now: (1.0, 2.0), 100)
    late = simulate(pacing, lambda now: (4.0, 2.0), 20_000, 100)[-4000:]
    assert 0 < sum(late) < 0.03 * len(late)


def test_workers_that_come_back_late_are_waited_for() -> None:
    """After a rest the workers are parked: the first runs of the next probe have none of them."""
    pacing, since, resting = Pacing(2), 0.0, False

    def machine(now: float) -> tuple[float, float]:
        nonlocal since, resting
        if 10 <= now < 60:
            return 0.4, 0.1
        if pacing._rest_until:
            resting = True
        elif resting:
            since, resting = now, False
        return (0.05 if now - since > 0.9 else 0.15), 0.1

    simulate(pacing, machine, 60)
    history = simulate(pacing, machine, 1000, 60)
    assert sum(history) > 0.8 * len(history)
    assert all(history[len(history) // 2 :])


def test_halves_of_one_core_are_no_reason_to_be_alone() -> None:
    """Two threads that share a core are as fast as one: nothing to win, much to lose after."""
    pacing = Pacing(2)
    simulate(pacing, lambda now: (1.0, 1.97), 200)
    assert all(simulate(pacing, lambda now: (2.0, 1.97), 3000, 200))


def test_the_time_alone_passes_while_nothing_runs() -> None:
    pacing = Pacing(2)
    simulate(pacing, lambda now: (1.0, 2.0), 100)
    simulate(pacing, lambda now: (4.0, 2.0), 5000, 100)
    assert pacing.together(7000 * MS)  # the next run after a pause tries again
