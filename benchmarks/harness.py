"""What the benchmarks share: every engine there is, the models, and options.

The machinery itself (processes, rounds, ratios, tables) is `leanconv.cli.engines`, because
`leanconv bench` needs it where this folder is not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from leanconv.cli import EXIT_USAGE, EXIT_USER_ERROR
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import ENGINES, Engine
from leanconv.cli.options import UsageError
from leanconv.errors import InputError, LeanConvError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = ROOT / "docs" / "results"
MODELS = ROOT / "models"
_ATTEMPTS = 3  # turns taken again because the cores turned out to be shared
_LEAST_BATCH_S = 1e-4  # that is timed as one: reading the clock takes 0.3 us of it
Document = dict[str, Any]
Run = Callable[[], Any]  # one run of an engine; gives what it computed
T = TypeVar("T")

ALL_ENGINES: tuple[Engine, ...] = (
    *ENGINES,
    Engine(
        "xnnpack", HERE / "engines" / "engine_xnnpack.py", ("torch", "executorch", "onnx"), (HERE,)
    ),
    Engine("torch", HERE / "engines" / "engine_torch.py", ("torch", "onnx"), (HERE,)),
)
# Single convolutions: leanconv by `plan_conv2d`, and engines that are told of one layer by hand.
LAYER_ENGINES: tuple[Engine, ...] = (
    Engine(
        "leanconv",
        HERE / "engines" / "engine_plan.py",
        ("numpy", "llvmlite"),
        (ROOT / "src",),
    ),
    *ALL_ENGINES[1:],
    Engine(
        "torch-nhwc",
        HERE / "engines" / "engine_torch_channels_last.py",
        ("torch", "onnx"),
        (HERE,),
    ),
    Engine("ncnn", HERE / "engines" / "engine_ncnn.py", ("ncnn", "onnx"), (HERE,)),
    Engine("mnn", HERE / "engines" / "engine_mnn.py", ("MNN", "_tools"), (HERE,)),
)


def model_file(name: str) -> Path:
    """Return `models/NAME.onnx`, built by `examples/networks/build.py` if it is not there.

    Raises:
        InputError: there is no such network to build.
    """
    file = MODELS / f"{name}.onnx"
    if not file.exists():
        sys.path.insert(0, str(ROOT))
        from examples.networks import NETWORKS
        from examples.networks.build import save

        MODELS.mkdir(exist_ok=True)
        if name not in NETWORKS:
            known = ", ".join(sorted(NETWORKS))
            raise InputError(f"network {name!r} is not known; expected one of {known}")
        save(NETWORKS[name](), file)
    return file


@dataclass
class Patience:
    """Waiting for cores of one's own, bounded over a whole benchmark.

    Attributes:
        threads: threads that are to have one each.
        left_s: seconds that may still be spent on waiting, and on turns taken again.
    """

    threads: int
    left_s: float = 180.0

    def undisturbed(self, take: Callable[[], T]) -> tuple[T, bool]:
        """Take a measurement while the threads have their cores, as far as one can see.

        Returns:
            The measurement, and whether they had.
        """
        for attempt in range(_ATTEMPTS):
            start = time.monotonic()
            before = machine.wait_for_cores(self.threads, max(0.0, min(2.0, self.left_s)))
            waited = time.monotonic() - start
            taken = take()
            alone = before and machine.wait_for_cores(self.threads, patience_s=0.0)
            self.left_s -= waited if attempt == 0 else time.monotonic() - start
            if alone or self.left_s <= 0:
                break
        return taken, alone


class Peers:
    """Engines in processes of their own, measured in turns by the CPU time of one thread.

    Other work on the machine then matters little.

    Args:
        engines: by name, what prepares a case: it gives what runs it, and what is to be said of it.
        clock: gives the seconds by which they are measured; `time.perf_counter` where several
            threads take part.
    """

    def __init__(
        self,
        engines: Mapping[str, Callable[[Any], tuple[Run, str]]],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: dict[str, Connection] = {}
        for name, prepare in engines.items():
            self._pipes[name], theirs = context.Pipe()
            context.Process(target=_serve, args=(prepare, theirs, clock), daemon=True).start()

    def prepare(self, engine: str, case: object) -> tuple[str, Any]:
        """What an engine says of a case, and what it computes.

        Raises:
            InputError: it refuses the case.
        """
        self._pipes[engine].send((case, None))
        said, found = self._pipes[engine].recv()
        if found is None:
            raise InputError(said)
        return said, found

    def times(self, engines: Iterable[str], rounds: int, seconds: float) -> dict[str, list[float]]:
        """By engine, the median seconds of a run in each round; who begins changes."""
        order = list(engines)
        times: dict[str, list[float]] = {name: [] for name in order}
        for turn in range(rounds):
            first = turn % len(order)
            for name in order[first:] + order[:first]:
                self._pipes[name].send((None, seconds))
                times[name].append(self._pipes[name].recv())
        return times

    def stop(self) -> None:
        """End the processes."""
        for pipe in self._pipes.values():
            pipe.send(None)


def _serve(
    prepare: Callable[[Any], tuple[Run, str]], pipe: Connection, clock: Callable[[], float]
) -> None:
    """Answer a case with what is said of it and its output, seconds with a time."""
    run: Run = tuple
    while (asked := pipe.recv()) is not None:
        case, seconds = asked
        if seconds is not None:
            pipe.send(turn(run, seconds, clock))
            continue
        try:
            run, said = prepare(case)
            pipe.send((said, run()))
        except Exception as error:  # each engine has errors of its own
            pipe.send((f"{type(error).__name__}: {error}", None))


def turn(run: Run, seconds: float, clock: Callable[[], float]) -> float:
    """The median seconds of a run by a clock; short runs are timed by batches."""
    start = clock()
    run()
    batch = int(_LEAST_BATCH_S / max(1e-6, clock() - start)) + 1
    times: list[float] = []
    end = clock() + seconds
    while clock() < end or len(times) < 3:
        start = clock()
        for _ in range(batch):
            run()
        times.append((clock() - start) / batch)
    return statistics.median(times)


def effort(options: argparse.Namespace, *names: str) -> Document:
    """What a result's `effort` says: the options that decide how much was measured."""
    return {name: getattr(options, name) for name in names or ("threads", "rounds", "seconds")}


def results_folder(cpu: str) -> Path:
    """The folder in docs/results of what was measured on one kind of CPU.

    Args:
        cpu: maker and model, as `machine.describe` names them: "AMD EPYC (family/model 25/17)"
            has the folder amd-epyc-25-17.
    """
    named = re.sub(r"\((r|tm)\)|@ [\d.]+ghz|family/model|\bcpu\b", " ", cpu.lower())
    return RESULTS / "-".join(re.findall(r"[a-z0-9]+", named))


def results_file(name: str) -> Path:
    """Where a result of this kind of CPU stands for good, NAME.json; its folder is there then."""
    folder = results_folder(machine.describe().cpu)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that keeps a result for good, in place of `--out`."""
    parser.add_argument(
        "--record",
        dest="out",
        type=results_file,
        metavar="NAME",
        help="write the JSON to docs/results/CPU/NAME.json, CPU the kind of this machine",
    )


def all_results(name: str) -> list[Path]:
    """The results of that name of every kind of CPU, those measured last first."""
    files = [*RESULTS.glob(f"{name}.json"), *RESULTS.glob(f"*/{name}.json")]
    return sorted(files, key=_measured_at, reverse=True)


def _measured_at(file: Path) -> str:
    time_utc: str = json.loads(file.read_text(encoding="utf-8"))["machine"]["time_utc"]
    return time_utc


def rewrite_pages(name: str, page: Callable[[Document], str]) -> None:
    """Write the pages of earlier results again, beside their JSON."""
    for file in all_results(name):
        document = json.loads(file.read_text(encoding="utf-8"))
        file.with_suffix(".md").write_text(page(document), encoding="utf-8")


def write_results(
    document: Document, out: Path | None, page: Callable[[Document], str], indent: int = 1
) -> None:
    """Write a benchmark's JSON where it is wanted; its page as well where results stand for good.

    Args:
        document: what was measured.
        out: where the JSON goes, None for nowhere.
        page: makes the page.
        indent: of the JSON.
    """
    if out is None:
        return
    out.write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")
    if RESULTS in out.resolve().parents:
        out.with_suffix(".md").write_text(page(document), encoding="utf-8")


def script(body: Callable[[], int]) -> None:
    """Run the body of a benchmark; a `LeanConvError` is one line, and codes are the commands'."""
    try:
        code = body()
    except LeanConvError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_USER_ERROR
    sys.exit(code)
