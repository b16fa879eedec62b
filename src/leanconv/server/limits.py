"""What requests may ask for: bytes, counts, times."""

from __future__ import annotations

from leanconv.records import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: of a request's body.
        json_bytes: of what of it is JSON, and of JSON in an answer: numbers as text take up to
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


MOST_BATCH = 1024  # that `batch` may be

# Bytes of Python's objects for a byte of JSON: a list without elements is 56 bytes for 3.
JSON_FACTOR = 24
# And for each list or object: lists in lists are 88 bytes for 2, objects of one key 232 for 6.
BRACKET_BYTES = 192
NUMBER_BYTES = 25  # that a number may have in an answer's JSON: -1.2345678901234567e-300, a comma
