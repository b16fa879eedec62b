"""New shapes of a network that runs: times, kernels newly compiled, memory; beside ONNX Runtime.

    python benchmarks/shapes.py --recogniser REC.onnx --detector DET.onnx --pnet PNET.onnx
    python benchmarks/shapes.py --recogniser REC.onnx --soak 60

Each sequence of shapes goes through one process of each engine, which has made its network or
session once; the first run on each shape is timed, planning and compiling included. leanconv begins
with an empty cache, and runs the sequence again, in another process, with the cache that it has
left. Kernels are counted as the entries that the cache gains. All answers are compared: exit code
3 if one is off by more than 1e-5 of the largest output, if its bits depend on the shapes before it,
or with `--must` if a limit is missed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import random
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import HERE, MODELS, ROOT, Document, effort, model_file, results_folder, script
from leanconv.cli import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import (
    Engine,
    EngineError,
    EngineProcess,
    Installed,
    find,
    interpreters,
)
from leanconv.cli.engines.rounds import OURS, difference
from leanconv.cli.options import (
    UsageError,
    add_output_options,
    not_negative,
    positive,
    positive_number,
    thread_count,
)
from leanconv.cli.output import print_json, progress, writing
from leanconv.graph.onnx_import import read_model
from shape_cases import DRAWS, Case, Step, cases
from shape_results import (
    FULL,
    Sample,
    Taken,
    by_minute,
    failures,
    growth,
    missed,
    show,
    summary,
)

ENGINES = (
    Engine(
        OURS,
        HERE / "engines" / "engine_kept_leanconv.py",
        ("numpy", "llvmlite"),
        (ROOT / "src", HERE),
    ),
    Engine(
        "onnxruntime",
        HERE / "engines" / "engine_kept_onnxruntime.py",
        ("numpy", "onnxruntime"),
        (ROOT / "src", HERE),
    ),
)
_ALONE = f"{OURS}, alone"
BUILT = ("mobilenetv2", "resnet50", "resnet101")  # models of this repository
GIVEN = ("recogniser", "detector", "pnet", "yolo")
_CACHE_BYTES = 64 * 2**30  # no entry goes while entries are counted
_STROKE, _LINE = 4, 16  # pixels of the pages that networks are given
_ONE_RUN = {"do": "run", "seconds": 0, "warmup_seconds": 0, "least": 1}


class Seat:
    """One engine's process, with a cache folder of its own."""

    def __init__(self, label: str, installed: Installed, cache: Path, threads: int) -> None:
        self.label, self._cache, self._threads = label, cache, threads
        added = {"LEANCONV_CACHE_DIR": str(cache), "LEANCONV_CACHE_BYTES": str(_CACHE_BYTES)}
        self._process = EngineProcess(installed, added)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def take(self, step: Step, inputs: Path) -> tuple[Taken, list[np.ndarray]]:
        """Run a step; return what it took, and the outputs."""
        request = {"model": str(step.model), "inputs": str(inputs), "threads": self._threads}
        before = self._entries()
        loaded = self._process.ask({"do": "load", **request})
        kernels = self._entries() - before
        (again,) = self._process.ask(_ONE_RUN)["ns"]
        memory = resident_bytes(self._process.pid)
        file = inputs.with_name("answer.npz")
        self._process.ask({"do": "answer", "file": str(file)})
        with np.load(file, allow_pickle=False) as archive:
            outputs = [archive[f"output_{i}"] for i in range(len(archive.files))]
        digest = hashlib.sha256(b"".join(y.tobytes() for y in outputs)).hexdigest()[:16]
        first = loaded["load_ns"] + loaded["first_ns"]
        planned = loaded.get("plan_bytes", 0)
        return Taken(step.shape, first, again, kernels, memory, planned, digest), outputs

    def _entries(self) -> int:
        return sum(1 for _ in (self._cache / "objects").glob("*.o"))


@dataclass(frozen=True)
class Bench:
    """What every case is measured with.

    Attributes:
        installed: the engines.
        threads: of each engine.
        folder: for caches, inputs and answers.
    """

    installed: Sequence[Installed]
    threads: int
    folder: Path

    def cache(self) -> Path:
        """A cache folder that is empty."""
        return Path(tempfile.mkdtemp(prefix="cache-", dir=self.folder))

    def together(
        self, sequence: Iterable[Step], cache: Path, ours: str = OURS, others: bool = True
    ) -> Iterator[tuple[dict[str, Taken], float | None]]:
        """Give each engine a step in turn, in a process of its own for the whole sequence.

        Args:
            sequence: the steps.
            cache: leanconv's.
            ours: its label.
            others: whether other engines take part.

        Returns:
            For every step what it took, by label, and how far our answer is from the others'.
        """
        with ExitStack() as stack:
            seats = []
            for one in self.installed:
                mine = one.engine.name == OURS
                if mine or others:
                    label = ours if mine else one.engine.name
                    seats.append(stack.enter_context(Seat(label, one, cache, self.threads)))
            for step in sequence:
                inputs = self.folder / "inputs.npz"
                np.savez(inputs, **drawn_input(step))
                taken, answers = {}, {}
                for seat in seats:
                    taken[seat.label], answers[seat.label] = seat.take(step, inputs)
                answer = answers.pop(ours, [])
                yield taken, max((difference(answer, a) for a in answers.values()), default=None)


def drawn_input(step: Step) -> dict[str, Any]:
    """An image for the network's one input, by its name; the same for the same shape.

    Images with their channels first are rows of dark strokes on a bright page: of noise alone a
    detector finds nothing, and its largest output is too small for errors to be measured by it.
    """
    rng = np.random.default_rng(step.shape)
    x = rng.standard_normal(step.shape, dtype=np.float32)
    if step.shape[1] == 3:
        height, width = step.shape[2:]
        strokes = rng.random((height // _STROKE + 1, width // _STROKE + 1)) < 0.5
        ink = strokes.repeat(_STROKE, 0).repeat(_STROKE, 1)[:height, :width]
        ink[np.arange(height) // _LINE % 2 == 1] = False
        x = (1.5 - 3 * ink + 0.1 * x).astype(np.float32)
    return {_input_name(step.model): x}


@functools.cache
def _input_name(model: Path) -> str:
    (port,) = read_model(model).inputs
    return port.name


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, 0 where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measure(case: Case, bench: Bench) -> Document:
    """Measure a case; returns its part of the document."""
    taken: dict[str, list[list[Taken]]] = {}
    differences: list[float] = []
    same_bits = True
    for sequence in case.sequences:
        cache = bench.cache()
        passes = [bench.together(sequence, cache)]
        if case.full:
            passes.append(bench.together(sequence, cache, FULL, others=False))
        if case.full and len(sequence) > 1:
            passes.append(bench.together(sequence[-1:], cache, _ALONE, others=False))
        lasts = set()
        for one in passes:
            found: dict[str, list[Taken]] = {}
            for step, apart in one:
                for label, what in step.items():
                    found.setdefault(label, []).append(what)
                differences += [] if apart is None else [apart]
            lasts |= {t[-1].digest for label, t in found.items() if label.startswith(OURS)}
            for label in found.keys() - {_ALONE}:
                taken.setdefault(label, []).append(found[label])
        same_bits = same_bits and len(lasts) <= 1
    return {
        "before": case.before,
        "must": {name: value for name, value in asdict(case.must).items() if value is not None},
        "difference": max(differences, default=None),
        "differences": differences,  # of every step in turn
        "same_bits": same_bits,
        "engines": {label: summary(runs, case.before) for label, runs in taken.items()},
    }


def random_steps(models: Mapping[str, Path], seed: int) -> Iterator[Step]:
    """Any of the networks at any of its shapes, without end."""
    rng = random.Random(seed)
    names = sorted(models.keys() & DRAWS.keys())
    while True:
        name = rng.choice(names)
        (shape,) = DRAWS[name](rng, 1)
        yield Step(models[name], shape)


def soak(models: Mapping[str, Path], bench: Bench, seed: int, seconds: float) -> Document:
    """Random shapes through one process for some time."""
    begin, samples, worst = time.monotonic(), [], 0.0
    others: list[int] = []
    steps = _until(begin + seconds, random_steps(models, seed))
    for taken, apart in bench.together(steps, bench.cache()):
        samples.append(Sample(time.monotonic() - begin, taken[OURS]))
        others += [t.memory_bytes for label, t in taken.items() if label != OURS]
        worst = max(worst, apart or 0.0)
    return {
        "difference": worst,
        "growth": growth(samples),
        "minutes": by_minute(samples),
        "onnxruntime_memory_bytes": max(others, default=0),
    }


def _until(end: float, steps: Iterator[Step]) -> Iterator[Step]:
    """Steps as long as there is time."""
    for step in steps:
        yield step
        if time.monotonic() >= end:
            return


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    for name in GIVEN:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"ONNX file of a {name}")
    parser.add_argument("--threads", type=thread_count, default=2, metavar="N")
    parser.add_argument(
        "--processes", type=positive, default=9, metavar="N", help="for each case, with a new cache"
    )
    parser.add_argument(
        "--many", type=_many, default=100, metavar="N", help="widths of the case `memory`"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="shapes are drawn with it")
    parser.add_argument(
        "--soak", type=positive_number, metavar="M", help="instead: random shapes for M minutes"
    )
    parser.add_argument("--must", action="store_true", help="exit 3 where a limit is missed")
    parser.add_argument(
        "--wait",
        type=not_negative,
        default=60.0,
        metavar="S",
        help="wait so long for a quiet machine",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="of the JSON; default, for all cases: docs/results/CPU/shapes.json (or soak.json)",
    )
    add_output_options(parser)
    return parser.parse_args()


def _many(text: str) -> int:
    """Read a number of widths (an argparse type)."""
    number = positive(text)
    if number > 2000:
        raise argparse.ArgumentTypeError(f"{text} widths are more than 2000")
    return number


def given_models(options: argparse.Namespace) -> dict[str, Path]:
    """The models that the command line names.

    Raises:
        UsageError: one is not there.
    """
    found = {name: getattr(options, name) for name in GIVEN if getattr(options, name)}
    for name, file in found.items():
        if not file.is_file():
            raise UsageError(f"--{name} is {file}; expected an ONNX file: see benchmarks/README.md")
    return found


def chosen_cases(options: argparse.Namespace) -> tuple[list[Case], dict[str, str]]:
    """The cases that the command line asks for, and why others are left out.

    Raises:
        UsageError: there is no such case.
    """
    wanted = options.cases
    models = given_models(options)
    models |= {name: MODELS / f"{name}.onnx" for name in BUILT}
    found, missing = cases(models, options.seed, options.processes, options.many)
    names = [case.name for case in found]
    for name in wanted:
        if name not in names:
            why = missing.get(name, f"expected one of {', '.join(names)}")
            raise UsageError(f"case {name!r}: {why}")
    chosen = [case for case in found if not wanted or case.name in wanted]
    for model in {step.model for case in chosen for steps in case.sequences for step in steps}:
        if model.parent == MODELS:
            model_file(model.stem)
    return chosen, missing


def main() -> int:
    """Measure what the command line asks for."""
    options = parsed()
    chosen, left_out = ([], {}) if options.soak else chosen_cases(options)
    models = given_models(options)
    if options.soak and not models.keys() & DRAWS.keys():
        raise UsageError(f"--soak needs {' or '.join(f'--{name} FILE' for name in DRAWS)}")
    installed, missing = find(ENGINES, interpreters(None))
    busy = machine.wait_until_quiet(patience_s=options.wait)
    facts = machine.describe().to_json()
    document: Document = {
        "machine": facts,
        "busy_cpus_before": round(busy, 2),
        "effort": effort(options, "threads", "processes", "many", "seed", "soak"),
        "missing": missing,
        "left_out": left_out,
    }
    with (
        progress("measuring") as shown,
        tempfile.TemporaryDirectory(prefix="leanconv-shapes-") as folder,
    ):
        bench = Bench(installed, options.threads, Path(folder))
        if options.soak:
            document["soak"] = soak(models, bench, options.seed, 60 * options.soak)
        else:
            document["cases"] = {}
            for case in chosen:
                shown.say(case.name)
                document["cases"][case.name] = attempted(case, bench)
    document["failures"] = failures(document)
    document["missed"] = missed(document)
    write(document, options)
    if options.json:
        print_json(document)
    else:
        show(document)
    unmet = document["failures"] or (options.must and document["missed"])
    return EXIT_NOT_MET if unmet else EXIT_OK


def attempted(case: Case, bench: Bench) -> Document:
    """Measure a case, or say why it could not be."""
    try:
        return measure(case, bench)
    except EngineError as error:
        return {"error": str(error)}


def write(document: Document, options: argparse.Namespace) -> None:
    """Write the JSON where it is wanted, or beside the other results of this CPU."""
    out: Path | None = options.out
    if out is None and not options.cases:
        name = "soak.json" if options.soak else "shapes.json"
        out = results_folder(document["machine"]["cpu"]) / name
        out.parent.mkdir(parents=True, exist_ok=True)
    if out is not None:
        with writing(out) as aside:
            aside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    script(main)
