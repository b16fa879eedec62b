"""What `shapes.py` makes of its times: medians, growth of memory, missed limits, tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from leanconv.cli.engines.rounds import OURS
from leanconv.cli.output import print_table
from leanconv.units import format_bytes, format_ns

Document = dict[str, Any]
FULL = f"{OURS}, full cache"
LARGEST_DIFFERENCE = 1e-5  # of the largest output
FLAT_SHARE = 0.05  # by which memory may grow in the second half of a soak
FIRST_MINUTES = 5  # of a soak, in which kernels may be compiled


@dataclass(frozen=True)
class Taken:
    """What one engine took for one shape.

    Attributes:
        shape: of the input.
        first_ns: the first run; with it the load, where this is the network's first shape.
        again_ns: the next run on the same input.
        kernels: newly compiled ones.
        memory_bytes: resident in the process afterwards; 0 where the system does not say.
        plan_bytes: of all plans that are kept; 0 for others than leanconv.
        digest: of the answer's bits.
    """

    shape: tuple[int, ...]
    first_ns: int
    again_ns: int
    kernels: int
    memory_bytes: int
    plan_bytes: int
    digest: str


def summary(sequences: Sequence[Sequence[Taken]], before: int) -> Document:
    """Medians and the worst of what is measured, and every step.

    Args:
        sequences: what each step of each process took.
        before: how many steps of each are not measured.
    """
    measured = [taken for sequence in sequences for taken in sequence[before:]]
    times = [taken.first_ns for taken in measured]
    found: Document = {
        "median_ns": statistics.median(times),
        "worst_ns": max(times),
        "again_ns": statistics.median(taken.again_ns for taken in measured),
        "kernels": sum(taken.kernels for taken in measured),
        "kernels_median": statistics.median(taken.kernels for taken in measured),
    }
    if before:
        for key in ("memory_bytes", "plan_bytes"):
            grown = [getattr(s[-1], key) - getattr(s[before - 1], key) for s in sequences]
            found[f"grown_{key}"] = statistics.median(grown)
    found["sequences"] = [[asdict(taken) for taken in sequence] for sequence in sequences]
    return found


def failures(document: Document) -> list[str]:
    """Say where answers are wrong, or leanconv has none."""
    said = []
    for name, case in {**document.get("cases", {}), "soak": document.get("soak", {})}.items():
        if "error" in case:
            said.append(f"{name}: {case['error']}")
        apart = case.get("difference")
        if apart is not None and not apart <= LARGEST_DIFFERENCE:
            said.append(f"{name}: an answer differs by {apart:.1e} of the largest output")
        if not case.get("same_bits", True):
            said.append(f"{name}: bits depend on what was planned before")
    return said


def missed(document: Document) -> list[str]:
    """Say which limits are not kept."""
    said = []
    for name, case in document.get("cases", {}).items():
        ours = case.get("engines", {}).get(OURS)
        for key, most in case.get("must", {}).items() if ours else ():
            reached = _reached(key, ours, case["engines"].get(FULL, ours))
            if reached > most:
                said.append(f"{name}: {key} is {reached:.3g}, the limit is {most:.3g}")
    soak = document.get("soak", {})
    if soak.get("growth", 0) > FLAT_SHARE:
        said.append(f"soak: memory grew by {soak['growth']:.1%} in the second half")
    late = sum(minute["kernels"] for minute in soak.get("minutes", ())[FIRST_MINUTES:])
    if late:
        said.append(f"soak: {late} kernels were compiled after {FIRST_MINUTES} minutes")
    return said


def _reached(key: str, ours: Document, full: Document) -> float:
    """The number of a case that a field of `Must` limits."""
    numbers: dict[str, float] = {
        "median_s": ours["median_ns"] * 1e-9,
        "worst_s": ours["worst_ns"] * 1e-9,
        "full_s": full["median_ns"] * 1e-9,
        "kernels": ours["kernels"],
        "grown_bytes": ours.get("grown_memory_bytes", 0),
    }
    return numbers[key]


@dataclass(frozen=True)
class Sample:
    """One shape of a soak: when, and what leanconv took."""

    at_s: float
    taken: Taken


def by_minute(samples: Sequence[Sample]) -> list[Document]:
    """What happened in every minute that has a shape: shapes, kernels, the slowest, memory."""
    groups: dict[int, list[Taken]] = {}
    for sample in samples:
        groups.setdefault(int(sample.at_s // 60), []).append(sample.taken)
    return [
        {
            "minute": minute,
            "shapes": len(taken),
            "kernels": sum(t.kernels for t in taken),
            "median_ns": statistics.median(t.first_ns for t in taken),
            "worst_ns": max(t.first_ns for t in taken),
            "memory_bytes": max(t.memory_bytes for t in taken),
            "plan_bytes": taken[-1].plan_bytes,
        }
        for minute, taken in sorted(groups.items())
    ]


def growth(samples: Sequence[Sample]) -> float:
    """By which share the largest memory of the second half is over that of the first."""
    half = (len(samples) + 1) // 2
    first, second = (
        max((s.taken.memory_bytes for s in part), default=0)
        for part in (samples[:half], samples[half:])
    )
    return max(0.0, second / first - 1) if first else 0.0


def show(document: Document) -> None:
    """Print the tables, then what is wrong or missing."""
    measured = {name: c for name, c in document.get("cases", {}).items() if "error" not in c}
    if measured:
        print_table(
            ["case", "engine", "median", "worst", "again", "kernels", "memory", "plans"],
            [row for name, case in measured.items() for row in case_rows(name, case)],
            title=f"{document['machine']['cpu']}: the first run on a new shape, and the next one; "
            "kernels newly compiled for one, the median; memory added",
            left=2,
        )
    if "soak" in document:
        print_table(
            ["minute", "shapes", "kernels", "median", "worst", "memory"],
            [minute_row(minute) for minute in document["soak"]["minutes"]],
            title=f"memory grew by {document['soak']['growth']:.1%} in the second half",
        )
    for name, reason in {**document["missing"], **document["left_out"]}.items():
        print(f"{name}: {reason}")
    for line in document["failures"]:
        print(f"failed: {line}")
    for line in document["missed"]:
        print(f"missed: {line}")


def case_rows(name: str, case: Document) -> Iterator[list[str]]:
    """The lines of a table for one case."""
    for label, engine in case["engines"].items():
        times = [format_ns(engine[key]) for key in ("median_ns", "worst_ns", "again_ns")]
        kernels = f"{engine['kernels_median']:g}" if label.startswith(OURS) else ""
        grown = [engine.get("grown_memory_bytes")]
        grown += [engine.get("grown_plan_bytes") if label.startswith(OURS) else None]
        added = ["" if g is None else format_bytes(max(0, round(g))) for g in grown]
        yield [name, label, *times, kernels, *added]


def minute_row(minute: Document) -> list[str]:
    """The line of a table for one minute of a soak."""
    counts = [str(minute[key]) for key in ("minute", "shapes", "kernels")]
    times = [format_ns(minute[key]) for key in ("median_ns", "worst_ns")]
    return [*counts, *times, format_bytes(minute["memory_bytes"])]
