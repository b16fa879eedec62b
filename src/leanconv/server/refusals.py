"""Why a request gets no result: a status of HTTP and a message."""

from __future__ import annotations

from leanconv.errors import BudgetError, LeanConvError, OutOfMemoryError

BAD, NOT_FOUND, TOO_SLOW, NO_LENGTH, TOO_LARGE = 400, 404, 408, 411, 413
NO_CODING, NO_FORM = 415, 422
FAILED, BUSY, TOO_LONG = 500, 503, 504


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
    """What a request is answered where the network, or its planner, does not take it."""
    if isinstance(error, OutOfMemoryError):
        return RefusedError(BUSY, str(error), retry_s=1)
    if isinstance(error, BudgetError):
        return RefusedError(TOO_LARGE, f"{error}; this is the server's limit, `--memory-limit`")
    return RefusedError(BAD, str(error))
