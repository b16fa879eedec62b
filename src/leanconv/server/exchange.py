"""One request over HTTP and its answer: lengths that are said, a body in time, an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from leanconv.server.limits import Limits
from leanconv.server.protocol import JSON_LENGTH
from leanconv.server.refusals import (
    BAD,
    NO_CODING,
    NO_LENGTH,
    TOO_LARGE,
    TOO_SLOW,
    RefusedError,
)
from leanconv.server.service import GoneError, Receive
from leanconv.units import format_bytes

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Scope = Mapping[str, Any]

_LINGER_S, _LINGER_BYTES = 2, 2**26  # a body that is refused is read so far, and thrown away
_ALIGNMENT = 64


def refusal_response(error: RefusedError) -> Response:
    """The answer to a request that is refused."""
    headers = {} if error.retry_s is None else {"retry-after": str(error.retry_s)}
    text = json.dumps({"error": str(error)})
    return Response(text, error.status, headers, "application/json")


class Exchange:
    """One request and its answer.

    Args:
        scope, receive, send: of ASGI.
        limits: of requests.

    Attributes:
        receive: what comes next from the client.
        deadline: for the result, of the event loop's clock.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.receive, self._send, self._limits = receive, send, limits
        self._headers = Headers(scope=scope)
        self._left = True  # of the body
        self.deadline = asyncio.get_running_loop().time() + limits.request_s

    def lengths(self) -> tuple[int, int]:
        """Bytes of the body, and how many of them are JSON.

        Raises:
            RefusedError: they are not said, or too many.
        """
        limits, headers = self._limits, self._headers
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            raise RefusedError(NO_CODING, f"got content-encoding {coding[:50]!r}; expected none")
        if "content-length" not in headers or "transfer-encoding" in headers:
            raise RefusedError(NO_LENGTH, "got no Content-Length; expected it: no chunked bodies")
        length = _number(headers["content-length"], "Content-Length")
        given = headers.get(JSON_LENGTH)
        json_length = length if given is None else _number(given, JSON_LENGTH)
        if length > limits.body_bytes:
            raise RefusedError(
                TOO_LARGE,
                f"got {length} bytes; expected at most {format_bytes(limits.body_bytes)}: send "
                "fewer images at once, or raise --max-body",
            )
        if json_length > length:
            raise RefusedError(BAD, f"got {JSON_LENGTH} {json_length} of {length} bytes")
        if json_length > limits.json_bytes:
            raise RefusedError(
                TOO_LARGE,
                f"got more than {format_bytes(limits.json_bytes)} of JSON; send binary tensors "
                f"(the header {JSON_LENGTH}, and binary_data_size)",
            )
        return length, json_length

    async def body(self, length: int, json_length: int) -> memoryview:
        """The whole body; what follows the JSON begins at a multiple of `_ALIGNMENT`.

        Raises:
            RefusedError: it does not come in time.
            GoneError: the client has gone.
        """
        shift = -json_length % _ALIGNMENT
        buffer = memoryview(bytearray(shift + length))[shift:]
        left = self.deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(self._read(buffer), left)
        except asyncio.TimeoutError as error:
            self._left = False  # nothing is waited for any more
            raise RefusedError(
                TOO_SLOW, f"the body did not come within {self._limits.request_s} s"
            ) from error
        return buffer

    async def _read(self, buffer: memoryview) -> None:
        done = 0
        while self._left:
            part = await self._part()
            buffer[done : done + len(part)] = part
            done += len(part)

    async def _part(self) -> bytes:
        """What of the body comes next.

        Raises:
            GoneError: the client has gone.
        """
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        self._left = message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def answer(self, body: bytes, json_bytes: int | None) -> None:
        """Answer by a body of which so many bytes are JSON; None for all."""
        if json_bytes is None:
            response = Response(body, media_type="application/json")
        else:
            headers = {JSON_LENGTH: str(json_bytes)}
            response = Response(body, 200, headers, "application/octet-stream")
        await self._start(response)
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, error: RefusedError) -> None:
        """Answer by an error; then close, if the body was not read."""
        response = refusal_response(error)
        unread = self._left or error.status == TOO_SLOW
        if unread:
            response.headers["connection"] = "close"
        await self._start(response)
        body = {"type": "http.response.body", "body": response.body, "more_body": unread}
        await self._send(body)
        if unread:
            # Closing while bytes arrive would reset the connection before the answer is read.
            with contextlib.suppress(asyncio.TimeoutError, GoneError):
                await asyncio.wait_for(self._drain(), _LINGER_S)
            await self._send({"type": "http.response.body", "body": b""})

    async def _drain(self) -> None:
        count = 0
        while self._left and count < _LINGER_BYTES:
            count += len(await self._part())

    async def _start(self, response: Response) -> None:
        """Send the status and the headers of an answer."""
        start = {"type": "http.response.start", "status": response.status_code}
        await self._send({**start, "headers": response.raw_headers})


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise RefusedError(BAD, f"got {what} {text[:50]!r}; expected a number of bytes")
    return int(text)
