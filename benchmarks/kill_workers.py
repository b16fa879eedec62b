"""Workers of a cluster are killed at random, for minutes: is anything lost, does any bit change?

    python benchmarks/kill_workers.py --engine dask --minutes 10 --json killed.json

A U-Net runs over many images, on Dask over one image in windows, too, again and again, on worker
processes of this machine. Meanwhile one of them is killed (SIGKILL) every now and then. Each result
is compared, bit by bit, with that of one process; one that differs, or a run that fails, ends with
exit code 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import leanconv as lc
from harness import ROOT

TILE = 256
MOST_S = 120  # of one result


class Engine(Protocol):
    """A cluster on this machine.

    Attributes:
        runs: by name, what computes one result: that of the image, or those of all images.
    """

    runs: Mapping[str, Callable[[], Any]]

    def pids(self) -> Sequence[int]:
        """The processes that may be killed."""

    def close(self) -> None:
        """End all processes."""


class Dask:
    """A Dask cluster of this machine, whose dead workers are started anew, as a cluster does."""

    def __init__(
        self, net: lc.Network, image: np.memmap, pictures: Sequence[np.ndarray], workers: int
    ) -> None:
        import dask
        import dask.bag
        from distributed import Client, LocalCluster

        from leanconv.dask import map_bag, map_network

        dask.config.set({"distributed.scheduler.allowed-failures": 1_000_000})
        quiet: Any = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
        self._cluster = LocalCluster(n_workers=0, **quiet)
        self._client = Client(self._cluster)
        self._workers = [self._started() for _ in range(workers)]
        result = map_network(net, image, tile=TILE)
        results = map_bag(net, dask.bag.from_sequence(pictures, partition_size=1))
        self.runs = {
            "image": lambda: self._client.compute(result).result(timeout=MOST_S),
            "pictures": lambda: self._client.compute(results).result(timeout=MOST_S),
        }

    def _started(self) -> subprocess.Popen[bytes]:
        module, address = "distributed.cli.dask_worker", self._cluster.scheduler_address
        options = ("--no-nanny", "--no-dashboard", "--nthreads", "1")
        command = [sys.executable, "-m", module, address, *options]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def pids(self) -> Sequence[int]:
        """The worker processes; those that have died are replaced."""
        alive = [each if each.poll() is None else self._started() for each in self._workers]
        self._workers = alive
        return [each.pid for each in alive]

    def close(self) -> None:
        """End client, scheduler and workers."""
        self._client.close()
        for each in self._workers:
            each.kill()
            each.wait()
        self._cluster.close()


class Ray:
    """A Ray of this machine, which starts actors anew."""

    def __init__(
        self, net: lc.Network, image: np.memmap, pictures: Sequence[np.ndarray], workers: int
    ) -> None:
        import ray
        import ray.data

        from leanconv.ray import Predictor, arguments, plan_batches

        self._ray = ray
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name

        class Known(Predictor):
            """A predictor whose process's number is in a folder."""

            def __init__(self, **given: Any) -> None:
                super().__init__(**given)
                Path(folder, str(os.getpid())).touch()

        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        plan = plan_batches(net, shapes=pictures[0].shape[1:], batch_size=8)
        given = arguments(net, plan, columns="image", actors=workers)
        rows = [{"number": n, "image": x[0]} for n, x in enumerate(pictures)]
        dataset = ray.data.from_items(rows, override_num_blocks=10).materialize()
        name = net.outputs[0].name

        def results() -> list[np.ndarray]:
            found = dataset.map_batches(Known, **given).take_all()
            found.sort(key=lambda row: int(row["number"]))
            return [row[name][np.newaxis] for row in found]

        self.runs = {"pictures": results}

    def pids(self) -> Sequence[int]:
        """The actors that live now."""
        return [int(name) for name in os.listdir(self._folder.name) if _is_ray(name)]

    def close(self) -> None:
        """End Ray."""
        self._ray.shutdown()
        self._folder.cleanup()


def _is_ray(number: str) -> bool:
    """Whether a process lives and is one of Ray's: numbers are used again."""
    try:
        return b"ray::" in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


ENGINES: Mapping[str, Callable[..., Any]] = {"dask": Dask, "ray": Ray}


class Killer(threading.Thread):
    """Kills one of an engine's processes now and then.

    Args:
        engine: whose processes.
        pause_s: the shortest and the longest time between two kills.
        seed: of what is random.

    Attributes:
        kills: how many there were.
    """

    def __init__(self, engine: Engine, pause_s: tuple[float, float], seed: int) -> None:
        super().__init__(daemon=True)
        self._engine, self._pause, self._random = engine, pause_s, random.Random(seed)
        self._stop_now, self.kills = threading.Event(), 0

    def run(self) -> None:
        """Kill until told to stop."""
        while not self._stop_now.wait(self._random.uniform(*self._pause)):
            pids = self._engine.pids()
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(self._random.choice(list(pids)), signal.SIGKILL)
                    self.kills += 1

    def stop(self) -> None:
        """Kill no more."""
        self._stop_now.set()
        self.join()


def expected(
    net: lc.Network, image: np.memmap, pictures: Sequence[np.ndarray]
) -> dict[str, list[np.ndarray]]:
    """What one process gives."""
    tiled = lc.tiled(net, tile=TILE)
    return {"image": [tiled(image)], "pictures": [net(x) for x in pictures]}


def same(found: Any, right: Sequence[np.ndarray]) -> bool:
    """Whether a result has all arrays, bit by bit."""
    arrays = [found] if isinstance(found, np.ndarray) else list(found)
    return len(arrays) == len(right) and all(map(np.array_equal, arrays, right))


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run and kill for the time that is given; what happened."""
    numbers = np.random.default_rng(0)
    shape = (1, 3, arguments.size, arguments.size)
    image = np.lib.format.open_memmap(folder / "image.npy", "w+", np.uint8, shape)
    image[:] = numbers.integers(0, 256, shape, np.uint8)
    image.flush()
    pictures = [numbers.random((1, 3, 128, 128), np.float32) for _ in range(arguments.pictures)]
    sys.path.insert(0, str(ROOT))
    from examples.networks.tasks import segmenter

    net = lc.load(segmenter(), threads=1, reproducible=True)
    right = expected(net, image, pictures)
    engine = ENGINES[arguments.engine](net, image, pictures, arguments.workers)
    found = dict.fromkeys(engine.runs, 0)
    wrong: list[str] = []
    killer = Killer(engine, tuple(arguments.pause), arguments.seed)
    begin = time.monotonic()
    killer.start()
    try:
        while not wrong and time.monotonic() - begin < 60 * arguments.minutes:
            for name, compute in engine.runs.items():
                try:
                    if not same(compute(), right[name]):
                        wrong.append(f"{name}: other bits")
                except Exception as error:
                    wrong.append(f"{name}: {type(error).__name__}: {error}")
                found[name] += 1
                passed = time.monotonic() - begin
                print(f"{passed:.0f} s, {killer.kills} kills: {found}", file=sys.stderr)
    finally:
        killer.stop()
        engine.close()
    return {
        "engine": arguments.engine,
        "workers": arguments.workers,
        "seconds": round(time.monotonic() - begin, 1),
        "kills": killer.kills,
        "runs": found,
        "wrong": wrong,
    }


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pause", type=float, nargs=2, default=(1, 6), metavar=("LEAST", "MOST"))
    parser.add_argument("--size", type=int, default=1500, help="pixels of the image, each way")
    parser.add_argument("--pictures", type=int, default=200, help="how many small images there are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for what happened")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        facts = run(arguments, Path(folder))
    text = json.dumps(facts, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 1 if facts["wrong"] or not min(facts["runs"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
