"""Bytes of requests in flight, counted before they are read."""

from __future__ import annotations

from leanconv.server.refusals import BUSY, RefusedError
from leanconv.units import format_bytes


class RequestBytes:
    """What all requests in flight take together; used by the event loop's thread alone.

    Args:
        limit: the most.

    Attributes:
        held: the bytes now.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    def share(self) -> Share:
        """Of a request, that holds nothing yet."""
        return Share(self)


class Share:
    """What one request takes: `with requests.share() as share: share.take(1000)`."""

    def __init__(self, requests: RequestBytes) -> None:
        self._requests, self.bytes = requests, 0

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        self.give(self.bytes)

    def take(self, count: int) -> None:
        """Count bytes before they are allocated.

        Raises:
            RefusedError: they do not fit now.
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
