"""Bounds on requests (bytes, counts, times), and the errors of those that get no result."""

from __future__ import annotations

from leanconv.errors import BudgetError, LeanConvError, OutOfMemoryError
from leanconv.records import dataclass
from leanconv.units import format_bytes

BAD, NOT_FOUND, TOO_SLOW, NO_LENGTH, TOO_LARGE = 400, 404, 408, 411, 413
NO_CODING, NO_FORM = 415, 422
FAILED, BUSY, TOO_LONG = 500, 503, 504
MOST_BATCH = 1024  # that `batch` may be
# Bytes of Python's objects for a byte of JSON: a list without elements is 56 bytes for 3.
JSON_FACTOR = 24
# And for each list or object: lists in lists are 88 bytes for 2, objects of one key 232 for 6.
BRACKET_BYTES = 192
NUMBER_BYTES = 25  # that a number may have in an answer's JSON: -1.2345678901234567e-300, a comma


class RefusedError(Exception):
    """A request that is answered by a status and a message.

    Attributes:
        status: of HTTP.
        retry_s: when it may be tried again, in seconds; None where that would change nothing.
    """

    def __init__(self, status: int, message: str, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_s = status, retry_s


def refusal(error: LeanConvError) -> RefusedError:
    """Make the answer to a request whose arrays the network, or its planner, does not take."""
    if isinstance(error, OutOfMemoryError):
        return RefusedError(BUSY, str(error), retry_s=1)
    if isinstance(error, BudgetError):
        return RefusedError(TOO_LARGE, f"{error}; this is the server's limit, `--memory-limit`")
    return RefusedError(BAD, str(error))


@dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: of a request's body.
        json_bytes: of a body's JSON, and of JSON in an answer: numbers as text take up to
            `JSON_FACTOR` times as much while they are read.
        request_bytes: of all requests in flight together: bodies, arrays, results.
        header_bytes: of a request's line and headers.
        connections: that are open at a time.
        queued: requests that wait for their turn.
        planning: shapes that wait to be planned.
        groups: shapes of a model that stay planned, batch sizes not counted.
        batch: images that are computed together.
        delay_ns: how long a request may wait for others to be computed with.
        header_s: until a request's headers are there, from its first byte or the connection's.
        write_s: how long a client may read nothing of an answer.
        request_s: from the headers to the answer.
        plan_s: how long a request waits until its shape is planned; it is planned all the same.
        memory_bytes: of all plans and all requests in flight together; None for any.
        request_share: one part in as many of `memory_bytes` is `request_bytes`; None where these
            were given by themselves.
    """

    body_bytes: int = 64 * 2**20
    json_bytes: int = 8 * 2**20
    request_bytes: int = 512 * 2**20
    header_bytes: int = 32 * 2**10
    connections: int = 512
    queued: int = 256
    planning: int = 8
    groups: int = 16
    batch: int = 8
    delay_ns: int = 2_000_000
    header_s: int = 10
    write_s: int = 30
    request_s: int = 60
    plan_s: float = 10
    memory_bytes: int | None = None
    request_share: int | None = None

    @property
    def plan_bytes(self) -> int | None:
        """The most that the plans of all models may take together; None for any."""
        return None if self.memory_bytes is None else self.memory_bytes - self.request_bytes

    def memory_for(self, plan_bytes: int) -> int:
        """The least `memory_bytes` of which plans may take so much."""
        share = self.request_share
        if share is None:
            return plan_bytes + self.request_bytes
        return plan_bytes + (plan_bytes - 1) // (share - 1)


class RequestBytes:
    """The bytes of all requests in flight; used by the event loop's thread alone.

    Args:
        limit: the most.

    Attributes:
        held: the bytes now.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    def share(self) -> Share:
        """Return the share of a new request, which has no bytes yet."""
        return Share(self)


class Share:
    """The bytes of one request: `with requests.share() as share: share.take(1000)`."""

    def __init__(self, requests: RequestBytes) -> None:
        self._requests, self.bytes = requests, 0

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        self.give(self.bytes)

    def take(self, count: int) -> None:
        """Count bytes before they are allocated.

        Raises:
            RefusedError: the bytes do not fit now.
        """
        requests = self._requests
        if requests.held + count > requests.limit:
            raise RefusedError(
                BUSY,
                f"the request takes {format_bytes(self.bytes + count)} with its result; those in "
                f"flight take {format_bytes(requests.held - self.bytes)} of "
                f"{format_bytes(requests.limit)}: try again later, or send fewer images at once",
                retry_s=1,
            )
        requests.held += count
        self.bytes += count

    def give(self, count: int) -> None:
        """Count bytes no longer."""
        self._requests.held -= count
        self.bytes -= count
