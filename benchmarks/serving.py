"""A server under load: leanconv and ONNX Runtime behind the same server and clients.

    python benchmarks/serving.py --record serving
    python benchmarks/serving.py other.onnx --shape 1x3x64x64 --clients 4 --seconds 10 --rounds 5

Both are asked, in turn, from as many connections as there are clients, each of which sends its next
image when the last answer has come: requests a second, median and 99th percentile. Both engines are
behind `leanconv.server` (protocol, queue, batches); ONNX Runtime, whose shapes need no planning,
may take batches of any size.

Servers and clients are processes of their own. Needs leanconv[server], and onnxruntime.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import add_record_option, effort, model_file, script
from leanconv.cli.engines import machine
from leanconv.cli.options import not_negative, positive
from leanconv.graph.onnx_import import read_model

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
    from leanconv.cli.options import duration
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
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
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


def measured(server: Server, request: bytes, clients: int, seconds: float) -> dict[str, float]:
    """Throughput and latencies of a server."""
    begin = time.perf_counter()
    latencies = sorted(asyncio.run(load(server.port, request, clients, seconds)))
    wall = time.perf_counter() - begin
    return {
        "requests": len(latencies),
        "per_second": len(latencies) / wall,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] * 1e3,
        "most_ms": latencies[-1] * 1e3,
        "resident_mib": server.resident_bytes / 2**20,
    }


def compare(request: bytes, options: argparse.Namespace) -> dict[str, Any]:
    """Both servers under the same load, in turn: medians over rounds, and all rounds."""
    servers = {engine: started(engine, options) for engine in (OURS, PEER)}
    rounds: dict[str, list[dict[str, float]]] = {engine: [] for engine in servers}
    try:
        for server in servers.values():  # warm
            asyncio.run(load(server.port, request, options.clients, 1.0))
        for number in range(options.rounds):
            for engine in list(servers)[:: 1 if number % 2 else -1]:
                found = measured(servers[engine], request, options.clients, options.seconds)
                rounds[engine].append(found)
    finally:
        for server in servers.values():
            server.stop()
    pairs = zip(rounds[OURS], rounds[PEER], strict=True)
    ratios = [ours["per_second"] / peer["per_second"] for ours, peer in pairs]
    engines = {
        engine: {**{k: statistics.median(r[k] for r in each) for k in each[0]}, "rounds": each}
        for engine, each in rounds.items()
    }
    return {"engines": engines, "ratio": statistics.median(ratios), "ratios": ratios}


def show(found: Mapping[str, Any]) -> None:
    """Print what was found."""
    for engine, row in found["engines"].items():
        print(
            f"{engine:12} {row['per_second']:8.1f} a second  median {row['p50_ms']:7.2f} ms  "
            f"99 % {row['p99_ms']:7.2f} ms  {row['resident_mib']:6.0f} MiB"
        )
    ratios = found["ratios"]
    print(
        f"throughput: {found['ratio']:.2f}x ONNX Runtime's, {min(ratios):.2f} to {max(ratios):.2f}"
    )


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is served, and to how many."""
    parser.add_argument(
        "model",
        nargs="?",
        default="mobilenetv2",
        help="a network of examples/networks, or an ONNX file of one float32 input, its batch open",
    )
    parser.add_argument("--shape", default="1x3x224x224", help="of the images that are sent")
    parser.add_argument("--clients", type=positive, default=16)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--max-batch", type=positive, default=8)
    parser.add_argument("--max-delay", default="2ms")
    parser.add_argument("--wait", type=not_negative, default=30, help="seconds for a quiet machine")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write what was found as JSON")
    add_record_option(parser)


def model_and_request(options: argparse.Namespace) -> bytes:
    """Find the model, which `options.model` names then as a file; a request for it."""
    named = Path(options.model)
    options.model = str(named if named.suffix == ".onnx" else model_file(options.model))
    (name,) = (each.name for each in read_model(Path(options.model)).inputs)
    shape = tuple(int(extent) for extent in options.shape.split("x"))
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return request_bytes({name: image})


def facts(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """What a result says of the machine, and of what was measured."""
    busy = machine.wait_until_quiet(patience_s=options.wait)
    return {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "network": Path(options.model).stem,
        "shape": options.shape,
        "effort": effort(options, "threads", "clients", "max_batch", "max_delay", *names),
    }


def write(document: Mapping[str, Any], out: Path | None) -> None:
    """Write a result where it is wanted."""
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_options(parser)
    parser.add_argument("--seconds", type=not_negative, default=6.0, help="of each round")
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--serve-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_peer:
        return serve_peer(options)
    request = model_and_request(options)
    document = facts(options, "rounds", "seconds")
    document.update(compare(request, options))
    write(document, options.out)
    show(document)
    return 0


if __name__ == "__main__":
    script(main)
