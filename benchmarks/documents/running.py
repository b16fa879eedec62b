"""Many figures, each in a process of its own: one that fails or hangs stops no other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from documents.figure import Figure

# What a figure may take before it is stopped: its minutes, twice, and what compiling takes.
_TIMES, _MORE = 2.0, 2.0


@dataclass(frozen=True)
class Outcome:
    """What became of a figure.

    Attributes:
        name: of it.
        minutes: that it took.
        problem: why there is no result; empty if there is one.
    """

    name: str
    minutes: float
    problem: str = ""


def run_all(
    figures: Sequence[Figure],
    command: Callable[[str], Sequence[str]],
    minutes: float,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Measure one after the other, and say how far it is.

    Args:
        figures: what is measured, in order.
        command: by a figure's name, what measures it.
        minutes: of all of them; one that would end later is left out.
        say: takes a line.

    Returns:
        What became of each.
    """
    begin, outcomes = time.monotonic(), list[Outcome]()
    planned = sum(figure.minutes for figure in figures)
    say(f"{len(figures)} figures, up to {planned:.0f} minutes of {minutes:.0f}")
    for number, figure in enumerate(figures, 1):
        gone = (time.monotonic() - begin) / 60
        head = f"{time.strftime('%H:%M:%S')}  {number} of {len(figures)}  {figure.name}"
        if gone + figure.minutes > minutes:
            outcomes.append(Outcome(figure.name, 0.0, "left out: no time is left for it"))
        else:
            say(f"{head}: up to {figure.minutes:g} minutes, after {gone:.1f}")
            outcomes.append(_run(figure, command(figure.name)))
        last = outcomes[-1]
        say(f"    {last.problem or f'done in {last.minutes:.1f} minutes'}")
    return outcomes


def _run(figure: Figure, command: Sequence[str]) -> Outcome:
    begin = time.monotonic()
    limit_s = 60 * (_TIMES * figure.minutes + _MORE)
    try:
        code = subprocess.run(command, check=False, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        problem = f"stopped: it took more than {limit_s / 60:.0f} minutes"
    else:
        problem = f"failed: exit code {code}" if code else ""
    return Outcome(figure.name, (time.monotonic() - begin) / 60, problem)


def command_of(script: str, options: Sequence[str]) -> Callable[[str], Sequence[str]]:
    """By a figure's name, the command that measures it with the same options."""
    return lambda name: [sys.executable, script, name, *options]
