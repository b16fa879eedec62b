"""HTTP connections, and requests on them, on which nobody can be slow without end.

uvicorn's own bound is for idle connections between two requests. Here one is cut, too, whose
headers do not come (`header_s`), and one whose client does not read its answer (`write_s`); bodies
that do not come are answered by an `Exchange`, which is one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from leanconv.server.limits import (
    BAD,
    BUSY,
    NO_CODING,
    NO_LENGTH,
    TOO_LARGE,
    TOO_SLOW,
    Limits,
    RefusedError,
)
from leanconv.server.protocol import JSON_LENGTH
from leanconv.server.service import GoneError, Receive
from leanconv.units import format_bytes

_IDLE_S = 15  # between two requests of a connection
_BACKLOG = 512  # connections that the system accepts before the server does
_STOP_S = 2  # beyond the time that a request may take
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Scope = Mapping[str, Any]
_LINGER_S, _LINGER_BYTES = 2, 2**26  # a body that is refused is read so far, and thrown away
_ALIGNMENT = 64


class BoundedProtocol(H11Protocol):
    """A connection; `limits` is set by a class made for each server."""

    limits = Limits()
    app: Any
    connections: set[Any]
    _headers_due: asyncio.TimerHandle | None = None
    _writing_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect headers."""
        super().connection_made(transport)
        self.app = self._unless_crowded(self.app)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` where any byte is unsent
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of headers, or of a body that nobody reads any more, by a deadline."""
        if not self._answering():
            self._expect_headers()
        super().data_received(data)
        if self._answering():
            self._have_headers()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP."""
        body = refusal_response(RefusedError(BAD, msg)).body
        head = f"content-type: application/json\r\ncontent-length: {len(body)}"
        self.transport.write(f"HTTP/1.1 {BAD} Bad Request\r\n{head}\r\n".encode())
        self.transport.write(b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _unless_crowded(self, app: Any) -> Any:
        """The application; a refusal while too many connections are open."""

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if len(self.connections) < self.limits.connections:
                await app(scope, receive, send)
                return
            text = f"{len(self.connections)} connections are open; try again later"
            response = refusal_response(RefusedError(BUSY, text, retry_s=1))
            response.headers["connection"] = "close"
            await response(scope, receive, send)

        return answer

    def pause_writing(self) -> None:
        """Expect the client to read."""
        super().pause_writing()
        if self._writing_due is None:
            self._writing_due = self.loop.call_later(self.limits.write_s, self._cut)

    def resume_writing(self) -> None:
        """All bytes are sent."""
        super().resume_writing()
        self._have_written()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both clocks."""
        self._have_headers()
        super().connection_lost(exc)
        self._have_written()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        if self._headers_due is None:
            self._headers_due = self.loop.call_later(self.limits.header_s, self._late)

    def _have_headers(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _have_written(self) -> None:
        if self._writing_due is not None:
            self._writing_due.cancel()
            self._writing_due = None

    def _late(self) -> None:
        if not self._answering():
            self._cut()

    def _cut(self) -> None:
        self.transport.abort()


def server(app: Any, limits: Limits) -> uvicorn.Server:
    """Make a server that runs an application within limits, for `.run(sockets=[socket])`."""
    protocol = type("Protocol", (BoundedProtocol,), {"limits": limits})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",  # not a line for each request that is no HTTP
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=limits.request_s + _STOP_S,
    )
    return uvicorn.Server(config)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens: who connects from now on waits until `server` runs.

    Port 0 is any that is free.

    Raises:
        OSError: the address is not available.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    made.set_inheritable(True)
    return made


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
        receive: gives the next message from the client.
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
            RefusedError: lengths are missing, or too large.
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
        """Receive the next part of the body.

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
        start = {"type": "http.response.start", "status": response.status_code}
        await self._send({**start, "headers": response.raw_headers})


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise RefusedError(BAD, f"got {what} {text[:50]!r}; expected a number of bytes")
    return int(text)
