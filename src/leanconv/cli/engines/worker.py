"""The process in which one engine runs: `python worker.py ENGINE_FILE [PATH...]`.

It is started by file name, in whatever interpreter holds the engine, and imports nothing but the
standard library, NumPy and the engine file, which defines

    load(model: str, inputs: dict[str, np.ndarray], threads: int) -> (run, version)

where `run()` computes the network once on those inputs and returns its outputs as arrays; where it
defines `facts()` as well, what that returns after the first run is part of the reply.

One request a line comes in as JSON on standard input, and one reply a line goes out:
    {"do": "load", "model": file, "inputs": npz file, "threads": n, "stated": bool}
        -> {"version": text, "load_ns": n, "first_ns": n, "grown_bytes": n}
    {"do": "run", "seconds": s, "warmup_seconds": s, "least": n}  -> {"ns": [n, ...]}
    {"do": "answer", "file": npz file}                            -> {"checksum": x}
    {"do": "stop"}                                                -> {}
`stated` is leanconv's own: an engine's `load` may take it by name.
A request that fails is answered by {"error": text}. PATHs go in front of `sys.path`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import numpy as np

Run = Callable[[], list[np.ndarray]]


def _engine(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("engine", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(engine_file: str, request: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    with np.load(request["inputs"], allow_pickle=False) as archive:
        inputs = {name: np.require(archive[name], None, ["C"]) for name in archive.files}
    engine = _engine(engine_file)
    told = {"stated": True} if request.get("stated") else {}
    before = _largest_memory()
    begin = time.perf_counter_ns()
    run, version = engine.load(request["model"], inputs, request["threads"], **told)
    loaded = time.perf_counter_ns()
    run()
    first = time.perf_counter_ns()
    return run, {
        "version": version,
        "load_ns": loaded - begin,
        "first_ns": first - loaded,
        "grown_bytes": _largest_memory() - before,
        "peak_bytes": _largest_memory(),
        **getattr(engine, "facts", dict)(),
    }


def _largest_memory() -> int:
    """The most bytes that this process has had in memory, 0 where the system does not say.

    Linux counts those of the process that started this one as its largest resident set, too.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _time(run: Run, request: dict[str, Any]) -> list[int]:
    """Run for the time asked, and return the nanoseconds of each run after the warm-up."""
    clock = time.perf_counter_ns
    end = clock() + int(request["warmup_seconds"] * 1e9)
    while clock() < end:
        run()
    durations: list[int] = []
    least = request["least"]
    gc.collect()
    gc.disable()
    end = clock() + int(request["seconds"] * 1e9)
    while len(durations) < least or clock() < end:
        begin = clock()
        run()
        durations.append(clock() - begin)
    gc.enable()
    return durations


def _answer(run: Run, request: dict[str, Any]) -> float:
    outputs = [np.asarray(output) for output in run()]
    named: dict[str, Any] = {f"output_{i}": output for i, output in enumerate(outputs)}
    np.savez(request["file"], **named)
    return float(sum(np.sum(output, dtype=np.float64) for output in outputs))


def serve(engine_file: str, requests: IO[str], replies: IO[str]) -> None:
    """Answer requests until `stop` or the end of the stream."""
    run: Run | None = None
    for line in requests:
        request = json.loads(line)
        reply: dict[str, Any] = {}
        try:
            if request["do"] == "load":
                run, reply = _load(engine_file, request)
            elif request["do"] == "run" and run is not None:
                reply = {"ns": _time(run, request)}
            elif request["do"] == "answer" and run is not None:
                reply = {"checksum": _answer(run, request)}
            elif request["do"] != "stop":
                reply = {"error": f"request {request['do']!r} is unknown or came before load"}
        except Exception as error:  # whatever an engine raises is its answer
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if request["do"] == "stop":
            return


def main() -> None:
    """Serve on the original standard output; what engines print goes to standard error."""
    engine_file, *paths = sys.argv[1:]
    sys.path[0:0] = paths
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(engine_file, sys.stdin, replies)


if __name__ == "__main__":
    main()
