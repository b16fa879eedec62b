"""One thread that computes what requests wait for, in batches, in the order of their arrival.

While a batch is computed others arrive: the next one takes as many as there are, up to the largest
planned size that they fill, and leaves the rest to the one after it. So no image waits for a batch
to fill, but where other requests for the model are just being read: then up to `delay_ns`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import numpy as np

from leanconv.errors import LeanConvError
from leanconv.records import dataclass
from leanconv.server.limits import BUSY, FAILED, RefusedError
from leanconv.server.plans import Group, Plans

log = logging.getLogger(__name__)
Arrays = Sequence[np.ndarray]


class Job:
    """One request's computation, which waits for its batch.

    Args:
        plans, group: with which it is computed.
        arrays: of all inputs.
        rows: images in it; 1 where it is computed as a whole.
        expected: whether further requests are about to come for the same model.

    Attributes:
        future: of the outputs; cancelling it before they are there takes the job out.
        queued_ns, begun_ns: when it came, and when its first batch began.
    """

    def __init__(
        self, plans: Plans, group: Group, arrays: Arrays, rows: int, expected: Callable[[], bool]
    ) -> None:
        self.plans, self.group, self.arrays, self.rows = plans, group, arrays, rows
        self.expected = expected
        self.future: Future[list[np.ndarray]] = Future()
        self.queued_ns = time.monotonic_ns()
        self.begun_ns = 0
        self.taken = 0  # images that are computed, or being computed
        self._parts: list[list[np.ndarray]] = []

    def accept(self, part: list[np.ndarray], last: bool) -> None:
        """Take the outputs of its next images; of the last ones, answer."""
        self._parts.append(part)
        if not last:
            return
        parts = self._parts
        whole = (
            parts[0] if len(parts) == 1 else [np.concatenate(p) for p in zip(*parts, strict=True)]
        )
        with suppress(InvalidStateError):  # cancelled by now
            self.future.set_result(whole)


@dataclass(frozen=True)
class Piece:
    """Images of a job, from one up to another, that are in a batch."""

    job: Job
    first: int
    after: int

    @property
    def rows(self) -> int:
        """The number of images."""
        return self.after - self.first


class Batcher:
    """The queue and its thread.

    Args:
        most: jobs that may wait.
        delay_ns: how long the oldest one may wait for others that are on their way.
        ran: is called after each batch with its images and its duration in nanoseconds.
    """

    def __init__(self, most: int, delay_ns: int, ran: Callable[[Plans, int, int], None]) -> None:
        self._most, self._delay_ns, self._ran = most, delay_ns, ran
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="leanconv-batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            RefusedError: too many wait already.
        """
        with self._changed:
            if len(self._queue) >= self._most or self._stopping:
                raise RefusedError(
                    BUSY, f"{len(self._queue)} requests wait already; try again later", retry_s=1
                )
            self._queue.append(job)
            self._changed.notify()

    def forget(self, job: Job) -> None:
        """Take a job out for which nobody waits any more, with its arrays."""
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)

    def close(self) -> None:
        """Compute all queued jobs, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while self._worked():
            pass

    def _worked(self) -> bool:
        """Compute the next batch; False where the thread is to end.

        What the batch holds (arrays, results, plans) is let go before the next one is waited for.
        """
        pieces = self._next()
        if pieces is not None:
            self._compute(pieces)
        return pieces is not None

    def _next(self) -> list[Piece] | None:
        """Wait for pieces of jobs of one group to compute; None where the thread is to end."""
        with self._changed:
            while True:
                self._forget_cancelled()
                if not self._queue:
                    if self._stopping:
                        return None
                    self._changed.wait()
                    continue
                oldest = self._queue[0]
                same = [job for job in self._queue if job.group is oldest.group]
                rows = sum(job.rows - job.taken for job in same)
                left_ns = oldest.queued_ns + self._delay_ns - time.monotonic_ns()
                full = rows >= oldest.group.sizes[-1] or not oldest.group.batched
                if full or left_ns <= 0 or self._stopping or not oldest.expected():
                    return self._taken(same, oldest.group.size_for(rows))
                self._changed.wait(left_ns / 1e9)

    def _forget_cancelled(self) -> None:
        if any(job.future.cancelled() for job in self._queue):
            self._queue = deque(job for job in self._queue if not job.future.cancelled())

    def _taken(self, jobs: Sequence[Job], size: int) -> list[Piece]:
        """The next `size` images of jobs, which are left in the queue with what remains."""
        pieces, now = [], time.monotonic_ns()
        if not jobs[0].group.batched:
            jobs = jobs[:1]
        for job in jobs:
            rows = min(size, job.rows - job.taken)
            pieces.append(Piece(job, job.taken, job.taken + rows))
            job.begun_ns = job.begun_ns or now
            job.taken += rows
            size -= rows
            if job.taken == job.rows:
                self._queue.remove(job)
            if not size:
                break
        return pieces

    def _compute(self, pieces: Sequence[Piece]) -> None:
        job = pieces[0].job
        begin = time.monotonic_ns()
        try:
            results = self._results(pieces)
            rows = sum(piece.rows for piece in pieces)
            self._ran(job.plans, rows, time.monotonic_ns() - begin)
            for piece, part in zip(pieces, results, strict=True):
                piece.job.accept(part, last=piece.after == piece.job.rows)
        except LeanConvError as error:
            if len(pieces) > 1:  # the values of one image may be refused: the others are fine
                for piece in pieces:
                    self._compute([piece])
                return
            self._fail(job, error)
        except Exception as error:
            log.exception("a batch failed")
            for piece in pieces:
                self._fail(piece.job, RefusedError(FAILED, f"{type(error).__name__}: {error}"))

    def _fail(self, job: Job, error: Exception) -> None:
        self.forget(job)
        with suppress(InvalidStateError):  # cancelled, or failed by another piece
            job.future.set_exception(error)

    def _results(self, pieces: Sequence[Piece]) -> list[list[np.ndarray]]:
        job, rows = pieces[0].job, sum(piece.rows for piece in pieces)
        plans, group = job.plans, job.group
        if not group.batched:
            return [plans.run(group, 1, job.arrays)]
        size = next((s for s in group.sizes if s >= rows), group.sizes[-1])
        if len(pieces) == 1 and rows == size:
            piece = pieces[0]
            return [plans.run(group, size, [a[piece.first : piece.after] for a in job.arrays])]
        batch = [_joined(pieces, n, size) for n in range(len(job.arrays))]
        found = plans.run(group, size, batch)
        parts, first = [], 0
        for piece in pieces:
            parts.append([array[first : first + piece.rows] for array in found])
            first += piece.rows
        return parts


def _joined(pieces: Sequence[Piece], number: int, size: int) -> np.ndarray:
    """The images of one input in a batch of `size`, zeros behind them."""
    like = pieces[0].job.arrays[number]
    batch = np.empty((size, *like.shape[1:]), like.dtype)
    first = 0
    for piece in pieces:
        batch[first : first + piece.rows] = piece.job.arrays[number][piece.first : piece.after]
        first += piece.rows
    batch[first:] = 0
    return batch
