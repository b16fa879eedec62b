"""HTTP connections on which nobody can be slow without end.

uvicorn's own bound is for idle connections between two requests. Here one is cut, too, whose
headers do not come (`header_s`), and one whose client does not read its answer (`write_s`); bodies
that do not come are `app`'s to answer.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from leanconv.server.exchange import refusal_response
from leanconv.server.limits import Limits
from leanconv.server.refusals import BAD, BUSY, RefusedError

_IDLE_S = 15  # between two requests of a connection
_BACKLOG = 512  # connections that the system accepts before the server does
_STOP_S = 2  # beyond the time that a request may take


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
        """Refuse what is no HTTP."""
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
    """What runs an application within limits: `server(app, limits).run(sockets=[socket])`."""
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
        OSError: it cannot be had.
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
