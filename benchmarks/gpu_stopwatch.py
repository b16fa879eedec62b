"""Time and memory of what runs on a GPU, for `gpu.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def same(array: Any) -> Any:
    """An array as it is."""
    return array


class Stopwatch:
    """Time and memory on one device.

    Args:
        torch: the module.
        device: where torch computes.
        ours: a tensor as leanconv takes it. With a device, itself; a rehearsal without one hands
            NumPy arrays to a driver that only records (`tests/gpu/test_gpu_bench.py`).
        seconds: that are left.
    """

    def __init__(
        self,
        torch: Any,
        device: str = "cuda",
        ours: Callable[[Any], Any] = same,
        seconds: float = 460.0,
    ) -> None:
        self.torch, self.device, self.ours = torch, device, ours
        self.end = time.monotonic() + seconds
        torch.backends.cudnn.benchmark = True

    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    # -- time and memory ---------------------------------------------------------------------
    def milliseconds(self, run: Callable[[], object]) -> float:
        """Time of a run, the median of up to 20 rows of them, in some 0.15 s.

        Short runs stand in rows of 20, so that waiting for the device does not count.
        """
        wait = self.torch.cuda.synchronize

        def row(count: int) -> float:
            start = time.perf_counter_ns()
            for _ in range(count):
                run()
            wait()
            return (time.perf_counter_ns() - start) / 1e6 / count

        run()
        wait()
        count = 20 if row(1) < 1.0 else 1
        times: list[float] = []
        begun = time.monotonic()
        while len(times) < 3 or (len(times) < 20 and time.monotonic() - begun < 0.15):
            times.append(row(count))
        return statistics.median(times)

    def recorded(self, run: Callable[[], object]) -> Callable[[], object]:
        """A run of torch as a graph, so that small ones do not wait for Python."""
        graph = self.torch.cuda.CUDAGraph()
        run()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(graph):
            run()
        return graph.replay  # type: ignore[no-any-return]

    def peak_bytes(self, run: Callable[[], Any]) -> int:
        """Bytes that torch takes during a run beyond its result."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        held = result.numel() * result.element_size()
        return int(torch.cuda.max_memory_allocated() - before - held)

    def kernels(self, run: Callable[[], Any]) -> list[str]:
        """The kernels that a run of torch starts, the longest first, as the profiler names them."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            run()
            self.torch.cuda.synchronize()
        times: dict[str, float] = {}
        for event in found.events():
            if "CUDA" in str(event.device_type):
                spent = event.time_range.end - event.time_range.start
                times[event.name] = times.get(event.name, 0.0) + spent
        return [name[:120] for name in sorted(times, key=lambda n: -times[n])]
