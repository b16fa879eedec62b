"""Engines measured in turn: rounds, answers compared, ratios round by round."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.cli.engines.machine import wait_for_cores
from leanconv.cli.engines.processes import Crew, EngineError, EngineProcess, Installed
from leanconv.records import dataclass, field

OURS = "leanconv"
INACCURATE = 1e-4  # of the largest output: no float32 arithmetic errs so much in these works
_ATTEMPTS = 3  # repeats of a turn during which the cores were shared
Report = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """One network (or one convolution as a network) and its inputs.

    Attributes:
        name: in tables and JSON.
        model: the ONNX file.
        inputs: an array for every input of the network.
        exact: computes the exact outputs, with which answers are compared; if None, they are
            compared with those of another engine.
        stated: whether the network is to be planned for the inputs' shapes alone, as `run --shape`
            plans it, whatever its file leaves open.
    """

    name: str
    model: Path
    inputs: Mapping[str, np.ndarray]
    exact: Callable[[], list[np.ndarray]] | None = None
    stated: bool = False


@dataclass(frozen=True)
class Effort:
    """The number and the lengths of measurements.

    Attributes:
        threads: threads of every engine.
        processes: how often each engine's process is started anew; where its memory happens to
            lie makes some processes slower than others.
        rounds: turns of each engine in each process.
        seconds: the length of one turn after its warm-up.
        warmup_seconds: the length of the warm-up of each turn.
    """

    threads: int = 2
    processes: int = 3
    rounds: int = 3
    seconds: float = 0.6
    warmup_seconds: float = 0.2


@dataclass
class Outcome:
    """One engine's times and errors on one piece of work.

    Attributes:
        engine, version: name and version of the engine.
        round_medians_ns: the median of each turn.
        round_least_ns: the fastest run of each turn.
        load_ns, first_ns: of the first process: load, and the first run after it.
        grown_bytes: by which the first process's largest memory grew by then.
        predicted_ns: of a run, where an engine predicts it.
        difference: largest difference to the exact answer, or that of the first engine that is not
            ours, over its largest output; None where there is neither.
        error: why there are no times; None when there are.
    """

    engine: str
    version: str = ""
    round_medians_ns: list[float] = field(default_factory=list)
    round_least_ns: list[int] = field(default_factory=list)
    load_ns: int = 0
    first_ns: int = 0
    grown_bytes: int = 0
    predicted_ns: int | None = None
    difference: float | None = None
    error: str | None = None

    @property
    def median_ns(self) -> float:
        """The median over all turns of the turns' medians."""
        return statistics.median(self.round_medians_ns)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON's types."""
        if self.error is not None:
            return {"error": self.error}
        return {
            "version": self.version,
            "median_ns": self.median_ns,
            "least_ns": min(self.round_least_ns),
            "round_medians_ns": self.round_medians_ns,
            "load_ns": self.load_ns,
            "first_ns": self.first_ns,
            "grown_bytes": self.grown_bytes,
            "difference": self.difference,
            **({} if self.predicted_ns is None else {"predicted_ns": self.predicted_ns}),
        }


def measure(
    work: Work,
    engines: Sequence[Installed],
    effort: Effort,
    report: Report,
    crew: Crew | None = None,
) -> list[Outcome]:
    """Measure all engines on one piece of work, in turn; an engine that fails drops out.

    Args:
        work: the network and its inputs.
        engines: the engines that take part.
        effort: threads, processes, rounds and seconds.
        report: called with each line of progress.
        crew: their processes, where some are kept from earlier work.
    """
    crew = crew or Crew()
    outcomes = {e.engine.name: Outcome(e.engine.name) for e in engines}
    with tempfile.TemporaryDirectory(prefix="leanconv-bench-") as folder:
        inputs = Path(folder) / "inputs.npz"
        arrays: dict[str, Any] = dict(work.inputs)
        np.savez(inputs, **arrays)
        for number in range(effort.processes):
            try:
                running = _start(work, engines, effort, inputs, outcomes, crew, report)
                if number == 0:
                    _compare_answers(work, running, outcomes, Path(folder))
                for turn in range(effort.rounds):
                    _one_round(running, outcomes, effort, turn)
                    done = number * effort.rounds + turn + 1
                    report(f"{work.name}: round {done} of {effort.processes * effort.rounds}")
            finally:
                crew.rest()
    return list(outcomes.values())


def ratios(outcomes: Sequence[Outcome], inaccurate: float = INACCURATE) -> dict[str, float]:
    """Return, for each other engine, the median over rounds of its time over ours.

    Above 1 we are faster. `"best"` is the same with, in each round, the fastest of the others; an
    engine whose answers are off by more than `inaccurate` computes something else and is left out.
    """
    finished = {o.engine: o.round_medians_ns for o in outcomes if o.error is None}
    mine = finished.pop(OURS, None)
    if not mine or not finished:
        return {}
    result = {
        name: statistics.median(t / o for t, o in zip(times, mine, strict=True))
        for name, times in finished.items()
    }
    differences = {o.engine: o.difference or 0.0 for o in outcomes}
    accurate = [times for name, times in finished.items() if differences[name] <= inaccurate]
    if accurate:
        best = [min(turn) for turn in zip(*accurate, strict=True)]
        result["best"] = statistics.median(t / o for t, o in zip(best, mine, strict=True))
    return result


def _start(
    work: Work,
    engines: Sequence[Installed],
    effort: Effort,
    inputs: Path,
    outcomes: Mapping[str, Outcome],
    crew: Crew,
    report: Report,
) -> list[EngineProcess]:
    running = []
    for installed in engines:
        outcome = outcomes[installed.engine.name]
        if outcome.error is not None:
            continue
        report(f"{work.name}: {outcome.engine} loads")
        process = crew.process(installed)
        request = {
            "do": "load",
            "model": str(work.model),
            "inputs": str(inputs),
            "threads": effort.threads,
            "stated": work.stated and outcome.engine == OURS,
        }
        try:
            reply = process.ask(request)
        except EngineError as error:
            outcome.error = str(error)
            continue
        if not outcome.version:
            outcome.version = reply["version"]
            outcome.load_ns, outcome.first_ns = reply["load_ns"], reply["first_ns"]
            outcome.grown_bytes = reply["grown_bytes"]
            outcome.predicted_ns = reply.get("predicted_ns")
        running.append(process)
    return running


def _compare_answers(
    work: Work, running: Sequence[EngineProcess], outcomes: Mapping[str, Outcome], folder: Path
) -> None:
    """Hold every engine's outputs to the exact ones, or to those of the first that is not ours."""
    answers: dict[str, list[np.ndarray]] = {}
    for process in running:
        file = folder / f"{process.name}.npz"
        try:
            process.ask({"do": "answer", "file": str(file)})
        except EngineError as error:
            outcomes[process.name].error = str(error)
            continue
        with np.load(file, allow_pickle=False) as archive:
            answers[process.name] = [archive[f"output_{i}"] for i in range(len(archive.files))]
    truth = next((answer for name, answer in answers.items() if name != OURS), None)
    if work.exact:
        truth = work.exact()
    if truth is not None:
        for name, answer in answers.items():
            outcomes[name].difference = difference(answer, truth)


def difference(answer: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """Return the largest difference over the largest output; infinite where shapes differ."""
    if [a.shape for a in answer] != [t.shape for t in truth]:
        return float("inf")
    worst = 0.0
    for a, t in zip(answer, truth, strict=True):
        largest = float(np.max(np.abs(t), initial=0.0)) or 1.0
        error = float(np.max(np.abs(a.astype(np.float64) - t), initial=0.0)) / largest
        worst = max(worst, error) if np.isfinite(error) else float("inf")
    return worst


def _one_round(
    running: list[EngineProcess], outcomes: Mapping[str, Outcome], effort: Effort, turn: int
) -> None:
    """Give every engine one turn; who begins changes from round to round."""
    shift = turn % len(running) if running else 0
    request = {
        "do": "run",
        "seconds": effort.seconds,
        "warmup_seconds": effort.warmup_seconds,
        "least": 3,
    }
    for process in running[shift:] + running[:shift]:
        outcome = outcomes[process.name]
        if outcome.error is not None:
            continue
        try:
            durations = _undisturbed(process, request, effort.threads)
        except EngineError as error:
            outcome.error = str(error)
            continue
        outcome.round_medians_ns.append(statistics.median(durations))
        outcome.round_least_ns.append(min(durations))


def _undisturbed(process: EngineProcess, request: dict[str, Any], threads: int) -> list[int]:
    """One turn during which the threads had cores of their own, as far as one can see."""
    durations: list[int] = []
    for _ in range(_ATTEMPTS):
        before = wait_for_cores(threads)
        durations = process.ask(request)["ns"]
        if before and wait_for_cores(threads, patience_s=0.0):
            break
    return durations
