"""A server under load: leanconv and ONNX Runtime behind the same server and clients.

    python benchmarks/serving.py mobilenetv2.onnx --clients 16 --seconds 10 --rounds 5
    python benchmarks/serving.py mobilenetv2.onnx --bad 10000

The first form asks both, in turn, from as many connections as there are clients, each of which
sends its next image when the last answer has come: requests a second, median and 99th percentile.
Both engines are behind `leanconv.server` (protocol, queue, batches); ONNX Runtime, whose shapes
need no planning, may take batches of any size. The second form sends requests that are malformed,
too large, slow or aborted, in random order, checks each status, and says what memory did.

Servers and clients are processes of their own. Needs leanconv[server], and onnxruntime.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OURS, PEER = "leanconv", "onnxruntime"
INFER = "/v2/models/model/infer"


# -- servers ---------------------------------------------------------------------------------------
@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    def stop(self) -> int:
        """End it well; its exit code."""
        self.process.terminate()
        return self.process.wait(60)

    @property
    def resident_bytes(self) -> int:
        """Its resident memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024


def started(engine: str, options: argparse.Namespace) -> Server:
    """Start a server and wait until it listens."""
    common = ["--threads", str(options.threads), "--max-batch", str(options.max_batch)]
    common += ["--max-delay", options.max_delay, "--port", "0"]
    if engine == OURS:
        command = [sys.executable, "-m", "leanconv", "serve", f"model={options.model}", *common]
    else:
        command = [sys.executable, __file__, options.model, "--serve-peer", *common]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.search(r"serving on http://[^:]+:(\d+)", line)
        if found:
            return Server(process, int(found[1]))
    raise SystemExit("".join(said))


def serve_peer(options: argparse.Namespace) -> int:
    """Serve the model by ONNX Runtime behind leanconv's server, in this process."""
    from engines.server_peer import models_of
    from leanconv.cli.common import duration
    from leanconv.server.app import application
    from leanconv.server.connections import listening, server
    from leanconv.server.limits import Limits
    from leanconv.server.service import Service

    models = models_of(options.model, options.threads, options.max_batch)
    limits = Limits(batch=options.max_batch, delay_ns=duration(options.max_delay))
    bound = listening("127.0.0.1", 0)
    service = Service(models, limits)
    print(f"serving on http://127.0.0.1:{bound.getsockname()[1]}", file=sys.stderr, flush=True)
    with suppress(KeyboardInterrupt):
        server(application(service, local=True), limits).run(sockets=[bound])
    return 0


# -- clients ---------------------------------------------------------------------------------------
def request_bytes(inputs: Mapping[str, np.ndarray]) -> bytes:
    """A whole request with raw float32 tensors, which asks for raw results."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    document = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    text = json.dumps(document).encode()
    body = b"".join([text, *(array.tobytes() for array in inputs.values())])
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Inference-Header-Content-Length: {len(text)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next answer of a connection: its status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else b""
    return int(head.split(b" ", 2)[1]), body


async def load(port: int, request: bytes, clients: int, seconds: float) -> list[float]:
    """Latencies, in seconds, of all requests that clients could make in so many seconds."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        while (begin := time.perf_counter()) < until:
            writer.write(request)
            status, body = await answer(reader)
            assert status == 200, body
            latencies.append(time.perf_counter() - begin)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return latencies


def measured(server: Server, request: bytes, options: argparse.Namespace) -> dict[str, float]:
    """Throughput and latencies of a server."""
    begin = time.perf_counter()
    latencies = sorted(asyncio.run(load(server.port, request, options.clients, options.seconds)))
    wall = time.perf_counter() - begin
    return {
        "per_second": len(latencies) / wall,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] * 1e3,
        "resident_mib": server.resident_bytes / 2**20,
    }


def compare(request: bytes, options: argparse.Namespace) -> dict[str, Any]:
    """Both servers under the same load, in turn."""
    servers = {engine: started(engine, options) for engine in (OURS, PEER)}
    rounds: dict[str, list[dict[str, float]]] = {engine: [] for engine in servers}
    try:
        for server in servers.values():  # warm
            asyncio.run(load(server.port, request, options.clients, 1.0))
        for number in range(options.rounds):
            for engine in list(servers)[:: 1 if number % 2 else -1]:
                rounds[engine].append(measured(servers[engine], request, options))
    finally:
        codes = {engine: server.stop() for engine, server in servers.items()}
    pairs = zip(rounds[OURS], rounds[PEER], strict=True)
    ratios = [ours["per_second"] / peer["per_second"] for ours, peer in pairs]
    found: dict[str, Any] = {"ratio": statistics.median(ratios), "ratios": ratios}
    found["exit_codes"] = codes
    for engine, each in rounds.items():
        found[engine] = {key: statistics.median(r[key] for r in each) for key in each[0]}
        row = found[engine]
        print(
            f"{engine:12} {row['per_second']:8.1f} a second  median {row['p50_ms']:7.2f} ms  "
            f"99 % {row['p99_ms']:7.2f} ms  {row['resident_mib']:6.0f} MiB"
        )
    print(
        f"throughput: {found['ratio']:.2f}x ONNX Runtime's, {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return found


# -- bad requests ----------------------------------------------------------------------------------
def bad_requests(good: bytes) -> dict[str, tuple[bytes, int | None]]:
    """By kind, the bytes of a request, and the status that it gets; None where it is aborted."""
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
        "aborted in the headers": (good[:40], None),
        "aborted in the body": (good[: len(good) // 2], None),
        "aborted at the end": (good, None),
        "slow headers": (good[:40], 0),
        "slow body": (good[:-9], 0),
    }


async def send_bad(server: Server, good: bytes, count: int, clients: int) -> dict[str, Any]:
    """Send bad requests; statuses that are not what they should be, and memory over time."""
    kinds = bad_requests(good)
    order = random.Random(1)
    # Slow ones wait until they are cut: of them there are few, at any time.
    weights = [0.05 if status == 0 else 1.0 for _, status in kinds.values()]
    chosen = order.choices(list(kinds), weights, k=count)
    seen: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    resident = [server.resident_bytes]
    slow = []

    async def one(kind: str) -> None:
        data, status = kinds[kind]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**24)
        seen[kind] += 1
        try:
            writer.write(data)
            if status is None:
                await asyncio.wait_for(writer.drain(), 10)
                return
            if status == 0:
                got = await asyncio.wait_for(reader.read(100), 200)
                if got and b" 408 " not in got:
                    wrong[f"{kind}: {got[:30]!r}"] += 1
                return
            found, _ = await asyncio.wait_for(answer(reader), 60)
            if found != status:
                wrong[f"{kind}: {found} instead of {status}"] += 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            if status != 0:
                wrong[f"{kind}: {type(error).__name__}"] += 1
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def client(mine: Sequence[str]) -> None:
        for number, kind in enumerate(mine):
            if kinds[kind][1] == 0:
                slow.append(asyncio.ensure_future(one(kind)))
            else:
                await one(kind)
            if number % 50 == 0:
                resident.append(server.resident_bytes)

    await asyncio.gather(*(client(chosen[n::clients]) for n in range(clients)))
    await asyncio.gather(*slow)
    resident.append(server.resident_bytes)
    return {"sent": dict(seen), "wrong": dict(wrong), "resident_bytes": resident}


def abuse(request: bytes, options: argparse.Namespace) -> dict[str, Any]:
    """Bad requests to leanconv's server, and a look whether it still answers."""
    server = started(OURS, options)
    try:
        warm = asyncio.run(send_bad(server, request, 2000, options.clients))
        found = asyncio.run(send_bad(server, request, options.bad, options.clients))
        after = measured(server, request, argparse.Namespace(clients=2, seconds=1.0))
    finally:
        code = server.stop()
    before, last = found["resident_bytes"][0], found["resident_bytes"][-1]
    print(f"{sum(found['sent'].values())} requests of {len(found['sent'])} kinds: {found['sent']}")
    print(f"other statuses than expected: {found['wrong'] or warm['wrong'] or 'none'}")
    print(
        f"resident: {before / 2**20:.1f} MiB before (2000 such requests earlier), "
        f"{max(found['resident_bytes']) / 2**20:.1f} at most, {last / 2**20:.1f} after; "
        f"{after['per_second']:.0f} good requests a second after that; exit code {code}"
    )
    return {**found, "wrong_while_warming": warm["wrong"], "exit_code": code}


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="an ONNX file of one float32 input, its batch left open")
    parser.add_argument("--shape", default="1x3x224x224", help="of the images that are sent")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--max-delay", default="2ms")
    parser.add_argument("--bad", type=int, default=0, metavar="N", help="send N bad requests")
    parser.add_argument("--json", metavar="FILE", help="write what was found")
    parser.add_argument("--serve-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_peer:
        return serve_peer(options)
    from leanconv.graph.onnx_import import read_model

    (name,) = (each.name for each in read_model(Path(options.model)).inputs)
    shape = tuple(int(extent) for extent in options.shape.split("x"))
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    request = request_bytes({name: image})
    found = abuse(request, options) if options.bad else compare(request, options)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if found.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
