"""Requests that are malformed, too large, slow or aborted, to a server of leanconv.

    python benchmarks/serving_bad.py --record serving_bad
    python benchmarks/serving_bad.py --requests 1000

They are sent in random order from several connections at a time, good ones among them; each status
is checked, and the resident memory of the server is looked at all the while. The exit code is 3
where a status was another one than it should be.

The server is a process of its own. Needs leanconv[server].
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from harness import script
from leanconv.cli.options import positive
from serving import (
    INFER,
    OURS,
    Server,
    add_server_options,
    answer,
    facts,
    measured,
    model_and_request,
    started,
    write,
)

ABORTED, SLOW = None, 0  # in the place of a status
_SLOW_SHARE = 0.05  # of them there are few: they wait until they are cut
_EARLIER = 2000  # requests before memory is looked at


def bad_requests(good: bytes) -> dict[str, tuple[bytes, int | None]]:
    """By kind, the bytes of a request, and the status that it gets, `ABORTED` or `SLOW`."""
    head, body = good.split(b"\r\n\r\n", 1)
    post = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode()

    def whole(text: bytes, extra: bytes = b"") -> bytes:
        return post + b"Content-Length: %d\r\n%s\r\n" % (len(text), extra) + text

    nested = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 9999
    return {
        "good": (good, 200),
        "no JSON": (whole(b"{"), 400),
        "no inputs": (whole(b"{}"), 400),
        "nested without end": (whole(nested), 400),
        "other bytes": (whole(random.Random(0).randbytes(5000)), 400),
        "no such model": (good.replace(b"models/model/", b"models/other/", 1), 404),
        "fewer raw bytes": (whole(body[:-4], head[head.index(b"Inference") :] + b"\r\n"), 400),
        "more JSON than there is": (whole(b"{}", b"Inference-Header-Content-Length: 9\r\n"), 400),
        "too large": (post + b"Content-Length: 999999999999\r\n\r\n", 413),
        "too much JSON": (whole(b"0" * 9_000_000), 413),
        "chunked": (post + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        "long headers": (post + b"A: " + b"a" * 70_000, 400),
        "another method": (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        "aborted in the headers": (good[:40], ABORTED),
        "aborted in the body": (good[: len(good) // 2], ABORTED),
        "aborted at the end": (good, ABORTED),
        "slow headers": (good[:40], SLOW),
        "slow body": (good[:-9], SLOW),
    }


class Abuse:
    """Bad requests to one server, and what came of them.

    Args:
        server: that gets them.
        kinds: of `bad_requests`.

    Attributes:
        sent: how many of each kind.
        wrong: answers that should have been others, by kind and answer.
        resident_bytes: of the server, over time.
    """

    def __init__(self, server: Server, kinds: dict[str, tuple[bytes, int | None]]) -> None:
        self._server, self._kinds = server, kinds
        self.sent: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.resident_bytes = [server.resident_bytes]
        self._slow: list[asyncio.Future[None]] = []

    async def send(self, count: int, clients: int, seed: int) -> None:
        """Send so many requests in random order, from so many connections at a time."""
        weights = [_SLOW_SHARE if status == SLOW else 1.0 for _, status in self._kinds.values()]
        chosen = random.Random(seed).choices(list(self._kinds), weights, k=count)
        await asyncio.gather(*(self._client(chosen[n::clients]) for n in range(clients)))
        await asyncio.gather(*self._slow)
        self.resident_bytes.append(self._server.resident_bytes)

    async def _client(self, kinds: Sequence[str]) -> None:
        for number, kind in enumerate(kinds):
            if self._kinds[kind][1] == SLOW:
                self._slow.append(asyncio.ensure_future(self._one(kind)))
            else:
                await self._one(kind)
            if number % 50 == 49:
                self.resident_bytes.append(self._server.resident_bytes)

    async def _one(self, kind: str) -> None:
        """Send a request and look at what comes."""
        self.sent[kind] += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=2**24)
        try:
            said = await _answered(reader, writer, *self._kinds[kind])
            if said:
                self.wrong[f"{kind}: {said}"] += 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            if self._kinds[kind][1] != SLOW:
                self.wrong[f"{kind}: {type(error).__name__}"] += 1
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _answered(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, status: int | None
) -> str:
    """Send bytes; say what came, if it is not what should."""
    writer.write(data)
    if status is ABORTED:
        await asyncio.wait_for(writer.drain(), 10)
        return ""
    if status == SLOW:
        got = await asyncio.wait_for(reader.read(100), 200)
        return repr(got[:30]) if got and b" 408 " not in got else ""
    found, _ = await asyncio.wait_for(answer(reader), 60)
    return f"{found} instead of {status}" if found != status else ""


def abuse(request: bytes, options: argparse.Namespace) -> dict[str, Any]:
    """Bad requests to leanconv's server, and a look whether it still answers."""
    server = started(OURS, options)
    kinds = bad_requests(request)
    try:
        first = Abuse(server, kinds)
        asyncio.run(first.send(_EARLIER, options.clients, seed=0))
        found = Abuse(server, kinds)
        asyncio.run(found.send(options.requests, options.clients, seed=1))
        after = measured(server, request, clients=2, seconds=1.0)
    finally:
        code = server.stop()
    words = {ABORTED: "aborted", SLOW: "408 or cut"}
    return {
        "kinds": {
            kind: {"sent": found.sent[kind], "answer": words.get(status, str(status))}
            for kind, (_, status) in kinds.items()
        },
        "wrong": dict(first.wrong + found.wrong),
        "earlier": _EARLIER,
        "resident_bytes": found.resident_bytes,
        "good_per_second_after": after["per_second"],
        "exit_code": code,
    }


def show(found: dict[str, Any]) -> None:
    """Print what was found."""
    resident = [count / 2**20 for count in found["resident_bytes"]]
    sent = {kind: each["sent"] for kind, each in found["kinds"].items()}
    print(f"{sum(sent.values())} requests of {len(sent)} kinds: {sent}")
    print(f"other answers than expected: {found['wrong'] or 'none'}")
    print(
        f"resident: {resident[0]:.1f} MiB before ({found['earlier']} such requests earlier), "
        f"{max(resident):.1f} at most, {resident[-1]:.1f} after; "
        f"{found['good_per_second_after']:.0f} good requests a second after that; "
        f"exit code {found['exit_code']}"
    )


def main() -> int:
    """Read the command line, send requests, say what came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_options(parser)
    parser.add_argument("--requests", type=positive, default=10_000)
    options = parser.parse_args()
    request = model_and_request(options)
    document = facts(options, "requests")
    document.update(abuse(request, options))
    write(document, options.out)
    show(document)
    return 3 if document["wrong"] or document["exit_code"] else 0


if __name__ == "__main__":
    script(main)
