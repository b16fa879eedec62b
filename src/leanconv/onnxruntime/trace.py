"""Times of a session's runs and steps, as a file in the form of Chrome's traces."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.onnxruntime.engines import Engine
from leanconv.onnxruntime.options import SessionOptions

_MOST = 100_000  # runs that are kept


class Trace:
    """What `enable_profiling` asks for: when each run was, and what the steps of one take.

    Attributes:
        start_ns: when it began; 0 where it was not asked for.
    """

    def __init__(self, options: SessionOptions) -> None:
        self._on = bool(options.enable_profiling)
        self._prefix = options.profile_file_prefix
        self._runs: list[dict[str, Any]] = []
        self._feed: dict[str, np.ndarray] = {}
        self.start_ns = time.monotonic_ns() if self._on else 0

    @contextmanager
    def run(self, feed: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Note when a run begins and how long it takes."""
        if not self._on:
            yield
            return
        begin = time.monotonic_ns()
        yield
        if len(self._runs) < _MOST:
            self._runs.append(self._event("model_run", begin, time.monotonic_ns() - begin, {}))
        self._feed = dict(feed)

    def end(self, engine: Engine) -> str:
        """Write the file; its name, or `""` where profiling is not on.

        Steps are timed now, on the inputs of the last run: inside a run they are one call.
        """
        if not self._on:
            return ""
        self._on = False
        events = list(self._runs)
        network, place = engine.network, time.monotonic_ns()
        if network is not None and self._feed:
            names = [spec.name for spec in network.inputs]
            for row in network.profile({name: self._feed[name] for name in names}):
                args = {"op_name": row.op, "algorithm": row.algorithm, "flops": str(row.flops)}
                events.append(self._event(row.name, place, int(row.median_ns), args))
                place += int(row.median_ns)
        self._runs, self._feed = [], {}
        file = f"{self._prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        Path(file).write_text(json.dumps(events, indent=1), encoding="utf-8")
        return file

    def _event(self, name: str, begin: int, length: int, args: dict[str, str]) -> dict[str, Any]:
        return {
            "cat": "Node" if args else "Session",
            "name": name,
            "ph": "X",
            "ts": (begin - self.start_ns) // 1000,
            "dur": max(1, length // 1000),
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "args": args,
        }
