"""What a figure of a document is here: how it is measured, and what its page shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from documents.chart import Chart
from documents.clock import NEVER, Deadline

Data = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        threads: of every method.
        rounds: turns that each method has, one after the other.
        seconds: of one turn.
        quick: whether small cases stand for the document's own, to see that all works.
        deadline: after which a case has few turns.
    """

    threads: int = 2
    rounds: int = 9
    seconds: float = 0.03
    quick: bool = False
    deadline: Deadline = NEVER

    def to_json(self) -> Data:
        """What a result says of it."""
        return {
            "threads": self.threads,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "quick": self.quick,
        }


@dataclass(frozen=True)
class Table:
    """A table of a page, with a line or two in front of it."""

    text: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Claim:
    """A number that a document prints, beside ours.

    Attributes:
        what: is compared.
        printed: the document's number, as it stands there; "a picture" where it is only drawn.
        ours: measured or computed here.
        ratio: of the two, ours over the printed one, or nothing.
        why: they differ, and what is counted.
    """

    what: str
    printed: str
    ours: str
    ratio: str
    why: str


@dataclass(frozen=True)
class Page:
    """What is shown of a result."""

    tables: Sequence[Table]
    claims: Sequence[Claim]
    charts: Sequence[Chart] = field(default=())


@dataclass(frozen=True)
class Figure:
    """One figure or table of a document.

    Attributes:
        name: on the command line, and of its files.
        document: which, and where in it.
        title: what it shows.
        measure: everything that the page needs, as JSON.
        show: makes the page's parts of that.
        quiet: whether times are measured, so that the machine should be quiet.
        minutes: after which it measures as little as it can, on two cores.
    """

    name: str
    document: str
    title: str
    measure: Callable[[Effort], Data]
    show: Callable[[Data], Page]
    quiet: bool = True
    minutes: float = 1.0


def spread(times: Sequence[float]) -> Data:
    """The least and the quartiles of turns."""
    low, middle, high = (
        statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    )
    return {"least": min(times), "quartiles": [low, middle, high], "turns": len(times)}


def ratio(ours: float, printed: float) -> str:
    """Ours over the printed number."""
    return f"{ours / printed:.2f}"
