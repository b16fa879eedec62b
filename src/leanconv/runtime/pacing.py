"""Detecting when several threads are slower than one because another process holds a core.

When another process holds a core, the thread that the system took off it leaves all others
waiting for its chunk, for milliseconds: 2.5 times slower than quiet on a program of 1 ms, where one
thread alone would take 2 times as long. No split of the work helps; using one thread does.
"""

from __future__ import annotations

_WINDOW = 8  # runs at least whose mean is judged
_PROBE = 4  # runs at least of a probe
_JUDGED_NS = 2_000_000  # and for so long at least: a few runs of 50 us say little
_SETTLE_NS = 1_000_000  # of a probe are not judged: parked workers come back, caches fill
_ALONE_NS = 50_000_000  # run alone for this long before the first probe, doubled up to the most
_ALONE_MOST_NS = 800_000_000
_WORSE = 1.12  # threads together must be slower than one by this: halves of one core are as fast
_DRIFT = 1.002  # by which the quiet time may rise with each run, to follow slow changes


class Pacing:
    """Decides for each run whether the workers take part.

    Args:
        threads: threads of the program.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._quiet = 0.0  # ns of an undisturbed run together
        self._alone = 0.0  # ns of a run alone, 0 if unknown
        self._sum, self._count, self._most = 0.0, 0, 0
        self._rest_until = 0  # when the time to run alone ends, 0 if there is none
        self._patience = _ALONE_NS
        self._probing = False
        self._settled = 0  # when the runs of a probe begin to count
        self._unjudged: list[int] = []  # ns of the last runs together

    def together(self, now: int) -> bool:
        """Return whether the workers should take part in the run that begins at `now`, in ns."""
        if self._rest_until and now >= self._rest_until:
            self._rest_until, self._probing = 0, True
            self._settled = now + _SETTLE_NS
            self._sum, self._count, self._most = 0.0, 0, 0
        return not self._rest_until

    def record(self, elapsed: int, together: bool, now: int) -> None:
        """Learn from a run of `elapsed` ns that has ended at `now`."""
        if not together:
            self._alone = elapsed if not self._alone else 0.75 * self._alone + 0.25 * elapsed
            return
        # Most runs are only noted: after a run the caches hold little of Python.
        self._unjudged.append(elapsed)
        if len(self._unjudged) >= _WINDOW or self._probing:
            for each in self._unjudged:
                self._judge(each, now)
            self._unjudged.clear()

    def _judge(self, elapsed: int, now: int) -> None:
        """Learn from a run together; after a window of them, see whether they are worth it."""
        self._quiet = float(elapsed) if not self._quiet else min(self._quiet * _DRIFT, elapsed)
        if self._probing and now - elapsed < self._settled:
            return
        self._sum += elapsed
        self._count += 1
        self._most = max(self._most, elapsed)
        if self._count < (_PROBE if self._probing else _WINDOW) or self._sum < _JUDGED_NS:
            return
        # One long run in a window is an accident, such as a page fault, and is not counted.
        mean = (self._sum - self._most) / (self._count - 1)
        self._sum, self._count, self._most = 0.0, 0, 0
        expected = self._alone or self._threads * self._quiet
        if mean > _WORSE * expected:
            self._rest_until = now + self._patience
            self._patience = min(2 * self._patience, _ALONE_MOST_NS)
        else:
            self._patience = _ALONE_NS
            if not self._probing:
                self._alone = 0.0  # forget: it may have been measured in a disturbed time
        self._probing = False
